fn cached(row: u32, i: u32) -> f32 {
    return bitcast<f32>(cache[row * ROW_WIDTH + i]);
}
