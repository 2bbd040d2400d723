// Attention of up to QUERIES queries that read the same latents: heads of one row, or of several. A workgroup goes through the latents in tiles,
// which pass workgroup memory in slices, so that rows of any width fit.

const THREADS: u32 = 256u;
const TILE: u32 = 32u;
const SLICE: u32 = 64u;
// Queries of a thread, of a column of results: a vector of sums.
const GROUP: u32 = 4u;
// Rows of a tile that threads read at a time, and turns to read them all.
const ROW_STEP: u32 = THREADS / (SLICE / 4u);
const Q_TURNS: u32 = QUERIES / ROW_STEP;
const KV_TURNS: u32 = TILE / ROW_STEP;
const PAIRS: u32 = QUERIES * TILE / THREADS;
const VALUE_SLICES: u32 = (VALUE_WIDTH + SLICE - 1u) / SLICE;
// below every score
const NONE: f32 = -3.0e38;

struct Params {
    // where the tasks of this call stand
    task: u32,
    scales: u32,
    split_rows: u32,
    splits: u32,
    q: u32, q_row: u32, q_head: u32,
    y: u32, y_row: u32, y_head: u32,
    heads: u32,
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> step: array<u32>;
@group(0) @binding(2) var<storage, read> q: array<f32>;
@group(0) @binding(3) var<storage, read_write> y: array<f32>;

// four elements at a time; rows have four more, so that they begin in different banks
const FOURS: u32 = SLICE / 4u + 1u;
var<workgroup> q_tile: array<vec4<f32>, QUERIES * FOURS>;
var<workgroup> kv_tile: array<vec4<f32>, TILE * FOURS>;
// for each row of the tile, the weights of all queries
var<workgroup> p: array<f32, TILE * QUERIES>;
var<workgroup> running_max: array<f32, QUERIES>;
var<workgroup> running_sum: array<f32, QUERIES>;
var<workgroup> correction: array<f32, QUERIES>;

// Four elements; those behind the end of a row are zero.
fn query(at: u32, d: u32) -> vec4<f32> {
    let i = min(vec4<u32>(d) + vec4<u32>(0u, 1u, 2u, 3u), vec4<u32>(KEY_WIDTH - 1u));
    return below(vec4<f32>(q[at + i.x], q[at + i.y], q[at + i.z], q[at + i.w]), d, KEY_WIDTH);
}
fn latents(slot: u32, d: u32, width: u32) -> vec4<f32> {
    let i = min(vec4<u32>(d) + vec4<u32>(0u, 1u, 2u, 3u), vec4<u32>(width - 1u));
    return below(vec4<f32>(cached(slot, i.x), cached(slot, i.y), cached(slot, i.z), cached(slot, i.w)), d, width);
}
fn below(elements: vec4<f32>, d: u32, width: u32) -> vec4<f32> {
    return select(vec4<f32>(0.0), elements, vec4<u32>(d) + vec4<u32>(0u, 1u, 2u, 3u) < vec4<u32>(width));
}

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let task = params.task + group.x * TASK_WORDS;
    let span_row = step[task];
    let first_query = step[task + 1u];
    let count = step[task + 2u];
    let blocks = step[task + 3u];
    let past = step[task + 4u];
    let split = group.y;
    let end = min(past + (first_query + count - 1u) / SHARING + 1u, (split + 1u) * params.split_rows);

    if (thread < QUERIES) {
        running_max[thread] = NONE;
        running_sum[thread] = 0.0;
    }
    let column = thread % SLICE;
    // a thread reads four elements of a row at a time
    let four = thread % (SLICE / 4u);
    let first_row = thread / (SLICE / 4u);
    // the queries that this thread reads
    var queries: array<u32, Q_TURNS>;
    for (var i = 0u; i < Q_TURNS; i++) {
        let n = first_row + i * ROW_STEP;
        let flat = first_query + min(n, count - 1u);
        queries[i] = params.q + (span_row + flat / SHARING) * params.q_row + flat % SHARING * params.q_head;
    }
    let first_of_group = thread / SLICE * GROUP;
    var sums: array<vec4<f32>, VALUE_SLICES>;
    for (var slice = 0u; slice < VALUE_SLICES; slice++) { sums[slice] = vec4<f32>(0.0); }

    for (var first = split * params.split_rows; first < end; first += TILE) {
        var scores: array<f32, PAIRS>;
        for (var i = 0u; i < PAIRS; i++) { scores[i] = 0.0; }
        // the rows that this thread reads, in every slice
        var slots: array<u32, KV_TURNS>;
        for (var i = 0u; i < KV_TURNS; i++) {
            let j = first + first_row + i * ROW_STEP;
            slots[i] = slot_of(blocks, min(j, end - 1u));
        }
        // the next slice is on its way while one is computed with
        var next_q: array<vec4<f32>, Q_TURNS>;
        var next_kv: array<vec4<f32>, KV_TURNS>;
        for (var i = 0u; i < Q_TURNS; i++) { next_q[i] = query(queries[i], 4u * four); }
        for (var i = 0u; i < KV_TURNS; i++) { next_kv[i] = latents(slots[i], 4u * four, KEY_WIDTH); }
        for (var d0 = 0u; d0 < KEY_WIDTH; d0 += SLICE) {
            workgroupBarrier();
            for (var i = 0u; i < Q_TURNS; i++) { q_tile[(first_row + i * ROW_STEP) * FOURS + four] = next_q[i]; }
            for (var i = 0u; i < KV_TURNS; i++) { kv_tile[(first_row + i * ROW_STEP) * FOURS + four] = next_kv[i]; }
            workgroupBarrier();
            let d1 = d0 + SLICE + 4u * four;
            if (d0 + SLICE < KEY_WIDTH) {
                for (var i = 0u; i < Q_TURNS; i++) { next_q[i] = query(queries[i], d1); }
                for (var i = 0u; i < KV_TURNS; i++) { next_kv[i] = latents(slots[i], d1, KEY_WIDTH); }
            } else {
                // the first values
                for (var i = 0u; i < KV_TURNS; i++) { next_kv[i] = latents(slots[i], 4u * four, VALUE_WIDTH); }
            }
            // a row of the tile against several queries
            for (var d = 0u; d < SLICE / 4u; d++) {
                let k = kv_tile[thread % TILE * FOURS + d];
                for (var i = 0u; i < PAIRS; i++) {
                    let x = q_tile[(thread + i * THREADS) / TILE * FOURS + d];
                    scores[i] = fma(x.w, k.w, fma(x.z, k.z, fma(x.y, k.y, fma(x.x, k.x, scores[i]))));
                }
            }
        }
        for (var i = 0u; i < PAIRS; i++) {
            let n = (thread + i * THREADS) / TILE;
            let t = (thread + i * THREADS) % TILE;
            let of_span = (first_query + n) / SHARING;
            var score = NONE;
            if (n < count && first + t <= past + of_span && first + t < end) {
                score = scores[i] * bitcast<f32>(step[params.scales + span_row + of_span]);
            }
            p[t * QUERIES + n] = score;
        }
        workgroupBarrier();
        if (thread < QUERIES) {
            let before = running_max[thread];
            var most = before;
            for (var t = 0u; t < TILE; t++) { most = max(most, p[t * QUERIES + thread]); }
            var sum = 0.0;
            for (var t = 0u; t < TILE; t++) {
                let score = p[t * QUERIES + thread];
                let weight = select(0.0, exp(score - most), score > NONE);
                p[t * QUERIES + thread] = weight;
                sum += weight;
            }
            let kept = select(0.0, exp(before - most), before > NONE);
            correction[thread] = kept;
            running_max[thread] = most;
            running_sum[thread] = running_sum[thread] * kept + sum;
        }
        workgroupBarrier();
        let kept = vec4<f32>(correction[first_of_group], correction[first_of_group + 1u], correction[first_of_group + 2u], correction[first_of_group + 3u]);
        for (var slice = 0u; slice < VALUE_SLICES; slice++) {
            workgroupBarrier();
            for (var i = 0u; i < KV_TURNS; i++) { kv_tile[(first_row + i * ROW_STEP) * FOURS + four] = next_kv[i]; }
            workgroupBarrier();
            for (var i = 0u; i < KV_TURNS; i++) { next_kv[i] = latents(slots[i], (slice + 1u) * SLICE + 4u * four, VALUE_WIDTH); }
            var sum = sums[slice] * kept;
            for (var t = 0u; t < TILE; t++) {
                let at = t * QUERIES + first_of_group;
                let weights = vec4<f32>(p[at], p[at + 1u], p[at + 2u], p[at + 3u]);
                sum = fma(weights, vec4<f32>(kv_tile[t * FOURS + column / 4u][column % 4u]), sum);
            }
            sums[slice] = sum;
        }
    }
    workgroupBarrier();
    for (var g = 0u; g < GROUP; g++) {
        let n = first_of_group + g;
        if (n < count) {
            let flat = first_query + n;
            let row = span_row + flat / SHARING;
            let head = flat % SHARING;
            for (var slice = 0u; slice < VALUE_SLICES; slice++) {
                let d = slice * SLICE + column;
                if (d < VALUE_WIDTH) { keep(row, head, split, d, sums[slice][g], running_sum[n]); }
            }
            if (column == 0u) { keep_state(row, head, split, running_max[n], running_sum[n]); }
        }
    }
}
