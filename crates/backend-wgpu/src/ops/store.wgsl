// Writes rows of the KV cache, one word per invocation.

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let at = (group.y * GRID_WIDTH + group.x) * 64u + thread;
    if (at >= params.rows * ROW_WORDS) { return; }
    let row = params.first_row + at / ROW_WORDS;
    let word = at % ROW_WORDS;
    cache[step[params.slots + row] * ROW_WORDS + word] = packed(row, word);
}
