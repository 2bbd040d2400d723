fn cached(row: u32, i: u32) -> f32 {
    let element = row * ROW_WIDTH + i;
    let pair = cache[element / 2u];
    return bitcast<f32>(select(pair << 16u, pair & 0xffff0000u, element % 2u == 1u));
}
