//= fp4
// E2M1: twice the value is an integer, which is computed without a table.
fn code_values(codes: vec4<u32>) -> vec4<f32> {
  let size = codes & vec4<u32>(7u);
  let doubled = select((vec4<u32>(2u) | (size & vec4<u32>(1u))) << (max(size >> vec4<u32>(1u), vec4<u32>(1u)) - vec4<u32>(1u)), size, size < vec4<u32>(2u));
  return vec4<f32>(select(vec4<i32>(doubled), -vec4<i32>(doubled), codes >= vec4<u32>(8u))) * 0.5;
}
//= int4_sym
fn code_values(codes: vec4<u32>) -> vec4<f32> {
  return vec4<f32>(codes) - 8.0;
}
//= int4
fn code_values(codes: vec4<u32>) -> vec4<f32> {
  return vec4<f32>(codes);
}
//= values
fn word_values(word: u32) -> Octet {
  return Octet(
    code_values((vec4<u32>(word) >> vec4<u32>(0u, 4u, 8u, 12u)) & vec4<u32>(15u)),
    code_values((vec4<u32>(word) >> vec4<u32>(16u, 20u, 24u, 28u)) & vec4<u32>(15u)),
  );
}

fn scale_byte(at: u32) -> u32 {
  return (scales[at >> 2u] >> ((at & 3u) * 8u)) & 0xffu;
}
//= inputs_f32
fn four_inputs(at: u32) -> vec4<f32> {
  return x[at];
}
//= inputs_f16
// A device may flush subnormal f16 to 0.
fn four_inputs(at: u32) -> vec4<f32> {
  return vec4<f32>(unpack2x16float(x[at].x), unpack2x16float(x[at].y));
}
//= f16
fn scale_at(at: u32) -> f32 {
  return f16_value((scales[at >> 1u] >> ((at & 1u) * 16u)) & 0xffffu);
}
//= e8m0
// 2^-127 is subnormal in f32, and a device may flush it to 0. Code 255 is NaN.
fn scale_at(at: u32) -> f32 {
  let code = scale_byte(at);
  var bits = select(code << 23u, 0x00400000u, code == 0u);
  bits = select(bits, 0x7fc00000u, code == 255u);
  return bitcast<f32>(bits);
}
//= e4m3
fn scale_at(at: u32) -> f32 {
  return e4m3(vec4<u32>(scale_byte(at))).x * p.tensor_scale;
}
//= zeros
fn zero_at(at: u32) -> f32 {
  return f32((zeros[at >> 2u] >> ((at & 3u) * 8u)) & 0xffu);
}
//= no_zeros
fn zero_at(at: u32) -> f32 {
  return 0.0;
}
//= whole_groups
// All codes of a word have one scale.

fn group_of(word: u32, column: u32) -> u32 {
  return word * 8u / p.group * p.columns + column;
}

fn scaled_values(values: Octet, word: u32, column: u32, scale: f32, zero: f32) -> Octet {
  return Octet((values.a - zero) * scale, (values.b - zero) * scale);
}
//= cut_groups
// Groups end inside of words, so every code looks up its own scale.

fn group_of(word: u32, column: u32) -> u32 {
  return 0u;
}

fn scaled_four(values: vec4<f32>, input: u32, column: u32) -> vec4<f32> {
  let at = (vec4<u32>(input, input + 1u, input + 2u, input + 3u) / p.group) * p.columns + column;
  let zero = vec4<f32>(zero_at(at.x), zero_at(at.y), zero_at(at.z), zero_at(at.w));
  return (values - zero) * vec4<f32>(scale_at(at.x), scale_at(at.y), scale_at(at.z), scale_at(at.w));
}

fn scaled_values(values: Octet, word: u32, column: u32, scale: f32, zero: f32) -> Octet {
  return Octet(scaled_four(values.a, word * 8u, column), scaled_four(values.b, word * 8u + 4u, column));
}
