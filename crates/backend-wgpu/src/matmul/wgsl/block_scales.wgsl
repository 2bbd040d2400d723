//= in_blocks

// Byte address of a block's scale.
fn d_place(block: u32) -> u32 {
  return block + D_AT;
}
//= in_a_plane

// Repacked: the scales of all blocks follow the blocks without scales.
fn d_place(block: u32) -> u32 {
  return p.d_first + block / BLOCK_BYTES * D_BYTES;
}
