//= zero

// Bytes minus the zero point, as i8. The highest bit of each byte is set before the subtraction, so
// that no byte borrows from the next, and flipped back afterwards.
fn less_zero(quants: u32) -> u32 {
  return ((quants | 0x80808080u) - ZERO * 0x01010101u) ^ 0x80808080u;
}
//= octets

fn weight_block(matrix: u32, output: u32, octet: u32) -> u32 {
  return p.first_byte + (matrix * p.matrix_rows + output) * p.row_bytes + octet / BLOCK_OCTETS * BLOCK_BYTES;
}

struct Int8Octet {
  quants: vec2<u32>,
  scale: f32,
}
//= blocks

// An input block has eight words of four i8 each, and an f32 scale.
fn input_int8(row: u32, octet: u32) -> Int8Octet {
  let block = (row + octet / 4u) * 9u;
  let at = block + octet % 4u * 2u;
  return Int8Octet(vec2<u32>(x[at], x[at + 1u]), bitcast<f32>(x[block + 8u]));
}
//= quantized

// A block of 32 inputs is four octets, which four neighbouring lanes hold. They find the largest
// magnitude together.
fn input_int8(row: u32, octet: u32) -> Int8Octet {
  let at = (row >> 2u) + octet * 2u;
  let a = x[at];
  let b = x[at + 1u];
  var bits = max(magnitude_bits(a), magnitude_bits(b));
  bits = max(bits, subgroupShuffleXor(bits, 1u));
  bits = max(bits, subgroupShuffleXor(bits, 2u));
  if bits >= 0x7f800000u {
    return Int8Octet(vec2<u32>(0u, 0u), bitcast<f32>(bits | 0x7fc00000u));
  }
  let largest = bitcast<f32>(bits);
  let inverse = inverse_scale(largest);
  return Int8Octet(vec2<u32>(quantized(a, inverse), quantized(b, inverse)), largest / 127.0);
}
//= scales

fn add_quants(sum: f32, x: vec2<u32>, x_scale: f32, w: vec2<u32>, scale: f32) -> f32 {
  return fma(x_scale * scale, f32(dot4I8Packed(x.x, w.x) + dot4I8Packed(x.y, w.y)), sum);
}
//= adds

// Σ x (scale · quant + minimum) = scale · Σ x · quant + minimum · Σ x.
fn add_quants(sum: f32, x: vec2<u32>, x_scale: f32, w: vec2<u32>, scale: vec2<f32>) -> f32 {
  let total = dot4I8Packed(x.x, 0x01010101u) + dot4I8Packed(x.y, 0x01010101u);
  return fma(x_scale, fma(scale.x, f32(dot4I8Packed(x.x, w.x) + dot4I8Packed(x.y, w.y)), scale.y * f32(total)), sum);
}
