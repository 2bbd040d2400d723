// Writes rows of the KV cache, one workgroup per row.

const THREADS: u32 = 64u;

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let number = group.y * GRID_WIDTH + group.x;
    if (number >= params.rows) { return; }
    let row = params.first_row + number;
    prepare(row, thread);
    let to = step[params.slots + row] * ROW_WORDS;
    for (var word = thread; word < ROW_WORDS; word += THREADS) { cache[to + word] = packed(row, word); }
}
