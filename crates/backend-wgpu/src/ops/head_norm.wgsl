// Norms of heads, with a workgroup per head of a row: L2 norm times a factor, or RMSNorm with a
// weight and the sigmoid of a gate. 64 threads, since heads have about 128 elements.

struct Params {
    first_row: u32,
    rows: u32,
    heads: u32,
    y: u32, y_row: u32, y_head: u32,
    x: u32, x_row: u32, x_head: u32,
    z: u32, z_row: u32, z_head: u32,
    factor: f32,
}
@group(0) @binding(0) var<uniform> params: Params;

const THREADS: u32 = 64u;

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let number = group.y * GRID_WIDTH + group.x;
    if (number >= params.rows * params.heads) { return; }
    let row = params.first_row + number / params.heads;
    let head = number % params.heads;
    let source = params.x + row * params.x_row + head * params.x_head;
    let to = params.y + row * params.y_row + head * params.y_head;
    let gate = params.z + row * params.z_row + head * params.z_head;
    var sum = 0.0;
    for (var i = thread; i < WIDTH; i += THREADS) {
        let own = element(source + i, to + i);
        sum += own * own;
    }
    let factor = params.factor * norm_factor(sum, thread);
    for (var i = thread; i < WIDTH; i += THREADS) {
        y[to + i] = element(source + i, to + i) * factor * scale(gate + i, i);
    }
}
