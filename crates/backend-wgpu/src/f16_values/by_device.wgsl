fn f16_value(bits: u32) -> f32 {
  return unpack2x16float(bits).x;
}
