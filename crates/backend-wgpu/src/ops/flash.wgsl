// Flash attention of up to QUERIES rows of one head to a range of keys and values of that head.
// Until the last key of a task, unnormalized sums are in y, and running maxima and sums in the
// states, from which the next call continues. Tiles after a task's last query are skipped (causal
// mask).

const THREADS: u32 = 128u;
const TILE: u32 = 32u;
const SLICE: u32 = 16u;
// Register tile: a thread computes four queries × every eighth key (or column of the values).
const OWN_QUERIES: u32 = 4u;
const LANES: u32 = 8u;
const OWN_KEYS: u32 = TILE / LANES;
const OWN_COLUMNS: u32 = SLICE / LANES;
const VALUE_SLICES: u32 = (VALUE_WIDTH + SLICE - 1u) / SLICE;
const OWN_SUMS: u32 = OWN_QUERIES * OWN_COLUMNS;
// Below every score. Not -infinity, because WGSL lets devices assume that it does not occur.
const NONE: f32 = -3.0e38;

struct Params {
    // Index of the tasks of this call in `step`.
    task: u32,
    first_key: u32,
    end_key: u32,
    scales: u32,
    heads: u32,
    q: u32, q_row: u32, q_head: u32,
    r: u32, r_row: u32, r_head: u32,
    y: u32, y_row: u32, y_head: u32,
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> step: array<u32>;
@group(0) @binding(2) var<storage, read> q: array<f32>;
@group(0) @binding(3) var<storage, read_write> y: array<f32>;
// Running maximum and sum of each head of each row.
@group(0) @binding(8) var<storage, read_write> states: array<f32>;

// Rows are padded by one element, so that they begin in different memory banks.
var<workgroup> q_tile: array<f32, QUERIES * (SLICE + 1u)>;
var<workgroup> kv_tile: array<f32, TILE * (SLICE + 1u)>;
var<workgroup> p: array<f32, QUERIES * (TILE + 1u)>;
var<workgroup> running_max: array<f32, QUERIES>;
var<workgroup> running_sum: array<f32, QUERIES>;
var<workgroup> correction: array<f32, QUERIES>;

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let task = params.task + group.x * TASK_WORDS;
    let first_query = step[task + 1u];
    let first_row = step[task] + first_query;
    let count = step[task + 2u];
    let blocks = step[task + 3u];
    // Position of the first query, and the end of the keys of the last query.
    let position = step[task + 4u] + first_query;
    let end = position + count;
    let end_here = min(end, params.end_key);
    let head = group.y;
    let own = thread / LANES * OWN_QUERIES;
    let lane = thread % LANES;
    // An earlier call has left states to continue from.
    let begun = params.first_key > 0u;

    if (thread < QUERIES) {
        var most = NONE;
        var sum = 0.0;
        if (begun && thread < count) {
            let state = 2u * ((first_row + thread) * params.heads + head);
            most = states[state];
            sum = states[state + 1u];
        }
        running_max[thread] = most;
        running_sum[thread] = sum;
    }
    var sums: array<f32, VALUE_SLICES * OWN_SUMS>;
    for (var slice = 0u; slice < VALUE_SLICES; slice++) {
        for (var i = 0u; i < OWN_SUMS; i++) {
            let n = own + i / OWN_COLUMNS;
            let d = slice * SLICE + lane + i % OWN_COLUMNS * LANES;
            var before = 0.0;
            if (begun && n < count && d < VALUE_WIDTH) {
                before = y[params.y + (first_row + n) * params.y_row + head * params.y_head + d];
            }
            sums[slice * OWN_SUMS + i] = before;
        }
    }

    for (var first = params.first_key; first < end_here; first += TILE) {
        var scores: array<f32, OWN_QUERIES * OWN_KEYS>;
        for (var i = 0u; i < OWN_QUERIES * OWN_KEYS; i++) { scores[i] = 0.0; }
        for (var d0 = 0u; d0 < KEY_WIDTH; d0 += SLICE) {
            workgroupBarrier();
            for (var e = thread; e < QUERIES * SLICE; e += THREADS) {
                let n = e / SLICE;
                let d = d0 + e % SLICE;
                var element = 0.0;
                if (n < count && d < KEY_WIDTH) { element = query(first_row + n, head, d); }
                q_tile[n * (SLICE + 1u) + e % SLICE] = element;
            }
            for (var e = thread; e < TILE * SLICE; e += THREADS) {
                let j = first + e / SLICE;
                let d = d0 + e % SLICE;
                var element = 0.0;
                if (j < end_here && d < KEY_WIDTH) { element = key(blocks, j, head, d); }
                kv_tile[e / SLICE * (SLICE + 1u) + e % SLICE] = element;
            }
            workgroupBarrier();
            if (own < count) {
                for (var d = 0u; d < SLICE; d++) {
                    var keys: array<f32, OWN_KEYS>;
                    for (var t = 0u; t < OWN_KEYS; t++) { keys[t] = kv_tile[(lane + t * LANES) * (SLICE + 1u) + d]; }
                    for (var n = 0u; n < OWN_QUERIES; n++) {
                        let element = q_tile[(own + n) * (SLICE + 1u) + d];
                        for (var t = 0u; t < OWN_KEYS; t++) { scores[n * OWN_KEYS + t] += element * keys[t]; }
                    }
                }
            }
        }
        for (var n = 0u; n < OWN_QUERIES; n++) {
            for (var t = 0u; t < OWN_KEYS; t++) {
                let j = first + lane + t * LANES;
                var score = NONE;
                if (own + n < count && j <= position + own + n && j < end_here) {
                    score = scores[n * OWN_KEYS + t] * bitcast<f32>(step[params.scales + first_row + own + n]);
                }
                scores[n * OWN_KEYS + t] = score;
                p[(own + n) * (TILE + 1u) + lane + t * LANES] = score;
            }
        }
        workgroupBarrier();
        // Online softmax: if the maximum grows, earlier sums are multiplied by exp(before - most).
        if (thread < QUERIES) {
            let before = running_max[thread];
            var most = before;
            for (var t = 0u; t < TILE; t++) { most = max(most, p[thread * (TILE + 1u) + t]); }
            correction[thread] = select(0.0, exp(before - most), before > NONE);
            running_max[thread] = most;
        }
        workgroupBarrier();
        for (var n = 0u; n < OWN_QUERIES; n++) {
            let most = running_max[own + n];
            for (var t = 0u; t < OWN_KEYS; t++) {
                let score = scores[n * OWN_KEYS + t];
                p[(own + n) * (TILE + 1u) + lane + t * LANES] = select(0.0, exp(score - most), score > NONE);
            }
        }
        for (var slice = 0u; slice < VALUE_SLICES; slice++) {
            workgroupBarrier();
            for (var e = thread; e < TILE * SLICE; e += THREADS) {
                let j = first + e / SLICE;
                let d = slice * SLICE + e % SLICE;
                var element = 0.0;
                if (j < end_here && d < VALUE_WIDTH) { element = value(blocks, j, head, d); }
                kv_tile[e / SLICE * (SLICE + 1u) + e % SLICE] = element;
            }
            workgroupBarrier();
            if (own < count) {
                var here: array<f32, OWN_SUMS>;
                for (var i = 0u; i < OWN_SUMS; i++) {
                    here[i] = sums[slice * OWN_SUMS + i] * correction[own + i / OWN_COLUMNS];
                }
                for (var t = 0u; t < TILE; t++) {
                    var columns: array<f32, OWN_COLUMNS>;
                    for (var c = 0u; c < OWN_COLUMNS; c++) { columns[c] = kv_tile[t * (SLICE + 1u) + lane + c * LANES]; }
                    for (var n = 0u; n < OWN_QUERIES; n++) {
                        let weight = p[(own + n) * (TILE + 1u) + t];
                        for (var c = 0u; c < OWN_COLUMNS; c++) { here[n * OWN_COLUMNS + c] += weight * columns[c]; }
                    }
                }
                for (var i = 0u; i < OWN_SUMS; i++) { sums[slice * OWN_SUMS + i] = here[i]; }
            }
        }
        // Here and not with the maxima: the weights in p are complete only after the barriers
        // above.
        if (thread < QUERIES) {
            var sum = 0.0;
            for (var t = 0u; t < TILE; t++) { sum += p[thread * (TILE + 1u) + t]; }
            running_sum[thread] = running_sum[thread] * correction[thread] + sum;
        }
    }
    workgroupBarrier();
    let done = end <= params.end_key;
    for (var slice = 0u; slice < VALUE_SLICES; slice++) {
        for (var i = 0u; i < OWN_SUMS; i++) {
            let n = own + i / OWN_COLUMNS;
            let d = slice * SLICE + lane + i % OWN_COLUMNS * LANES;
            if (n < count && d < VALUE_WIDTH) {
                let to = params.y + (first_row + n) * params.y_row + head * params.y_head + d;
                y[to] = sums[slice * OWN_SUMS + i] / select(1.0, running_sum[n], done);
            }
        }
    }
    if (thread < count) {
        let state = 2u * ((first_row + thread) * params.heads + head);
        states[state] = running_max[thread];
        states[state + 1u] = running_sum[thread];
    }
}
