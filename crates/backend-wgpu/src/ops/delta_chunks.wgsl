// The delta rule over the chunks of a run of rows. Π denotes products of decays over rows. T and QK
// come from `delta_scores.wgsl`. For a chunk with state S: U = T (V − (K Π_{t≤i} e^g) S), out = (Q
// Π_{t≤i} e^g) S + QK U, S ← Π_t e^g S + Σⱼ (kⱼ Π_{t>j} e^g) uⱼᵀ. A workgroup holds some columns of
// a head's state in workgroup memory from the first chunk to the last, so the state is read and
// written once.

struct Params {
    // Index of the runs' words in `step`.
    runs: u32,
    heads: u32,
    // Groups of columns per head.
    parts: u32,
    groups: u32,
    q: u32, q_row: u32, q_head: u32,
    k: u32, k_row: u32, k_head: u32,
    v: u32, v_row: u32, v_head: u32,
    g: u32, g_row: u32, g_head: u32,
    y: u32, y_row: u32, y_head: u32,
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> step: array<u32>;
@group(0) @binding(2) var<storage, read> q: array<f32>;
@group(0) @binding(3) var<storage, read> k: array<f32>;
@group(0) @binding(4) var<storage, read> v: array<f32>;
@group(0) @binding(5) var<storage, read> g: array<f32>;
@group(0) @binding(6) var<storage, read> scores: array<f32>;
@group(0) @binding(7) var<storage, read_write> y: array<f32>;
@group(0) @binding(8) var<storage, read_write> states: array<f32>;

const THREADS: u32 = 64u;
// Vectors of four rows of keys, and the same number for queries.
const BLOCKS: u32 = CHUNK / 4u;
// Threads that divide the sums over a state's rows.
const SPLITS: u32 = THREADS / (2u * BLOCKS * VECTORS);
// Rows of the state whose factors are in workgroup memory at a time.
const TILE: u32 = 32u;
// Vectors from one row to the next, padded by one against bank conflicts.
const STRIDE: u32 = 2u * BLOCKS + 1u;
const COLUMNS: u32 = 4u * VECTORS;

// The state's columns, as vectors of four.
var<workgroup> matrix: array<vec4<f32>, WIDTH * VECTORS>;
// Used in turn for the factors of keys and queries, for the sums of each thread, and for U.
var<workgroup> factors: array<vec4<f32>, TILE * STRIDE>;
var<workgroup> solution: array<vec4<f32>, CHUNK * BLOCKS>;
var<workgroup> reading: array<vec4<f32>, CHUNK * BLOCKS>;
var<workgroup> rest: array<vec4<f32>, CHUNK * VECTORS>;

fn write(slot: u32, head: u32, first_column: u32, thread: u32) {
    let base = (slot * params.heads + head) * WIDTH * WIDTH;
    for (var n = thread; n < WIDTH * COLUMNS; n += THREADS) {
        let column = first_column + n % COLUMNS;
        if (column < WIDTH) { states[base + n / COLUMNS * WIDTH + column] = matrix[n / 4u][n % 4u]; }
    }
}

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let number = group.y * GRID_WIDTH + group.x;
    if (number >= params.groups) { return; }
    let run = params.runs + number / (params.parts * params.heads) * RUN_WORDS;
    let head = number / params.parts % params.heads;
    let first_column = number % params.parts * COLUMNS;
    let chunks = step[run];
    let count = step[run + 1u];
    let before = step[run + 2u];
    let vector = thread % VECTORS;
    let block = thread / VECTORS % (2u * BLOCKS);
    let split = thread / (VECTORS * 2u * BLOCKS);
    // The chunk's row of this thread, if less than CHUNK.
    let line = thread / VECTORS;
    let column = first_column + 4u * vector;
    for (var n = thread; n < WIDTH * VECTORS; n += THREADS) {
        var old = vec4<f32>();
        if (before != NO_SLOT) {
            let base = (before * params.heads + head) * WIDTH * WIDTH + n / VECTORS * WIDTH;
            let at = first_column + n % VECTORS * 4u;
            for (var i = 0u; i < 4u; i++) {
                if (at + i < WIDTH) { old[i] = states[base + at + i]; }
            }
        }
        matrix[n] = old;
    }
    for (var chunk = 0u; chunk < count; chunk++) {
        let words = chunks + chunk * CHUNK_WORDS;
        let first = step[words];
        let rows = step[words + 1u];
        let kept = step[words + 2u];
        let q_at = params.q + first * params.q_row + head * params.q_head;
        let k_at = params.k + first * params.k_row + head * params.k_head;
        let g_at = params.g + first * params.g_row + head * params.g_head;
        // Four elements of T and QK per thread, loaded early to hide the latency.
        var of_solution = vec4<f32>();
        var of_reading = vec4<f32>();
        if (thread / BLOCKS < rows) {
            let at = ((first + thread / BLOCKS) * params.heads + head) * 2u * CHUNK + thread % BLOCKS * 4u;
            of_solution = vec4(scores[at], scores[at + 1u], scores[at + 2u], scores[at + 3u]);
            let next = at + CHUNK;
            of_reading = vec4(scores[next], scores[next + 1u], scores[next + 2u], scores[next + 3u]);
        }
        var sum_0 = vec4<f32>();
        var sum_1 = vec4<f32>();
        var sum_2 = vec4<f32>();
        var sum_3 = vec4<f32>();
        for (var tile = 0u; tile < WIDTH; tile += TILE) {
            workgroupBarrier();
            // One half of the threads computes factors of keys, the other those of queries.
            let channel = min(tile + thread % TILE, WIDTH - 1u);
            let asks = thread / TILE;
            var faded = 1.0;
            for (var b = 0u; b < BLOCKS; b++) {
                var factor = vec4<f32>();
                for (var i = 0u; i < 4u; i++) {
                    let row = min(4u * b + i, rows - 1u);
                    var x = 0.0;
                    if (asks == 0u) { x = k[k_at + row * params.k_row + channel]; }
                    else { x = q[q_at + row * params.q_row + channel]; }
                    faded *= exp(g[g_at + row * params.g_row + channel]);
                    factor[i] = select(0.0, faded * x, 4u * b + i < rows);
                }
                factors[thread % TILE * STRIDE + asks * BLOCKS + b] = factor;
            }
            workgroupBarrier();
            let end = min((split + 1u) * (TILE / SPLITS), WIDTH - tile);
            for (var c = split * (TILE / SPLITS); c < end; c++) {
                let factor = factors[c * STRIDE + block];
                let state = matrix[(tile + c) * VECTORS + vector];
                sum_0 += factor.x * state;
                sum_1 += factor.y * state;
                sum_2 += factor.z * state;
                sum_3 += factor.w * state;
            }
        }
        workgroupBarrier();
        let sums = (split * 2u * CHUNK + block * 4u) * VECTORS + vector;
        factors[sums] = sum_0;
        factors[sums + VECTORS] = sum_1;
        factors[sums + 2u * VECTORS] = sum_2;
        factors[sums + 3u * VECTORS] = sum_3;
        solution[thread] = of_solution;
        reading[thread] = of_reading;
        workgroupBarrier();
        var answer = vec4<f32>();
        if (line < CHUNK) {
            var remaining = vec4<f32>();
            if (line < rows) {
                let value = params.v + (first + line) * params.v_row + head * params.v_head;
                for (var i = 0u; i < 4u; i++) {
                    if (column + i < WIDTH) { remaining[i] = v[value + column + i]; }
                }
            }
            for (var s = 0u; s < SPLITS; s++) {
                remaining -= factors[(s * 2u * CHUNK + line) * VECTORS + vector];
                answer += factors[(s * 2u * CHUNK + CHUNK + line) * VECTORS + vector];
            }
            rest[line * VECTORS + vector] = remaining;
        }
        workgroupBarrier();
        if (line < CHUNK) {
            var change = vec4<f32>();
            for (var b = 0u; b <= line / 4u; b++) {
                let by = solution[line * BLOCKS + b];
                let at = 4u * b * VECTORS + vector;
                change += by.x * rest[at];
                change += by.y * rest[at + VECTORS];
                change += by.z * rest[at + 2u * VECTORS];
                change += by.w * rest[at + 3u * VECTORS];
            }
            factors[line * VECTORS + vector] = change;
        }
        workgroupBarrier();
        if (line < rows) {
            for (var b = 0u; b <= line / 4u; b++) {
                let by = reading[line * BLOCKS + b];
                let at = 4u * b * VECTORS + vector;
                answer += by.x * factors[at];
                answer += by.y * factors[at + VECTORS];
                answer += by.z * factors[at + 2u * VECTORS];
                answer += by.w * factors[at + 3u * VECTORS];
            }
            let to = params.y + (first + line) * params.y_row + head * params.y_head;
            for (var i = 0u; i < 4u; i++) {
                if (column + i < WIDTH) { y[to + column + i] = answer[i]; }
            }
        }
        // A thread updates whole rows of the state. Decays are multiplied from the last row
        // backwards: nothing is divided by a decay, which may underflow to 0.
        for (var c = thread; c < WIDTH; c += THREADS) {
            var faded = 1.0;
            var new_0 = vec4<f32>();
            var new_1 = vec4<f32>();
            var new_2 = vec4<f32>();
            var new_3 = vec4<f32>();
            for (var after = (rows + 3u) / 4u; after > 0u; after--) {
                for (var i = 4u; i > 0u; i--) {
                    let row = 4u * after + i - 5u;
                    let near = min(row, rows - 1u);
                    let key = k[k_at + near * params.k_row + c];
                    let decay = exp(g[g_at + near * params.g_row + c]);
                    let factor = select(0.0, faded * key, row < rows);
                    faded *= select(1.0, decay, row < rows);
                    new_0 += factor * factors[row * VECTORS];
                    if (VECTORS > 1u) { new_1 += factor * factors[row * VECTORS + 1u]; }
                    if (VECTORS > 2u) {
                        new_2 += factor * factors[row * VECTORS + 2u];
                        new_3 += factor * factors[row * VECTORS + 3u];
                    }
                }
            }
            matrix[c * VECTORS] = faded * matrix[c * VECTORS] + new_0;
            if (VECTORS > 1u) { matrix[c * VECTORS + 1u] = faded * matrix[c * VECTORS + 1u] + new_1; }
            if (VECTORS > 2u) {
                matrix[c * VECTORS + 2u] = faded * matrix[c * VECTORS + 2u] + new_2;
                matrix[c * VECTORS + 3u] = faded * matrix[c * VECTORS + 3u] + new_3;
            }
        }
        if (kept != NO_SLOT) {
            workgroupBarrier();
            write(kept, head, first_column, thread);
        }
    }
    workgroupBarrier();
    write(step[run + 3u], head, first_column, thread);
}
