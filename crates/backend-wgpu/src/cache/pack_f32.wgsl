fn packed(row: u32, word: u32) -> u32 {
    return bitcast<u32>(element(row, word));
}
