// Bytes of the weight, which is an array of words. Reading behind its end is clamped, and what is read there is not used.

fn byte_at(byte: u32) -> u32 {
  return (weight[byte >> 2u] >> ((byte & 3u) * 8u)) & 0xffu;
}

// at an even byte
fn half_bits_at(byte: u32) -> u32 {
  return (weight[byte >> 2u] >> ((byte & 2u) * 8u)) & 0xffffu;
}

// Exact for subnormals, which conversions of a device may flush to zero: the scales of small weights are some.
fn f16_value(bits: u32) -> f32 {
  let shifted = (bits & 0x7fffu) << 13u;
  var size = bitcast<f32>(shifted + 0x38000000u);
  if shifted < 0x00800000u {
    size = bitcast<f32>(shifted + 0x38800000u) - 6.103515625e-5;
  }
  if shifted >= 0x0f800000u {
    size = bitcast<f32>(shifted | 0x7f800000u);
  }
  return bitcast<f32>(bitcast<u32>(size) | ((bits & 0x8000u) << 16u));
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
