//= in_blocks

// where the scale of a block is
fn d_place(block: u32) -> u32 {
  return block + D_AT;
}
//= in_a_plane

// the scales of all blocks are behind what is left of the blocks
fn d_place(block: u32) -> u32 {
  return p.d_first + block / BLOCK_BYTES * D_BYTES;
}
