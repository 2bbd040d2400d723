
// Blocks of 32 inputs: scale = largest magnitude / 127, quants rounded to nearest even. A block
// with an infinity or NaN gets the scale NaN, so that it is not hidden.

// The largest magnitude as bits. Integers are compared, because WGSL's max of floats may return
// anything for NaN.
fn magnitude_bits(values: vec4<f32>) -> u32 {
  let bits = bitcast<vec4<u32>>(values) & vec4<u32>(0x7fffffffu);
  return max(max(bits.x, bits.y), max(bits.z, bits.w));
}

// For largest < 4e-37, 127 / largest would overflow. Such a block becomes zero.
fn inverse_scale(largest: f32) -> f32 {
  return select(127.0 / max(largest, 4e-37), 0.0, largest < 4e-37);
}

fn quantized(values: vec4<f32>, inverse: f32) -> u32 {
  let rounded = clamp(round(values * inverse), vec4<f32>(-127.0), vec4<f32>(127.0));
  let quants = bitcast<vec4<u32>>(vec4<i32>(rounded)) & vec4<u32>(0xffu);
  return quants.x | (quants.y << 8u) | (quants.z << 16u) | (quants.w << 24u);
}
