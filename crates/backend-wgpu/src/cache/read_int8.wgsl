fn cached(row: u32, i: u32) -> f32 {
    let first = row * ROW_WORDS;
    if (i < CONTENT) {
        let quant = (cache[first + i / 4u] >> (8u * (i % 4u))) & 0xffu;
        return (f32(quant) - 128.0) * bitcast<f32>(cache[first + ROW_WORDS - 1u]);
    }
    let pair = unpack2x16float(cache[first + CONTENT / 4u + (i - CONTENT) / 2u]);
    return select(pair.x, pair.y, (i - CONTENT) % 2u == 1u);
}
