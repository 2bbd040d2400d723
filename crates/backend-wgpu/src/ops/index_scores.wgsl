// Indexer scores of the cached tokens that a row sees: Σ_h w_h · max(0, q_h · k). A thread per
// token.

const THREADS: u32 = 64u;
// Heads whose queries are in workgroup memory at a time. A key's element is loaded once for all of
// them.
const GROUP: u32 = 8u;

struct Params {
    first_row: u32,
    // First row of the span, and the sequence's rows before the step.
    span_row: u32,
    past: u32,
    kv_len: u32,
    blocks: u32,
    angles: u32,
    q: u32, q_row: u32,
    w: u32, w_row: u32,
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> step: array<u32>;
@group(0) @binding(2) var<storage, read> q: array<f32>;
@group(0) @binding(3) var<storage, read> w: array<f32>;
@group(0) @binding(4) var<storage, read> cache: array<u32>;
@group(0) @binding(5) var<storage, read_write> scores: array<f32>;

var<workgroup> queries: array<f32, GROUP * ROW_WIDTH>;

fn query(row: u32, head: u32, i: u32) -> f32 {
    let source = params.q + row * params.q_row + head * ROW_WIDTH;
    if (i >= 2u * PAIRS) { return q[source + i]; }
    let pair = pair_of(i);
    let turn = params.angles + (row * PAIRS + pair) * 2u;
    let angle = vec2<f32>(bitcast<f32>(step[turn]), bitcast<f32>(step[turn + 1u]));
    let turned = rotated(q[source + first_of(pair)], q[source + second_of(pair)], angle);
    return select(turned.x, turned.y, is_second(i));
}

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let row = params.first_row + group.y;
    let position = params.past + row - params.span_row;
    if (group.x * THREADS > position) { return; }
    // Threads after the last token compute it again instead of returning, because every thread must
    // reach the barriers.
    let j = group.x * THREADS + thread;
    let slot = slot_of(params.blocks, min(j, position));
    var score = 0.0;
    for (var head = 0u; head < HEADS; head += GROUP) {
        workgroupBarrier();
        for (var i = thread; i < GROUP * ROW_WIDTH; i += THREADS) {
            queries[i] = 0.0;
            if (head + i / ROW_WIDTH < HEADS) { queries[i] = query(row, head + i / ROW_WIDTH, i % ROW_WIDTH); }
        }
        workgroupBarrier();
        var sums: array<f32, GROUP>;
        for (var g = 0u; g < GROUP; g++) { sums[g] = 0.0; }
        for (var i = 0u; i < ROW_WIDTH; i++) {
            let key = cached(slot, i);
            for (var g = 0u; g < GROUP; g++) { sums[g] += queries[g * ROW_WIDTH + i] * key; }
        }
        for (var g = 0u; g < GROUP; g++) {
            if (head + g < HEADS) { score += w[params.w + row * params.w_row + head + g] * max(sums[g], 0.0); }
        }
    }
    if (j <= position) { scores[group.y * params.kv_len + j] = score; }
}
