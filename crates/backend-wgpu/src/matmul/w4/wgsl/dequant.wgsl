//= f32

// A thread decodes the eight codes of a word, which belong to eight rows.
@compute @workgroup_size(THREADS)
fn main(
  @builtin(workgroup_id) group: vec3<u32>,
  @builtin(num_workgroups) groups: vec3<u32>,
  @builtin(local_invocation_index) thread: u32,
) {
  let index = (group.x + group.z * groups.x) * THREADS + thread;
  let column = index % p.columns;
  let word = index / p.columns;
  if word >= p.inputs / 8u {
    return;
  }
  let w = decoded(word, column);
  let all = array<f32, 8>(w.a.x, w.a.y, w.a.z, w.a.w, w.b.x, w.b.y, w.b.z, w.b.w);
  for (var i = 0u; i < 8u; i++) {
    y[p.y_first + (word * 8u + i) * p.y_stride + column] = all[i];
  }
}
//= f16

// A thread decodes two neighbouring words, whose f16 are in the same words of the result. Rows
// begin at words.
@compute @workgroup_size(THREADS)
fn main(
  @builtin(workgroup_id) group: vec3<u32>,
  @builtin(num_workgroups) groups: vec3<u32>,
  @builtin(local_invocation_index) thread: u32,
) {
  let index = (group.x + group.z * groups.x) * THREADS + thread;
  let pairs = (p.columns + 1u) / 2u;
  let column = index % pairs * 2u;
  let word = index / pairs;
  if word >= p.inputs / 8u {
    return;
  }
  let v = decoded(word, column);
  let w = decoded(word, min(column + 1u, p.columns - 1u));
  let low = array<f32, 8>(v.a.x, v.a.y, v.a.z, v.a.w, v.b.x, v.b.y, v.b.z, v.b.w);
  let high = array<f32, 8>(w.a.x, w.a.y, w.a.z, w.a.w, w.b.x, w.b.y, w.b.z, w.b.w);
  for (var i = 0u; i < 8u; i++) {
    let upper = select(f16_bits(high[i]), 0u, column + 1u == p.columns);
    y[p.y_first + (word * 8u + i) * p.y_stride + column / 2u] = f16_bits(low[i]) | (upper << 16u);
  }
}
//= decoded

fn decoded(word: u32, column: u32) -> Octet {
  let at = group_of(word, column);
  return scaled_values(word_values(words[word * p.columns + column]), word, column, scale_at(at), zero_at(at));
}

//= round
// The nearest f16 as bits, ties to even. Not pack2x16float: WGSL does not specify its rounding, and
// allows it to flush subnormals.
fn f16_bits(value: f32) -> u32 {
  let bits = bitcast<u32>(value);
  let sign = (bits >> 16u) & 0x8000u;
  let size = bits & 0x7fffffffu;
  if size > 0x7f800000u {
    return sign | 0x7e00u;
  }
  // From 65520 on, the nearest f16 is infinity.
  if size >= 0x477ff000u {
    return sign | 0x7c00u;
  }
  if size >= 0x38800000u {
    let shifted = size - 0x38000000u;
    return sign | ((shifted + 0xfffu + ((shifted >> 13u) & 1u)) >> 13u);
  }
  // Subnormal results are multiples of 2^-24. Below half of that, the result is 0.
  if size < 0x33000000u {
    return sign;
  }
  let exponent = size >> 23u;
  let mantissa = (size & 0x7fffffu) | 0x800000u;
  let shift = 126u - exponent;
  let whole = mantissa >> shift;
  let rest = mantissa & ((1u << shift) - 1u);
  let half = 1u << (shift - 1u);
  return sign | (whole + select(0u, 1u, rest > half || (rest == half && (whole & 1u) == 1u)));
}
