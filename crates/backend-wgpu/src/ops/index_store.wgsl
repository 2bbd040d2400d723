// The key of an indexer: LayerNorm with weight and bias, then rotation of the first pairs by the
// row's position.

@group(0) @binding(5) var<storage, read> gain: array<f32>;
@group(0) @binding(6) var<storage, read> bias: array<f32>;

var<workgroup> shared_sums: array<f32, THREADS>;
var<private> mean: f32;
var<private> factor: f32;

fn total(own: f32, thread: u32) -> f32 {
    // All threads have read the result of an earlier call.
    workgroupBarrier();
    shared_sums[thread] = own;
    for (var half = THREADS / 2u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if (thread < half) { shared_sums[thread] += shared_sums[thread + half]; }
    }
    workgroupBarrier();
    return shared_sums[0];
}

fn raw(row: u32, i: u32) -> f32 { return x[params.x + row * params.x_row + i]; }

fn prepare(row: u32, thread: u32) {
    var sum = 0.0;
    for (var i = thread; i < ROW_WIDTH; i += THREADS) { sum += raw(row, i); }
    mean = total(sum, thread) / f32(ROW_WIDTH);
    // Two passes: Σx² − n·mean² would lose digits.
    var squares = 0.0;
    for (var i = thread; i < ROW_WIDTH; i += THREADS) {
        let distance = raw(row, i) - mean;
        squares += distance * distance;
    }
    factor = 1.0 / sqrt(total(squares, thread) / f32(ROW_WIDTH) + EPS);
}

fn normed(row: u32, i: u32) -> f32 { return (raw(row, i) - mean) * factor * gain[i] + bias[i]; }

fn element(row: u32, i: u32) -> f32 {
    if (i >= 2u * PAIRS) { return normed(row, i); }
    let pair = pair_of(i);
    let turn = params.angles + (row * PAIRS + pair) * 2u;
    let angle = vec2<f32>(bitcast<f32>(step[turn]), bitcast<f32>(step[turn + 1u]));
    let turned = rotated(normed(row, first_of(pair)), normed(row, second_of(pair)), angle);
    return select(turned.x, turned.y, is_second(i));
}
