// y = x · Wᵀ per head: each head of a row has a matrix of its own.

struct Params {
    first_row: u32,
    rows: u32,
    heads: u32,
    // the matrix of the first head, in the part of the weight that is bound
    first_matrix: u32,
    outputs: u32,
    inputs: u32,
    x: u32, x_row: u32, x_head: u32,
    y: u32, y_row: u32, y_head: u32,
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read> weight: array<f32>;
@group(0) @binding(3) var<storage, read_write> y: array<f32>;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let tiles = (params.outputs + 63u) / 64u;
    let number = group.y * GRID_WIDTH + group.x;
    let item = number / tiles;
    let output = number % tiles * 64u + thread;
    if (item >= params.rows * params.heads || output >= params.outputs) { return; }
    let row = params.first_row + item / params.heads;
    let head = item % params.heads;
    let w = ((params.first_matrix + head) * params.outputs + output) * params.inputs;
    let source = params.x + row * params.x_row + head * params.x_head;
    var sum = 0.0;
    for (var k = 0u; k < params.inputs; k++) {
        sum += x[source + k] * weight[w + k];
    }
    y[params.y + row * params.y_row + head * params.y_head + output] = sum;
}
