// An elementwise operation with one or two inputs. `first`, `second` and `result` are inserted
// before.

struct Params {
    first_row: u32,
    rows: u32,
    heads: u32,
    width: u32,
    y: u32, y_row: u32, y_head: u32,
    x: u32, x_row: u32, x_head: u32,
    z: u32, z_row: u32, z_head: u32, z_step: u32,
    factor: f32,
}
@group(0) @binding(0) var<uniform> params: Params;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let at = (group.y * GRID_WIDTH + group.x) * 256u + thread;
    let row_width = params.heads * params.width;
    if (at >= params.rows * row_width) { return; }
    let row = params.first_row + at / row_width;
    let head = at % row_width / params.width;
    let i = at % params.width;
    let to = params.y + row * params.y_row + head * params.y_head + i;
    let source = params.x + row * params.x_row + head * params.x_head + i;
    let other = params.z + row * params.z_row + head * params.z_head + i * params.z_step;
    y[to] = result(first(to, source), second(other));
}
