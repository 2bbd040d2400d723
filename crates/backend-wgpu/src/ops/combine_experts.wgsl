// Σ weight · result over the experts of a row, in their order.

struct Params {
    first_row: u32,
    rows: u32,
    width: u32,
    used: u32,
    weights: u32,
    y: u32, y_row: u32,
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> results: array<f32>;
@group(0) @binding(2) var<storage, read> weights: array<f32>;
@group(0) @binding(3) var<storage, read_write> y: array<f32>;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let at = (group.y * GRID_WIDTH + group.x) * 256u + thread;
    if (at >= params.rows * params.width) { return; }
    let within = at / params.width;
    let row = params.first_row + within;
    let i = at % params.width;
    var sum = 0.0;
    for (var k = 0u; k < params.used; k++) {
        sum += weights[params.weights + row * params.used + k] * results[(within * params.used + k) * params.width + i];
    }
    y[params.y + row * params.y_row + i] = sum;
}
