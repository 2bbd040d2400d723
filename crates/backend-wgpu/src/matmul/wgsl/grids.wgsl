//= signs
// Seven signs are stored. The eighth makes the number of negative signs even.
fn even_signs(index: u32) -> u32 {
  let seven = index & 127u;
  return seven | ((countOneBits(seven) & 1u) << 7u);
}

fn signed_values(scale: f32, row: u32, signs: u32) -> vec4<f32> {
  let sizes = vec4<f32>(signed_bytes_of(row)) * scale;
  let negative = (vec4<u32>(signs) >> vec4<u32>(0u, 1u, 2u, 3u)) & vec4<u32>(1u);
  return select(sizes, -sizes, negative == vec4<u32>(1u));
}

fn signed_octet(scale: f32, low: u32, high: u32, signs: u32) -> Octet {
  return Octet(signed_values(scale, low, signs), signed_values(scale, high, signs >> 4u));
}
//= iq1_s
fn decode_block(block: u32, octet: u32) -> Octet {
  let word = half_bits_at(block + UPPER_AT + (octet >> 2u) * 2u);
  let scale = half_at(d_place(block)) * f32(2u * ((word >> 12u) & 7u) + 1u);
  let delta = select(0.125, -0.125, (word & 0x8000u) != 0u);
  let row = (byte_at(block + INDEX_AT + octet) | (((word >> ((octet & 3u) * 3u)) & 7u) << 8u)) * 2u;
  return Octet(
    (vec4<f32>(signed_bytes_of(codebook[row])) + delta) * scale,
    (vec4<f32>(signed_bytes_of(codebook[row + 1u])) + delta) * scale,
  );
}
//= iq1_m
fn decode_block(block: u32, octet: u32) -> Octet {
  let at = block + SCALES_AT;
  let d = (half_bits_at(at) >> 12u) | ((half_bits_at(at + 2u) >> 12u) << 4u)
    | ((half_bits_at(at + 4u) >> 12u) << 8u) | ((half_bits_at(at + 6u) >> 12u) << 12u);
  let word = half_bits_at(at + (octet >> 3u) * 2u);
  let scale = f16_value(d) * f32(2u * ((word >> (((octet >> 1u) & 3u) * 3u)) & 7u) + 1u);
  let upper = byte_at(block + UPPER_AT + (octet >> 1u)) >> ((octet & 1u) * 4u);
  let delta = select(0.125, -0.125, (upper & 8u) != 0u);
  let row = (byte_at(block + INDEX_AT + octet) | ((upper & 7u) << 8u)) * 2u;
  return Octet(
    (vec4<f32>(signed_bytes_of(codebook[row])) + delta) * scale,
    (vec4<f32>(signed_bytes_of(codebook[row + 1u])) + delta) * scale,
  );
}
//= iq2_xxs
fn decode_block(block: u32, octet: u32) -> Octet {
  let part = block + INDEX_AT + (octet >> 2u) * 8u;
  let word = word_at(part + 4u);
  let scale = half_at(d_place(block)) * (0.5 + f32(word >> 28u)) * 0.25;
  let row = byte_at(part + (octet & 3u)) * 2u;
  return signed_octet(scale, codebook[row], codebook[row + 1u], even_signs(word >> ((octet & 3u) * 7u)));
}
//= iq2_xs
fn decode_block(block: u32, octet: u32) -> Octet {
  let word = half_bits_at(block + INDEX_AT + octet * 2u);
  let both = byte_at(block + SCALES_AT + (octet >> 2u));
  let scale = half_at(d_place(block)) * (0.5 + f32((both >> (((octet >> 1u) & 1u) * 4u)) & 15u)) * 0.25;
  let row = (word & 511u) * 2u;
  return signed_octet(scale, codebook[row], codebook[row + 1u], even_signs(word >> 9u));
}
//= iq2_s
fn decode_block(block: u32, octet: u32) -> Octet {
  let upper = (byte_at(block + UPPER_AT + (octet >> 2u)) >> ((octet & 3u) * 2u)) & 3u;
  let both = byte_at(block + SCALES_AT + (octet >> 2u));
  let scale = half_at(d_place(block)) * (0.5 + f32((both >> (((octet >> 1u) & 1u) * 4u)) & 15u)) * 0.25;
  let row = (byte_at(block + INDEX_AT + octet) | (upper << 8u)) * 2u;
  return signed_octet(scale, codebook[row], codebook[row + 1u], byte_at(block + SIGNS_AT + octet));
}
//= iq3_xxs
fn decode_block(block: u32, octet: u32) -> Octet {
  let word = word_at(block + SIGNS_AT + (octet >> 2u) * 4u);
  let scale = half_at(d_place(block)) * (0.5 + f32(word >> 28u)) * 0.5;
  let at = block + INDEX_AT + octet * 2u;
  return signed_octet(scale, codebook[byte_at(at)], codebook[byte_at(at + 1u)], even_signs(word >> ((octet & 3u) * 7u)));
}
//= iq3_s
fn decode_block(block: u32, octet: u32) -> Octet {
  let at = block + INDEX_AT + octet * 2u;
  let ninths = byte_at(block + UPPER_AT + (octet >> 2u)) >> ((octet & 3u) * 2u);
  let both = byte_at(block + SCALES_AT + (octet >> 3u));
  let scale = half_at(d_place(block)) * f32(1u + 2u * ((both >> (((octet >> 2u) & 1u) * 4u)) & 15u));
  let low = codebook[byte_at(at) | ((ninths & 1u) << 8u)];
  let high = codebook[byte_at(at + 1u) | ((ninths & 2u) << 7u)];
  return signed_octet(scale, low, high, byte_at(block + SIGNS_AT + octet));
}
