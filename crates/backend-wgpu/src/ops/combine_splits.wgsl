// Combines the partial results of the KV splits of each head of a row. Each split has the sum of
// weighted values, the maximum score, and the sum of weights relative to that maximum. The order of
// all sums depends on sizes only.

struct Params {
    first_row: u32,
    rows: u32,
    heads: u32,
    splits: u32,
    y: u32, y_row: u32, y_head: u32,
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> partials: array<f32>;
@group(0) @binding(2) var<storage, read_write> y: array<f32>;

const NONE: f32 = -3.0e38;

const THREADS: u32 = 256u;
// Threads per column, which divide the splits: four.
const SHARING: u32 = THREADS / COLUMNS;
const CHUNKS: u32 = (VALUE_WIDTH + COLUMNS - 1u) / COLUMNS;

var<workgroup> numbers: array<f32, THREADS>;
// exp(maximum of the split - maximum of all splits).
var<workgroup> weights: array<f32, MAX_SPLITS>;

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let number = group.y * GRID_WIDTH + group.x;
    if (number >= params.rows * params.heads * CHUNKS) { return; }
    let pair = number / CHUNKS;
    let row = params.first_row + pair / params.heads;
    let head = pair % params.heads;
    let first = (row * params.heads + head) * params.splits * (VALUE_WIDTH + 2u);
    var own = NONE;
    for (var s = thread; s < params.splits; s += THREADS) {
        own = max(own, partials[first + s * (VALUE_WIDTH + 2u) + VALUE_WIDTH]);
    }
    numbers[thread] = own;
    workgroupBarrier();
    for (var half = THREADS / 2u; half > 0u; half /= 2u) {
        if (thread < half) { numbers[thread] = max(numbers[thread], numbers[thread + half]); }
        workgroupBarrier();
    }
    let most = numbers[0];
    // Every thread has read the maximum before the array is used again.
    workgroupBarrier();
    var total = 0.0;
    for (var s = thread; s < params.splits; s += THREADS) {
        let state = first + s * (VALUE_WIDTH + 2u) + VALUE_WIDTH;
        let weight = exp(partials[state] - most);
        weights[s] = weight;
        total += partials[state + 1u] * weight;
    }
    numbers[thread] = total;
    workgroupBarrier();
    for (var half = THREADS / 2u; half > 0u; half /= 2u) {
        if (thread < half) { numbers[thread] += numbers[thread + half]; }
        workgroupBarrier();
    }
    total = numbers[0];
    workgroupBarrier();
    let d = number % CHUNKS * COLUMNS + thread % COLUMNS;
    var sum = 0.0;
    if (d < VALUE_WIDTH) {
        for (var s = thread / COLUMNS; s < params.splits; s += SHARING) {
            sum += partials[first + s * (VALUE_WIDTH + 2u) + d] * weights[s];
        }
    }
    numbers[thread] = sum;
    workgroupBarrier();
    if (thread < COLUMNS && d < VALUE_WIDTH) {
        sum = (numbers[thread] + numbers[thread + COLUMNS]) + (numbers[thread + 2u * COLUMNS] + numbers[thread + 3u * COLUMNS]);
        y[params.y + row * params.y_row + head * params.y_head + d] = sum / total;
    }
}
