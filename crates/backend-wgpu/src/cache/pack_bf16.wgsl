// Rounds to nearest, ties to even. NaN stays NaN.
fn bf16(x: f32) -> u32 {
    let bits = bitcast<u32>(x);
    let rounded = (bits + 0x7fffu + ((bits >> 16u) & 1u)) >> 16u;
    return select(rounded, (bits >> 16u) | 64u, (bits & 0x7fffffffu) > 0x7f800000u);
}

fn packed(row: u32, word: u32) -> u32 {
    return bf16(element(row, 2u * word)) | bf16(element(row, 2u * word + 1u)) << 16u;
}
