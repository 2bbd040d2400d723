// The logarithm of the decay of each channel: −a · softplus(z + b), or bound · σ(a · (z + b)).

struct Params {
    first_row: u32,
    rows: u32,
    channels: u32,
    y: u32, y_row: u32,
    x: u32, x_row: u32,
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(3) var<storage, read> rates: array<f32>;
@group(0) @binding(4) var<storage, read> bias: array<f32>;

// ln(1 + e^−z) for z ≥ 0. WGSL has no log1p: for small e^−z, the sum 1 + e^−z keeps few of its
// digits, so a series is used.
fn tail(z: f32) -> f32 {
    let e = exp(-z);
    let series = e * (1.0 - e * (0.5 - e * (1.0 / 3.0 - e * (0.25 - e * 0.2))));
    return select(log(1.0 + e), series, e < 0.02);
}

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let at = (group.y * GRID_WIDTH + group.x) * 64u + thread;
    if (at >= params.rows * params.channels) { return; }
    let row = params.first_row + at / params.channels;
    let channel = at % params.channels;
    let to = params.y + row * params.y_row + channel;
    let z = element(params.x + row * params.x_row + channel, to) + bias[channel];
    var rate = abs(rates[channel / WIDTH]);
    if (LOG_RATE) { rate = exp(rates[channel / WIDTH]); }
    if (BOUNDED) {
        y[to] = BOUND / (1.0 + exp(-rate * z));
    } else {
        y[to] = -rate * (max(z, 0.0) + tail(abs(z)));
    }
}
