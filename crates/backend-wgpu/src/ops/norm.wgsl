
var<workgroup> squares: array<f32, THREADS>;

// 1 / √(mean x² + ε) of NORM_WIDTH elements, in every thread. `own` is the sum of squares of the
// thread's elements. The order of the sum depends on sizes only.
fn norm_factor(own: f32, thread: u32) -> f32 {
    squares[thread] = own;
    for (var half = THREADS / 2u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if (thread < half) { squares[thread] += squares[thread + half]; }
    }
    workgroupBarrier();
    return 1.0 / sqrt(squares[0] / f32(NORM_WIDTH) + EPS);
}
