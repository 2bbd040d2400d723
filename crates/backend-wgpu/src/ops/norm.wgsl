
var<workgroup> squares: array<f32, THREADS>;

// 1 / √(mean x² + ε) of NORM_WIDTH elements, in every thread; a thread has added the squares of its own.
fn norm_factor(own: f32, thread: u32) -> f32 {
    squares[thread] = own;
    for (var half = THREADS / 2u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if (thread < half) { squares[thread] += squares[thread + half]; }
    }
    workgroupBarrier();
    return 1.0 / sqrt(squares[0] / f32(NORM_WIDTH) + EPS);
}
