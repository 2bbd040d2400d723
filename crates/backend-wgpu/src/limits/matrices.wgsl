// Products of two cooperative matrices that are loaded once. Each subgroup has several independent
// sums, which hide the latency of a multiplication. The lines at the marks below are generated in
// limits.rs.
@group(0) @binding(0) var<uniform> turns: vec4<u32>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;

var<workgroup> factors: array<Element, SIDE * SIDE>;
// One matrix per subgroup.
var<workgroup> sums: array<f32, SUBGROUPS * SIDE * SIDE>;

@compute @workgroup_size(THREADS)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
    @builtin(subgroup_id) subgroup: u32,
    @builtin(subgroup_invocation_id) member: u32,
) {
    for (var i = thread; i < SIDE * SIDE; i += THREADS) { factors[i] = Element(f32(i % 7u) * 0.01); }
    for (var i = thread; i < SUBGROUPS * SIDE * SIDE; i += THREADS) { sums[i] = 0.0; }
    workgroupBarrier();
    let mine = subgroup * SIDE * SIDE;
    let a = coopLoadT<Rows>(&factors[0], SIDE);
    let b = coopLoad<Outputs>(&factors[0], SIDE);
// BEGIN
    for (var i = 0u; i < turns.y; i++) {
// MULTIPLY
    }
    var total = 0.0;
// END
    y[group.x * THREADS + thread] = total;
}
