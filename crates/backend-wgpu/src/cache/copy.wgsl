struct Params {
    source: u32,
    to: u32,
    words: u32,
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read_write> cache: array<u32>;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let at = (group.y * GRID_WIDTH + group.x) * 256u + thread;
    if (at < params.words) { cache[params.to + at] = cache[params.source + at]; }
}
