// Selects the experts of a row and their weights, with one workgroup per row. Among equal scores,
// the lower expert is selected, as on the CPU.

struct Params {
    first_row: u32,
    rows: u32,
    x: u32, x_row: u32,
    ids: u32,
    weights: u32,
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read_write> ids: array<u32>;
@group(0) @binding(3) var<storage, read_write> weights: array<f32>;

const THREADS: u32 = 64u;
// Below every score: already selected, or masked.
const NONE: f32 = -3.0e38;

var<workgroup> score: array<f32, EXPERTS>;
var<workgroup> choice: array<f32, EXPERTS>;
var<workgroup> best: array<f32, THREADS>;
var<workgroup> best_at: array<u32, THREADS>;
var<workgroup> chosen: array<u32, USED>;
var<workgroup> group_score: array<f32, GROUPS>;

fn reduce_max(thread: u32) {
    for (var half = THREADS / 2u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if (thread < half) { best[thread] = max(best[thread], best[thread + half]); }
    }
    workgroupBarrier();
}

fn reduce_sum(thread: u32) {
    for (var half = THREADS / 2u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if (thread < half) { best[thread] += best[thread + half]; }
    }
    workgroupBarrier();
}

// Replaces the scores by their softmax.
fn softmax(thread: u32) {
    var most = NONE;
    for (var e = thread; e < EXPERTS; e += THREADS) { most = max(most, score[e]); }
    best[thread] = most;
    reduce_max(thread);
    let largest = best[0];
    workgroupBarrier();
    var sum = 0.0;
    for (var e = thread; e < EXPERTS; e += THREADS) {
        score[e] = exp(score[e] - largest);
        sum += score[e];
    }
    best[thread] = sum;
    reduce_sum(thread);
    let total = best[0];
    workgroupBarrier();
    for (var e = thread; e < EXPERTS; e += THREADS) { score[e] /= total; }
}

// Masks the experts of all groups but the best ones. Depending on the model they cannot be
// selected, or count as 0.
fn keep_best_groups(thread: u32) {
    let size = EXPERTS / GROUPS;
    for (var g = thread; g < GROUPS; g += THREADS) {
        var first = NONE;
        var second = NONE;
        for (var e = g * size; e < (g + 1u) * size; e++) {
            if (choice[e] > first) {
                second = first;
                first = choice[e];
            } else if (choice[e] > second) {
                second = choice[e];
            }
        }
        group_score[g] = select(first, first + second, TOP_TWO);
    }
    workgroupBarrier();
    for (var g = thread; g < GROUPS; g += THREADS) {
        var before = 0u;
        for (var other = 0u; other < GROUPS; other++) {
            let larger = group_score[other] > group_score[g];
            let same = group_score[other] == group_score[g] && other < g;
            before += select(0u, 1u, larger || same);
        }
        if (before >= GROUPS_USED) {
            for (var e = g * size; e < (g + 1u) * size; e++) { choice[e] = MASKED; }
        }
    }
    workgroupBarrier();
}

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let number = group.y * GRID_WIDTH + group.x;
    if (number >= params.rows) { return; }
    let row = params.first_row + number;
    for (var e = thread; e < EXPERTS; e += THREADS) {
        score[e] = gate(x[params.x + row * params.x_row + e]);
    }
    if (SOFTMAX) { softmax(thread); }
    for (var e = thread; e < EXPERTS; e += THREADS) { choice[e] = score[e] + bias(e); }
    workgroupBarrier();
    if (GROUPS_USED < GROUPS) { keep_best_groups(thread); }
    for (var k = 0u; k < USED; k++) {
        var most = NONE;
        var at = EXPERTS;
        for (var e = thread; e < EXPERTS; e += THREADS) {
            if (choice[e] > most) {
                most = choice[e];
                at = e;
            }
        }
        best[thread] = most;
        best_at[thread] = at;
        for (var half = THREADS / 2u; half > 0u; half /= 2u) {
            workgroupBarrier();
            if (thread < half) {
                let other = best[thread + half];
                let lower = other == best[thread] && best_at[thread + half] < best_at[thread];
                if (other > best[thread] || lower) {
                    best[thread] = other;
                    best_at[thread] = best_at[thread + half];
                }
            }
        }
        workgroupBarrier();
        if (thread == 0u) {
            // If only NaN scores are left, no comparison succeeds. An index is still needed, since
            // it addresses workgroup memory and weights.
            let found = select(k, best_at[0], best_at[0] < EXPERTS);
            chosen[k] = found;
            choice[found] = NONE;
        }
        workgroupBarrier();
    }
    if (thread == 0u) {
        var sum = 0.0;
        var most = NONE;
        for (var k = 0u; k < USED; k++) { most = max(most, score[chosen[k]]); }
        for (var k = 0u; k < USED; k++) {
            let s = score[chosen[k]];
            sum += select(s, exp(s - most), OF_SELECTED);
        }
        for (var k = 0u; k < USED; k++) {
            let s = score[chosen[k]];
            var weight = select(s, exp(s - most) / sum, OF_SELECTED);
            // A softmax over the selected experts already has the sum 1.
            if (NORMALISE) { weight /= max(select(sum, 1.0, OF_SELECTED), NORM_FLOOR); }
            ids[params.ids + row * USED + k] = chosen[k];
            weights[params.weights + row * USED + k] = weight * SCALE;
        }
    }
}
