// Keeps the quants and their scale of the source row: a shift changes the rope part only, which is
// f16.
fn packed(row: u32, word: u32) -> u32 {
    let rope = CONTENT / 4u;
    if (word < rope || word == ROW_WORDS - 1u) { return cache[row * ROW_WORDS + word]; }
    let i = CONTENT + 2u * (word - rope);
    return pack2x16float(vec2<f32>(element(row, i), element(row, i + 1u)));
}
