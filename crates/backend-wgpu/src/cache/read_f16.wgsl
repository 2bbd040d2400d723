fn cached(row: u32, i: u32) -> f32 {
    let element = row * ROW_WIDTH + i;
    let pair = unpack2x16float(cache[element / 2u]);
    return select(pair.x, pair.y, element % 2u == 1u);
}
