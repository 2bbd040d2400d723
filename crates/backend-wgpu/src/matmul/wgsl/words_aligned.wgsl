
// For formats whose fields of four bytes begin at words.
fn word_at(byte: u32) -> u32 {
  return weight[byte >> 2u];
}

fn words_at(byte: u32) -> vec2<u32> {
  let at = byte >> 2u;
  return vec2<u32>(weight[at], weight[at + 1u]);
}
