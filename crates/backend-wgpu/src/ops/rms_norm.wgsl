// X / √(mean x² + ε) · w, with a workgroup per head of a row.

struct Params {
    first_row: u32,
    rows: u32,
    heads: u32,
    x: u32, x_row: u32, x_head: u32,
    y: u32, y_row: u32, y_head: u32,
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read> weight: array<f32>;
@group(0) @binding(3) var<storage, read_write> y: array<f32>;

const THREADS: u32 = 256u;
const TURNS: u32 = (NORM_WIDTH + THREADS - 1u) / THREADS;

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let number = group.y * GRID_WIDTH + group.x;
    if (number >= params.rows * params.heads) { return; }
    let row = params.first_row + number / params.heads;
    let head = number % params.heads;
    let source = params.x + row * params.x_row + head * params.x_head;
    let to = params.y + row * params.y_row + head * params.y_head;
    // Each element is loaded once, and all loads are issued before the first result is needed.
    var own: array<f32, TURNS>;
    var sum = 0.0;
    for (var turn = 0u; turn < TURNS; turn++) {
        let i = turn * THREADS + thread;
        own[turn] = 0.0;
        if (i < NORM_WIDTH) { own[turn] = x[source + i]; }
    }
    for (var turn = 0u; turn < TURNS; turn++) { sum += own[turn] * own[turn]; }
    let factor = norm_factor(sum, thread);
    for (var turn = 0u; turn < TURNS; turn++) {
        let i = turn * THREADS + thread;
        if (i < NORM_WIDTH) { y[to + i] = own[turn] * factor * weight[i]; }
    }
}
