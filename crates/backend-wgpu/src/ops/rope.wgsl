// Rotates the pairs of each head by the row's position.

struct Params {
    first_row: u32,
    rows: u32,
    heads: u32,
    // Index of cosine and sine of each pair of each row in `step`.
    angles: u32,
    x: u32, x_row: u32, x_head: u32,
    y: u32, y_row: u32, y_head: u32,
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> step: array<u32>;
@group(0) @binding(2) var<storage, read_write> y: array<f32>;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let at = (group.y * GRID_WIDTH + group.x) * 64u + thread;
    if (at >= params.rows * params.heads * PAIRS) { return; }
    let pair = at % PAIRS;
    let head = at / PAIRS % params.heads;
    let row = params.first_row + at / PAIRS / params.heads;
    let turn = params.angles + (row * PAIRS + pair) * 2u;
    let a = first_of(pair);
    let b = second_of(pair);
    let source = params.x + row * params.x_row + head * params.x_head;
    let to = params.y + row * params.y_row + head * params.y_head;
    let angle = vec2<f32>(bitcast<f32>(step[turn]), bitcast<f32>(step[turn + 1u]));
    let turned = rotated(element(source + a, to + a), element(source + b, to + b), angle);
    y[to + a] = turned.x;
    y[to + b] = turned.y;
}
