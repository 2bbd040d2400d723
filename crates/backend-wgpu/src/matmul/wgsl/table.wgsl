//= word

// the word of the table with a quant's entry
fn table_word(quant: u32) -> u32 {
  let low = select(TABLE_0, TABLE_1, (quant & 4u) != 0u);
  let high = select(TABLE_2, TABLE_3, (quant & 4u) != 0u);
  return select(low, high, (quant & 8u) != 0u);
}
//= values

fn table_value(quant: u32) -> f32 {
  return f32(extractBits(bitcast<i32>(table_word(quant)), (quant & 3u) * 8u, 8u));
}

fn table_values(quants: u32) -> vec4<f32> {
  let each = bytes_of(quants);
  return vec4<f32>(table_value(each.x), table_value(each.y), table_value(each.z), table_value(each.w));
}
//= bytes

fn table_byte(quant: u32) -> u32 {
  return (table_word(quant) >> ((quant & 3u) * 8u)) & 0xffu;
}

fn table_bytes(quants: u32) -> u32 {
  return table_byte(quants & 0xffu) | (table_byte((quants >> 8u) & 0xffu) << 8u)
    | (table_byte((quants >> 16u) & 0xffu) << 16u) | (table_byte(quants >> 24u) << 24u);
}
