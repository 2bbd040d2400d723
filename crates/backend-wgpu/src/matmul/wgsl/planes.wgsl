
// The integers of an octet from one bit plane, one byte each. In spans of at least eight bytes,
// they are in eight consecutive bytes at the same bit position.
fn wide_plane(block: u32, octet: u32, at: u32, bits: u32, span: u32, width: u32) -> vec2<u32> {
  let element = octet * 8u;
  let place = element % span;
  let bytes = words_at(block + at + element / span * width + place % width);
  return (bytes >> vec2<u32>(place / width * bits)) & vec2<u32>(((1u << bits) - 1u) * 0x01010101u);
}

// Spans of one byte: an octet takes one byte per bit of an element. The multiplication copies four
// bits to four bytes.
fn one_bit_plane(block: u32, octet: u32, at: u32) -> vec2<u32> {
  let bits = byte_at(block + at + octet);
  return (vec2<u32>(bits & 15u, bits >> 4u) * 0x00204081u) & vec2<u32>(0x01010101u);
}

fn two_bit_plane(block: u32, octet: u32, at: u32) -> vec2<u32> {
  let byte = block + at + octet * 2u;
  let bits = vec2<u32>(byte_at(byte), byte_at(byte + 1u));
  let spread = bits | (bits << vec2<u32>(6u)) | (bits << vec2<u32>(12u)) | (bits << vec2<u32>(18u));
  return spread & vec2<u32>(0x03030303u);
}
