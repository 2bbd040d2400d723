// The positions of the TOPK largest scores of a row, in ascending order. Among equal scores, the
// earliest are selected, as on the CPU. A workgroup per row finds the smallest selected score eight
// bits at a time (radix select), then writes the positions in order with prefix sums.

const THREADS: u32 = 256u;

struct Params {
    first_row: u32,
    rows: u32,
    span_row: u32,
    past: u32,
    kv_len: u32,
    y: u32, y_row: u32,
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> scores: array<f32>;
@group(0) @binding(2) var<storage, read_write> y: array<u32>;

var<workgroup> counts: array<atomic<u32>, 256>;
var<workgroup> scan: array<u32, THREADS>;
var<workgroup> least: u32;
var<workgroup> wanted: u32;

// Maps a score to an integer with the same order. −0 would be below +0, but no score is −0: the sum
// of `index_scores.wgsl` begins with +0.
fn ordered(number: u32, j: u32) -> u32 {
    let bits = bitcast<u32>(scores[number * params.kv_len + j]);
    return select(bits | 0x80000000u, ~bits, bits >> 31u == 1u);
}

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let number = group.y * GRID_WIDTH + group.x;
    if (number >= params.rows) { return; }
    let row = params.first_row + number;
    let seen = params.past + row - params.span_row + 1u;
    if (thread == 0u) {
        least = 0u;
        wanted = TOPK;
    }
    for (var turn = 0u; turn < 4u; turn++) {
        let shift = 24u - 8u * turn;
        atomicStore(&counts[thread], 0u);
        workgroupBarrier();
        let above = least;
        for (var j = thread; j < seen; j += THREADS) {
            let bits = ordered(number, j);
            // In the first turn all scores are candidates. The shift would be by 32 bits, which
            // WGSL reduces to 0.
            if (turn == 0u || (bits >> (shift + 8u)) == (above >> (shift + 8u))) {
                atomicAdd(&counts[(bits >> shift) & 255u], 1u);
            }
        }
        workgroupBarrier();
        if (thread == 0u) {
            var left = wanted;
            var bin = 255u;
            while (bin > 0u && atomicLoad(&counts[bin]) < left) {
                left -= atomicLoad(&counts[bin]);
                bin--;
            }
            wanted = left;
            least = above | bin << shift;
        }
        workgroupBarrier();
    }
    let threshold = least;
    let equal_wanted = wanted;
    // Numbers of larger and of equal scores before this tile.
    var larger = 0u;
    var equal = 0u;
    let tiles = (seen + THREADS - 1u) / THREADS;
    for (var tile = 0u; tile < tiles; tile++) {
        let j = tile * THREADS + thread;
        let bits = ordered(number, min(j, seen - 1u));
        let is_larger = select(0u, 1u, j < seen && bits > threshold);
        let is_equal = select(0u, 1u, j < seen && bits == threshold);
        workgroupBarrier();
        // Both counts in one word: each is at most 256.
        scan[thread] = is_larger | is_equal << 16u;
        for (var distance = 1u; distance < THREADS; distance *= 2u) {
            workgroupBarrier();
            let before = select(0u, scan[max(thread, distance) - distance], thread >= distance);
            workgroupBarrier();
            scan[thread] += before;
        }
        workgroupBarrier();
        let own = scan[thread];
        let all = scan[THREADS - 1u];
        let equal_before = equal + (own >> 16u) - is_equal;
        let at = larger + (own & 0xffffu) - is_larger + min(equal_before, equal_wanted);
        if (is_larger == 1u || is_equal == 1u && equal_before < equal_wanted) {
            y[params.y + row * params.y_row + at] = j;
        }
        larger += all & 0xffffu;
        equal += all >> 16u;
    }
}
