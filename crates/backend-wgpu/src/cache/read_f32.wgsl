fn cached(element: u32) -> f32 {
    return bitcast<f32>(cache[element]);
}
