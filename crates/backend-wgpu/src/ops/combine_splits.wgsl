// Combines the partial results of the KV splits of each head of a row, in their order.

struct Params {
    first_row: u32,
    rows: u32,
    heads: u32,
    splits: u32,
    y: u32, y_row: u32, y_head: u32,
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> partials: array<f32>;
@group(0) @binding(2) var<storage, read_write> y: array<f32>;

const NONE: f32 = -3.0e38;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let number = group.y * GRID_WIDTH + group.x;
    if (number >= params.rows * params.heads) { return; }
    let row = params.first_row + number / params.heads;
    let head = number % params.heads;
    let first = (row * params.heads + head) * params.splits * (VALUE_WIDTH + 2u);
    var most = NONE;
    for (var s = 0u; s < params.splits; s++) {
        most = max(most, partials[first + s * (VALUE_WIDTH + 2u) + VALUE_WIDTH]);
    }
    var total = 0.0;
    for (var s = 0u; s < params.splits; s++) {
        let state = first + s * (VALUE_WIDTH + 2u) + VALUE_WIDTH;
        total += partials[state + 1u] * exp(partials[state] - most);
    }
    for (var d = thread; d < VALUE_WIDTH; d += 64u) {
        var sum = 0.0;
        for (var s = 0u; s < params.splits; s++) {
            let split = first + s * (VALUE_WIDTH + 2u);
            sum += partials[split + d] * exp(partials[split + VALUE_WIDTH] - most);
        }
        y[params.y + row * params.y_row + head * params.y_head + d] = sum / total;
    }
}
