
fn table_value(quant: u32) -> f32 {
  let low = select(TABLE_0, TABLE_1, (quant & 4u) != 0u);
  let high = select(TABLE_2, TABLE_3, (quant & 4u) != 0u);
  let word = select(low, high, (quant & 8u) != 0u);
  return f32(extractBits(bitcast<i32>(word), (quant & 3u) * 8u, 8u));
}

fn table_values(quants: u32) -> vec4<f32> {
  let each = bytes_of(quants);
  return vec4<f32>(table_value(each.x), table_value(each.y), table_value(each.z), table_value(each.w));
}
