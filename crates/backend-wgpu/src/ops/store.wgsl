// Writes rows of the KV cache, a word for each invocation.

struct Params {
    first_row: u32,
    rows: u32,
    // where the slot of each row stands
    slots: u32,
    x: u32, x_row: u32, x_head: u32,
    k: u32, k_row: u32,
    v: u32, v_row: u32, v_head: u32,
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> step: array<u32>;
@group(0) @binding(2) var<storage, read_write> cache: array<u32>;
@group(0) @binding(3) var<storage, read> x: array<f32>;
@group(0) @binding(4) var<storage, read> k: array<f32>;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let at = (group.y * GRID_WIDTH + group.x) * 64u + thread;
    if (at >= params.rows * ROW_WORDS) { return; }
    let row = params.first_row + at / ROW_WORDS;
    let word = at % ROW_WORDS;
    cache[step[params.slots + row] * ROW_WORDS + word] = packed(row, word);
}
