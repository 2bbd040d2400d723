// Bytes of the weight, which is an array of words. Some functions read one word past the end, where
// the driver bounds the access. The value is not used.

fn byte_at(byte: u32) -> u32 {
  return (weight[byte >> 2u] >> ((byte & 3u) * 8u)) & 0xffu;
}

// The address is even, so the two bytes are in one word.
fn half_bits_at(byte: u32) -> u32 {
  return (weight[byte >> 2u] >> ((byte & 2u) * 8u)) & 0xffffu;
}

fn half_at(byte: u32) -> f32 {
  return f16_value(half_bits_at(byte));
}

fn bytes_of(word: u32) -> vec4<u32> {
  return (vec4<u32>(word) >> vec4<u32>(0u, 8u, 16u, 24u)) & vec4<u32>(0xffu);
}

fn signed_bytes_of(word: u32) -> vec4<i32> {
  return (vec4<i32>(bitcast<i32>(word)) << vec4<u32>(24u, 16u, 8u, 0u)) >> vec4<u32>(24u);
}
