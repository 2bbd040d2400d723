fn cached(element: u32) -> f32 {
    let pair = cache[element / 2u];
    return bitcast<f32>(select(pair << 16u, pair & 0xffff0000u, element % 2u == 1u));
}
