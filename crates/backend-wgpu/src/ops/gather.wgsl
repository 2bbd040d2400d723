// Gathers the rows whose logits are wanted.

struct Params {
    rows: u32,
    width: u32,
    wanted: u32,
    x: u32, x_row: u32,
    y: u32, y_row: u32,
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> step: array<u32>;
@group(0) @binding(2) var<storage, read> x: array<f32>;
@group(0) @binding(3) var<storage, read_write> y: array<f32>;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let at = (group.y * GRID_WIDTH + group.x) * 256u + thread;
    if (at >= params.rows * params.width) { return; }
    let row = at / params.width;
    let i = at % params.width;
    y[params.y + row * params.y_row + i] = x[params.x + step[params.wanted + row] * params.x_row + i];
}
