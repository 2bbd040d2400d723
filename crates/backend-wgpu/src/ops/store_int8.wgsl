// Writes rows of the KV cache with a workgroup per row: the content as bytes biased by 128 with one
// scale per row, the rope part as f16.

const THREADS: u32 = 64u;
const INFINITY: u32 = 0x7f800000u;
const NAN: u32 = 0x7fc00000u;

// Bits of magnitudes compare like integers. NaN is above all numbers, so one maximum finds it too.
var<workgroup> largest: array<u32, THREADS>;
var<workgroup> scale_bits: u32;
var<workgroup> inverse_scale: f32;

// A / b of positive numbers, rounded to nearest even as on the CPU. WGSL allows an error of 2.5 ULP
// in a division, and the same rows must have the same bytes on every device. 0 if it would
// overflow.
fn quotient(a: f32, b: f32) -> f32 {
    let divisor = (bitcast<u32>(b) & 0x7fffffu) | 0x800000u;
    var rest = (bitcast<u32>(a) & 0x7fffffu) | 0x800000u;
    var exponent = i32(bitcast<u32>(a) >> 23u) - i32(bitcast<u32>(b) >> 23u) + 127;
    if (rest < divisor) {
        rest *= 2u;
        exponent -= 1;
    }
    // Long division: 24 bits and one for rounding.
    var bits = 0u;
    for (var i = 0u; i < 25u; i++) {
        bits *= 2u;
        if (rest >= divisor) {
            bits += 1u;
            rest -= divisor;
        }
        rest *= 2u;
    }
    let up = bits % 2u == 1u && (rest != 0u || bits % 4u == 3u);
    // A subnormal result has fewer bits. Rows of models are not that small, so it need not be
    // exact.
    if (exponent <= 0) { return a / b; }
    let found = (u32(exponent) << 23u) + bits / 2u - 0x800000u + select(0u, 1u, up);
    return select(bitcast<f32>(found), 0.0, found >= INFINITY);
}

fn quant(row: u32, i: u32) -> u32 {
    if (scale_bits == NAN) { return 128u; }
    return u32(i32(round(element(row, i) * inverse_scale)) + 128);
}

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let number = group.y * GRID_WIDTH + group.x;
    if (number >= params.rows) { return; }
    let row = params.first_row + number;
    prepare(row, thread);
    var most = 0u;
    for (var i = thread; i < CONTENT; i += THREADS) {
        most = max(most, bitcast<u32>(element(row, i)) & 0x7fffffffu);
    }
    largest[thread] = most;
    for (var half = THREADS / 2u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if (thread < half) { largest[thread] = max(largest[thread], largest[thread + half]); }
    }
    if (thread == 0u) {
        let magnitude = bitcast<f32>(largest[0]);
        if (largest[0] >= INFINITY) {
            scale_bits = NAN;
        } else if (largest[0] == 0u) {
            scale_bits = 0u;
            inverse_scale = 0.0;
        } else {
            scale_bits = bitcast<u32>(quotient(magnitude, 127.0));
            inverse_scale = quotient(127.0, magnitude);
        }
    }
    workgroupBarrier();
    let to = step[params.slots + row] * ROW_WORDS;
    for (var word = thread; word < CONTENT / 4u; word += THREADS) {
        let i = 4u * word;
        cache[to + word] = quant(row, i) | quant(row, i + 1u) << 8u | quant(row, i + 2u) << 16u | quant(row, i + 3u) << 24u;
    }
    let rope = CONTENT / 4u;
    for (var word = rope + thread; word < ROW_WORDS - 1u; word += THREADS) {
        let i = CONTENT + 2u * (word - rope);
        cache[to + word] = pack2x16float(vec2<f32>(element(row, i), element(row, i + 1u)));
    }
    if (thread == 0u) { cache[to + ROW_WORDS - 1u] = scale_bits; }
}
