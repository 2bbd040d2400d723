
// TQ1_0: base-3 digits, five per byte. 32 bytes hold elements that are 32 apart, then 16 bytes
// elements that are 16 apart, then 4 bytes elements that are 4 apart. The bytes are scaled so that
// multiplying by a power of 3 modulo 256 and then by 3 leaves the digit in the upper byte.
fn digit(block: u32, element: u32) -> f32 {
  var at = element & 31u;
  var power = element >> 5u;
  if element >= 240u {
    at = 48u + (element & 3u);
    power = (element - 240u) >> 2u;
  } else if element >= 160u {
    at = 32u + (element & 15u);
    power = (element - 160u) >> 4u;
  }
  // 3^power, from the bytes of a word (1, 3, 9, 27) or 81.
  let times = select((0x1b090301u >> ((power & 3u) * 8u)) & 0xffu, 81u, power == 4u);
  return f32((((byte_at(block + at) * times) & 0xffu) * 3u) >> 8u) - 1.0;
}

fn decode_block(block: u32, octet: u32) -> Octet {
  let d = half_at(d_place(block));
  let e = octet * 8u;
  return Octet(
    vec4<f32>(digit(block, e), digit(block, e + 1u), digit(block, e + 2u), digit(block, e + 3u)) * d,
    vec4<f32>(digit(block, e + 4u), digit(block, e + 5u), digit(block, e + 6u), digit(block, e + 7u)) * d,
  );
}
