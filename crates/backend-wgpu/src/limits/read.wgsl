// Reads a buffer once per iteration. Neighbouring threads read neighbouring vectors (coalesced).
// The sum is written, so that the reads are not removed.
@group(0) @binding(0) var<uniform> turns: vec4<u32>;
@group(0) @binding(1) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read_write> y: array<f32>;

@compute @workgroup_size(256)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    var sum = vec4<f32>(0.0);
    for (var turn = 0u; turn < turns.y; turn++) {
        for (var i = id.x; i < VECTORS; i += turns.x * 256u) { sum += x[i]; }
    }
    y[id.x] = sum.x + sum.y + sum.z + sum.w;
}
