// Each subgroup multiplies its own matrices of small integers, which every element type holds
// exactly, and stores the product as the kernels of products do.
@group(0) @binding(0) var<uniform> words: vec4<u32>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;

const SQUARE = SIDE * SIDE;
const THREADS = SUBGROUPS * SUBGROUP;

var<workgroup> a: array<Element, SUBGROUPS * SQUARE>;
var<workgroup> b: array<Element, SUBGROUPS * SQUARE>;
var<workgroup> sums: array<f32, SUBGROUPS * SQUARE>;

@compute @workgroup_size(THREADS)
fn main(
    @builtin(local_invocation_index) thread: u32,
    @builtin(subgroup_id) subgroup: u32,
    @builtin(subgroup_invocation_id) member: u32,
) {
    for (var i = thread; i < SUBGROUPS * SQUARE; i += THREADS) {
        let matrix = i / SQUARE;
        let row = i / SIDE % SIDE;
        let column = i % SIDE;
        a[i] = Element(f32((3u * row + 5u * column + matrix) % 7u) - 3.0);
        b[i] = Element(f32((2u * row + 3u * column + 5u * matrix) % 11u) - 5.0);
        sums[i] = f32(row) - f32(2u * column);
    }
    workgroupBarrier();
    // If subgroups are smaller than expected, a workgroup has more of them. The index is bounded,
    // and the result is wrong, which the host detects.
    let mine = min(subgroup, SUBGROUPS - 1u) * SQUARE;
    let left = coopLoadT<Rows>(&a[mine], SIDE);
    let right = coopLoad<Outputs>(&b[mine], SIDE);
    var sum = coopLoadT<Sums>(&sums[mine], SIDE);
    for (var i = 0u; i < 2u; i++) {
        sum = coopMultiplyAdd(left, right, sum);
    }
    workgroupBarrier();
    coopStoreT(sum, &sums[mine], SIDE);
    workgroupBarrier();
    // If subgroups are smaller than expected, some elements are not written.
    for (var i = member; i < SQUARE; i += SUBGROUP) {
        if mine + i < words.x {
            y[mine + i] = sums[mine + i];
        }
    }
}
