// SiLU of a causal convolution over time, with a thread per channel of a span. The state holds the
// previous inputs, oldest first.

struct Params {
    // Index of the spans' words in `step`, and the number of spans.
    spans: u32,
    count: u32,
    channels: u32,
    // Third of the state: queries, keys or values.
    third: u32,
    x: u32, x_row: u32,
    y: u32, y_row: u32,
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> step: array<u32>;
@group(0) @binding(2) var<storage, read> x: array<f32>;
@group(0) @binding(3) var<storage, read> taps: array<f32>;
@group(0) @binding(4) var<storage, read_write> y: array<f32>;
@group(0) @binding(5) var<storage, read_write> states: array<f32>;

const PAST: u32 = TAPS - 1u;

fn state_of(slot: u32, channel: u32) -> u32 {
    return (slot * 3u + params.third) * PAST * params.channels + channel;
}

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let at = (group.y * GRID_WIDTH + group.x) * 64u + thread;
    if (at >= params.count * params.channels) { return; }
    let span = params.spans + at / params.channels * SPAN_WORDS;
    let channel = at % params.channels;
    let first = step[span];
    let before = step[span + 2u];
    let kept = step[span + 4u];
    let kept_at = step[span + 5u];
    var past: array<f32, PAST>;
    for (var i = 0u; i < PAST; i++) {
        past[i] = 0.0;
        if (before != NO_SLOT) { past[i] = states[state_of(before, channel) + i * params.channels]; }
    }
    var next = 0u;
    for (var done = 0u; done < step[span + 1u]; done++) {
        let row = first + done;
        let now = x[params.x + row * params.x_row + channel];
        var sum = 0.0;
        for (var i = 0u; i < PAST; i++) { sum += taps[channel * TAPS + i] * past[i]; }
        sum += taps[channel * TAPS + PAST] * now;
        y[params.y + row * params.y_row + channel] = sum / (1.0 + exp(-sum));
        for (var i = 0u; i + 1u < PAST; i++) { past[i] = past[i + 1u]; }
        past[PAST - 1u] = now;
        if (next < kept && step[kept_at + 2u * next] == done + 1u) {
            let slot = step[kept_at + 2u * next + 1u];
            for (var i = 0u; i < PAST; i++) { states[state_of(slot, channel) + i * params.channels] = past[i]; }
            next++;
        }
    }
    for (var i = 0u; i < PAST; i++) { states[state_of(step[span + 3u], channel) + i * params.channels] = past[i]; }
}
