// Gathers cached rows of one sequence, in the order of positions, as f32.

struct Params {
    first: u32,
    rows: u32,
    blocks: u32,
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> step: array<u32>;
@group(0) @binding(2) var<storage, read_write> y: array<f32>;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let at = (group.y * GRID_WIDTH + group.x) * 256u + thread;
    if (at >= params.rows * ROW_WIDTH) { return; }
    let j = params.first + at / ROW_WIDTH;
    y[at] = cached(slot_of(params.blocks, j), at % ROW_WIDTH);
}
