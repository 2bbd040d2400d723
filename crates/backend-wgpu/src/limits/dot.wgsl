// Dot products of four packed bytes, eight per iteration. No operand comes from memory. The
// components are four independent chains, which hide the latency of an instruction.
@group(0) @binding(0) var<uniform> turns: vec4<u32>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;

@compute @workgroup_size(256)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let factor = id.x * 0x01030507u;
    var a = vec4<i32>(1, 2, 3, 4);
    var b = a + 4;
    for (var i = 0u; i < turns.y; i++) {
        a.x += dot4I8Packed(bitcast<u32>(b.x), factor);
        a.y += dot4I8Packed(bitcast<u32>(b.y), factor);
        a.z += dot4I8Packed(bitcast<u32>(b.z), factor);
        a.w += dot4I8Packed(bitcast<u32>(b.w), factor);
        b.x += dot4I8Packed(bitcast<u32>(a.x), factor);
        b.y += dot4I8Packed(bitcast<u32>(a.y), factor);
        b.z += dot4I8Packed(bitcast<u32>(a.z), factor);
        b.w += dot4I8Packed(bitcast<u32>(a.w), factor);
    }
    let sum = a + b;
    y[id.x] = f32(sum.x + sum.y + sum.z + sum.w);
}
