
// F8_E4M3 without infinities: 0x7f and 0xff are NaN. 120 is the difference of the exponents' biases
// (127 - 7). Codes below 8 are subnormal: multiples of 2^-9.
fn e4m3(code: vec4<u32>) -> vec4<f32> {
  let size = code & vec4<u32>(0x7fu);
  let normal = bitcast<vec4<f32>>((size << vec4<u32>(20u)) + vec4<u32>(120u << 23u));
  var bits = bitcast<vec4<u32>>(select(normal, vec4<f32>(size) * 0.001953125, size < vec4<u32>(8u)));
  bits = select(bits, vec4<u32>(0x7fc00000u), size == vec4<u32>(0x7fu));
  return bitcast<vec4<f32>>(bits | ((code & vec4<u32>(0x80u)) << vec4<u32>(24u)));
}
