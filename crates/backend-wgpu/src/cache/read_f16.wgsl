fn cached(element: u32) -> f32 {
    let pair = unpack2x16float(cache[element / 2u]);
    return select(pair.x, pair.y, element % 2u == 1u);
}
