// Multiply-accumulates of vectors, sixteen per iteration. No operand comes from memory. The factor
// depends on the thread, so that a compiler cannot fold the loop.
@group(0) @binding(0) var<uniform> turns: vec4<u32>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;

@compute @workgroup_size(256)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let factor = vec4<Element>(Element(1.0 + f32(id.x) * 1e-9 / f32(turns.x)));
    var a = vec4<Element>(0.1, 0.2, 0.3, 0.4);
    var b = a + 1.0;
    var c = a + 2.0;
    var d = a + 3.0;
    for (var i = 0u; i < turns.y; i++) {
        a = fma(a, factor, b);
        b = fma(b, factor, c);
        c = fma(c, factor, d);
        d = fma(d, factor, a);
    }
    let sum = a + b + c + d;
    y[id.x] = f32(sum.x + sum.y + sum.z + sum.w);
}
