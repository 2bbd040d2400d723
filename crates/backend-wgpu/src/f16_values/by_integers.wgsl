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
