
// Four bytes from any address. The upper word is shifted in two steps, since for an aligned address
// the shift would be by 32, which WGSL reduces to 0.
fn word_at(byte: u32) -> u32 {
  let at = byte >> 2u;
  let shift = (byte & 3u) * 8u;
  return (weight[at] >> shift) | ((weight[at + 1u] << 1u) << (31u - shift));
}

fn words_at(byte: u32) -> vec2<u32> {
  let at = byte >> 2u;
  let shift = (byte & 3u) * 8u;
  let middle = weight[at + 1u];
  return vec2<u32>(
    (weight[at] >> shift) | ((middle << 1u) << (31u - shift)),
    (middle >> shift) | ((weight[at + 2u] << 1u) << (31u - shift)),
  );
}
