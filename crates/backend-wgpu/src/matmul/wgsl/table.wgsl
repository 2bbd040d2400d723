//= word

// The word of the table with a quant's entry. Selects instead of an array: a driver may place an
// array that is indexed by a variable in memory.
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
//= e2m1

// Twice the values of four E2M1 codes at once: 0 to 12 with a sign. A magnitude above 4 is its code
// plus 1, 2 or 5.
fn table_bytes(quants: u32) -> u32 {
  let low = quants & 0x03030303u;
  let both = low & (low >> 1u) & 0x01010101u;
  let large = (quants >> 2u) & 0x01010101u;
  let size = (quants & 0x07070707u) + ((low + (both << 1u)) & ((large << 8u) - large));
  let negative = (quants >> 3u) & 0x01010101u;
  // Negation per byte (complement plus 1) without carries into the next byte. -0 becomes 0.
  let flipped = size ^ ((negative << 8u) - negative);
  return ((flipped & 0x7f7f7f7fu) + negative) ^ (flipped & 0x80808080u);
}
//= e2m1_values

fn table_values(quants: u32) -> vec4<f32> {
  return vec4<f32>(signed_bytes_of(table_bytes(quants)));
}
