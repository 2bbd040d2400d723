fn packed(row: u32, word: u32) -> u32 {
    return pack2x16float(vec2<f32>(element(row, 2u * word), element(row, 2u * word + 1u)));
}
