// Attention of up to QUERIES queries that read the same latents: heads of one or more rows. A
// workgroup visits the latents in tiles of TILE rows. Each tile passes through workgroup memory in
// slices of SLICE elements, so that rows of any width fit the 16 KiB that every device has.

const THREADS: u32 = 256u;
// Cached rows per tile.
const TILE: u32 = 32u;
// Elements of a row per slice.
const SLICE: u32 = 64u;
// Queries per thread in a column of results.
const GROUP: u32 = QUERIES * SLICE / THREADS;
// Rows of a tile that all threads read in one turn, and the number of turns.
const ROW_STEP: u32 = THREADS / SLICE;
const Q_TURNS: u32 = QUERIES / ROW_STEP;
const KV_TURNS: u32 = TILE / ROW_STEP;
const PLACE_STEP: u32 = ROW_STEP * (SLICE + 1u);
const PAIRS: u32 = QUERIES * TILE / THREADS;
const VALUE_SLICES: u32 = (VALUE_WIDTH + SLICE - 1u) / SLICE;
// Below every score. Not -infinity, because WGSL lets devices assume that it does not occur.
const NONE: f32 = -3.0e38;

struct Params {
    // Index of the tasks of this call in `step`.
    task: u32,
    scales: u32,
    split_rows: u32,
    splits: u32,
    q: u32, q_row: u32, q_head: u32,
    y: u32, y_row: u32, y_head: u32,
    heads: u32,
    selected: u32, selected_row: u32,
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> step: array<u32>;
@group(0) @binding(2) var<storage, read> q: array<f32>;
@group(0) @binding(3) var<storage, read_write> y: array<f32>;

// Rows are padded by one element, so that they begin in different memory banks.
var<workgroup> q_tile: array<f32, QUERIES * (SLICE + 1u)>;
var<workgroup> kv_tile: array<f32, TILE * (SLICE + 1u)>;
var<workgroup> p: array<f32, QUERIES * (TILE + 1u)>;
var<workgroup> running_max: array<f32, QUERIES>;
var<workgroup> running_sum: array<f32, QUERIES>;
var<workgroup> correction: array<f32, QUERIES>;

// Elements after the end of a row are zero. The address is clamped before the load, so that it
// stays inside of the row without a branch.
fn query(at: u32, d: u32) -> f32 {
    return select(0.0, q[at + min(d, KEY_WIDTH - 1u)], d < KEY_WIDTH);
}
fn key(slot: u32, d: u32) -> f32 {
    return select(0.0, cached(slot, min(d, KEY_WIDTH - 1u)), d < KEY_WIDTH);
}
fn value(slot: u32, d: u32) -> f32 {
    return select(0.0, cached(slot, min(d, VALUE_WIDTH - 1u)), d < VALUE_WIDTH);
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
    let seen = past + (first_query + count - 1u) / SHARING + 1u;
    let end = min(min(seen, MAX_ATTENDED), (split + 1u) * params.split_rows);
    // Selected tokens belong to one row, so with them all queries of a task are heads of one row.
    let list = params.selected + (span_row + first_query / SHARING) * params.selected_row;

    if (thread < QUERIES) {
        running_max[thread] = NONE;
        running_sum[thread] = 0.0;
    }
    let column = thread % SLICE;
    let first_row = thread / SLICE;
    let place = first_row * (SLICE + 1u) + column;
    // Addresses of the queries that this thread loads.
    var queries: array<u32, Q_TURNS>;
    for (var i = 0u; i < Q_TURNS; i++) {
        let n = first_row + i * ROW_STEP;
        let flat = first_query + min(n, count - 1u);
        queries[i] = params.q + (span_row + flat / SHARING) * params.q_row + flat % SHARING * params.q_head;
    }
    let first_of_group = thread / SLICE * GROUP;
    var sums: array<f32, VALUE_SLICES * GROUP>;
    for (var i = 0u; i < VALUE_SLICES * GROUP; i++) { sums[i] = 0.0; }

    for (var first = split * params.split_rows; first < end; first += TILE) {
        var scores: array<f32, PAIRS>;
        for (var i = 0u; i < PAIRS; i++) { scores[i] = 0.0; }
        // Slots of the cached rows that this thread loads in every slice.
        var slots: array<u32, KV_TURNS>;
        for (var i = 0u; i < KV_TURNS; i++) {
            let j = first + first_row + i * ROW_STEP;
            slots[i] = slot_of(blocks, attended(list, seen, min(j, end - 1u)));
        }
        // Software pipeline: the next slice is loaded to registers while the current one is used.
        var next_q: array<f32, Q_TURNS>;
        var next_kv: array<f32, KV_TURNS>;
        for (var i = 0u; i < Q_TURNS; i++) { next_q[i] = query(queries[i], column); }
        for (var i = 0u; i < KV_TURNS; i++) { next_kv[i] = key(slots[i], column); }
        for (var d0 = 0u; d0 < KEY_WIDTH; d0 += SLICE) {
            // All threads have finished with the previous slice (or with p and the last values).
            workgroupBarrier();
            for (var i = 0u; i < Q_TURNS; i++) { q_tile[place + i * PLACE_STEP] = next_q[i]; }
            for (var i = 0u; i < KV_TURNS; i++) { kv_tile[place + i * PLACE_STEP] = next_kv[i]; }
            workgroupBarrier();
            let d1 = d0 + SLICE + column;
            if (d0 + SLICE < KEY_WIDTH) {
                for (var i = 0u; i < Q_TURNS; i++) { next_q[i] = query(queries[i], d1); }
                for (var i = 0u; i < KV_TURNS; i++) { next_kv[i] = key(slots[i], d1); }
            } else {
                // After the last keys, the first slice of values.
                for (var i = 0u; i < KV_TURNS; i++) { next_kv[i] = value(slots[i], column); }
            }
            for (var i = 0u; i < PAIRS; i++) {
                let n = (thread + i * THREADS) / TILE;
                let t = (thread + i * THREADS) % TILE;
                if (n < count) {
                    var sum = scores[i];
                    for (var d = 0u; d < SLICE; d++) {
                        sum += q_tile[n * (SLICE + 1u) + d] * kv_tile[t * (SLICE + 1u) + d];
                    }
                    scores[i] = sum;
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
            p[n * (TILE + 1u) + t] = score;
        }
        workgroupBarrier();
        if (thread < QUERIES) {
            // Online softmax: if the maximum grows, earlier sums are multiplied by exp(before -
            // most).
            let before = running_max[thread];
            var most = before;
            for (var t = 0u; t < TILE; t++) { most = max(most, p[thread * (TILE + 1u) + t]); }
            var sum = 0.0;
            for (var t = 0u; t < TILE; t++) {
                let score = p[thread * (TILE + 1u) + t];
                let weight = select(0.0, exp(score - most), score > NONE);
                p[thread * (TILE + 1u) + t] = weight;
                sum += weight;
            }
            let kept = select(0.0, exp(before - most), before > NONE);
            correction[thread] = kept;
            running_max[thread] = most;
            running_sum[thread] = running_sum[thread] * kept + sum;
        }
        for (var slice = 0u; slice < VALUE_SLICES; slice++) {
            // Before the writes: all reads of kv_tile are done. After them: kv_tile, p and
            // correction can be read.
            workgroupBarrier();
            for (var i = 0u; i < KV_TURNS; i++) { kv_tile[place + i * PLACE_STEP] = next_kv[i]; }
            workgroupBarrier();
            for (var i = 0u; i < KV_TURNS; i++) { next_kv[i] = value(slots[i], (slice + 1u) * SLICE + column); }
            for (var g = 0u; g < GROUP; g++) {
                let n = first_of_group + g;
                var sum = sums[slice * GROUP + g] * correction[n];
                for (var t = 0u; t < TILE; t++) {
                    sum += p[n * (TILE + 1u) + t] * kv_tile[t * (SLICE + 1u) + column];
                }
                sums[slice * GROUP + g] = sum;
            }
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
                if (d < VALUE_WIDTH) { keep(row, head, split, d, sums[slice * GROUP + g], running_sum[n]); }
            }
            if (column == 0u) { keep_state(row, head, split, running_max[n], running_sum[n]); }
        }
    }
}
