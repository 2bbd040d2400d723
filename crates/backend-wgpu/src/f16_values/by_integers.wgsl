// Exact for subnormals, which a device's conversion may flush to zero. Scales of small weights are
// subnormal. 0x38000000 is the difference of the exponents' biases (127 - 15) in f32. For
// subnormals (no implicit one), 2^-14 is subtracted, which is exact. Infinities and NaN get the
// exponent 255.
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
