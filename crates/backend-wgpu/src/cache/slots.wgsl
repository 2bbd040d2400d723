// The slot of a position, as the block table at `blocks` says.
fn slot_of(blocks: u32, position: u32) -> u32 {
    return step[blocks + position / KV_BLOCK] * KV_BLOCK + position % KV_BLOCK;
}
