// The largest logits of a slice of a row, in no order: a workgroup finds the digits of the last that is among them, the highest first, by counting
// how many logits have each value of the next digit. Of equal logits those of the lower tokens are taken.

struct Params {
    // logits of a row, and logits of a slice
    items: u32,
    slice: u32,
    // how many are found: pairs of a token and the bits of its logit
    keep: u32,
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> source: array<u32>;
@group(0) @binding(2) var<storage, read_write> found: array<u32>;

const THREADS: u32 = 256u;
const DIGITS: u32 = 256u;
// four digits of the logit, then four of the token
const DIGITS_OF_KEY: u32 = 8u;
const EMPTY_PAIR: u32 = 0xffffffffu;
const MINUS_INFINITY: u32 = 0xff800000u;

var<workgroup> counts: array<atomic<u32>, DIGITS>;
// how many have this digit or a higher one
var<workgroup> at_least: array<u32, DIGITS>;
// digits found so far, of logit and token
var<workgroup> bound: vec2<u32>;
// how many are still to be found among those with these digits
var<workgroup> left: u32;
var<workgroup> done: u32;
var<workgroup> places: atomic<u32>;

// Ordered like the logits; 0 is −∞ or no number.
fn order_of(bits: u32) -> u32 {
    if ((bits & 0x7fffffffu) > 0x7f800000u || bits == MINUS_INFINITY) { return 0u; }
    if (bits >= 0x80000000u && bits != 0x80000000u) { return ~bits; }
    return bits | 0x80000000u;
}

// Larger first: the logit's order, and the tokens downwards.
fn key_of(at: u32) -> vec2<u32> {
    return vec2<u32>(order_of(bits_at(at)), ~token_at(at));
}

fn digit(key: vec2<u32>, nth: u32) -> u32 {
    return (select(key.y, key.x, nth < 4u) >> (24u - 8u * (nth % 4u))) & 255u;
}

// Whether the digits before the digit's are those that were found.
fn matches(key: vec2<u32>, known: vec2<u32>, nth: u32) -> bool {
    if (key.x == 0u) { return false; }
    if (nth == 0u) { return true; }
    let unknown = 32u - 8u * (nth % 4u);
    if (nth < 4u) { return key.x >> unknown == known.x >> unknown; }
    return key.x == known.x && (nth == 4u || key.y >> (unknown % 32u) == known.y >> (unknown % 32u));
}

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let row = group.y * params.items;
    let first = row + group.x * params.slice;
    let end = row + min((group.x + 1u) * params.slice, params.items);
    if (thread == 0u) {
        bound = vec2<u32>(0u, 0u);
        left = params.keep;
        done = 0u;
        atomicStore(&places, 0u);
    }
    for (var nth = 0u; nth < DIGITS_OF_KEY; nth++) {
        atomicStore(&counts[thread], 0u);
        if (workgroupUniformLoad(&done) != 0u) { break; }
        let known = workgroupUniformLoad(&bound);
        for (var at = first + thread; at < end; at += THREADS) {
            let key = key_of(at);
            if (matches(key, known, nth)) { atomicAdd(&counts[digit(key, nth)], 1u); }
        }
        workgroupBarrier();
        at_least[thread] = atomicLoad(&counts[thread]);
        for (var distance = 1u; distance < DIGITS; distance *= 2u) {
            workgroupBarrier();
            var more = 0u;
            if (thread + distance < DIGITS) { more = at_least[thread + distance]; }
            workgroupBarrier();
            at_least[thread] += more;
        }
        let wanted = workgroupUniformLoad(&left);
        let here = at_least[thread];
        var above = 0u;
        if (thread + 1u < DIGITS) { above = at_least[thread + 1u]; }
        workgroupBarrier();
        // one thread at most: counts of the others reach the wanted number above their digit, or not with it
        if (above < wanted && here >= wanted) {
            let found_digit = thread << (24u - 8u * (nth % 4u));
            if (nth < 4u) { bound.x = known.x | found_digit; } else { bound.y = known.y | found_digit; }
            left = wanted - above;
            // all with these digits are taken
            if (here == wanted) { done = 1u; }
        }
        // the first digit alone can have fewer than are wanted: all are taken
        if (thread == 0u && here < wanted) {
            bound = vec2<u32>(1u, 0u);
            done = 1u;
        }
        workgroupBarrier();
    }
    let last = workgroupUniformLoad(&bound);
    let results = (group.y * groups.x + group.x) * params.keep;
    for (var at = first + thread; at < end; at += THREADS) {
        let key = key_of(at);
        if (key.x > last.x || (key.x == last.x && key.y >= last.y)) {
            let place = results + atomicAdd(&places, 1u);
            found[2u * place] = token_at(at);
            found[2u * place + 1u] = bits_at(at);
        }
    }
    workgroupBarrier();
    for (var place = atomicLoad(&places) + thread; place < params.keep; place += THREADS) {
        found[2u * (results + place)] = EMPTY_PAIR;
        found[2u * (results + place) + 1u] = MINUS_INFINITY;
    }
}
