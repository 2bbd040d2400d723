// Finds the `keep` largest logits of a slice of a row, in no particular order, by a radix select. A
// workgroup determines the key of the smallest of these logits digit by digit, highest digit first:
// it counts how many candidates have each value of the next digit. Then it writes all logits with
// this key or a larger one. Among equal logits, lower tokens are preferred, as on the host.

struct Params {
    // Logits per row.
    items: u32,
    // Logits per slice.
    slice: u32,
    // Number of results per slice: pairs of a token and the bits of its logit.
    keep: u32,
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> source: array<u32>;
@group(0) @binding(2) var<storage, read_write> found: array<u32>;

const THREADS: u32 = 256u;
const DIGITS: u32 = 256u;
// Four digits of the logit, then four of the token. Tokens are part of the key, so that all keys
// differ and exactly `keep` are found.
const DIGITS_OF_KEY: u32 = 8u;
const EMPTY_PAIR: u32 = 0xffffffffu;
const MINUS_INFINITY: u32 = 0xff800000u;

var<workgroup> counts: array<atomic<u32>, DIGITS>;
// Number of candidates with this digit or a higher one.
var<workgroup> at_least: array<u32, DIGITS>;
// Digits found so far, of logit and token.
var<workgroup> bound: vec2<u32>;
// Number of results still to be found among the keys with these digits.
var<workgroup> left: u32;
var<workgroup> done: u32;
var<workgroup> places: atomic<u32>;

// Maps the bits of a logit to an integer with the same order. 0 stands for −∞ and NaN, which are
// never found. Negative numbers are complemented, since their bits are in reverse order. −0 is
// mapped like +0.
fn order_of(bits: u32) -> u32 {
    if ((bits & 0x7fffffffu) > 0x7f800000u || bits == MINUS_INFINITY) { return 0u; }
    if (bits >= 0x80000000u && bits != 0x80000000u) { return ~bits; }
    return bits | 0x80000000u;
}

// The key: the logit's order, then the complement of the token, so that lower tokens are larger.
fn key_of(at: u32) -> vec2<u32> {
    return vec2<u32>(order_of(bits_at(at)), ~token_at(at));
}

fn digit(key: vec2<u32>, nth: u32) -> u32 {
    return (select(key.y, key.x, nth < 4u) >> (24u - 8u * (nth % 4u))) & 255u;
}

// Whether the digits of a key before the nth are those found so far.
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
        // The load is also a barrier: it makes the zeroed counts visible before any thread adds to
        // them.
        if (workgroupUniformLoad(&done) != 0u) { break; }
        let known = workgroupUniformLoad(&bound);
        for (var at = first + thread; at < end; at += THREADS) {
            let key = key_of(at);
            if (matches(key, known, nth)) { atomicAdd(&counts[digit(key, nth)], 1u); }
        }
        workgroupBarrier();
        at_least[thread] = atomicLoad(&counts[thread]);
        // Suffix sums in log2(DIGITS) rounds. Two barriers per round: all threads must have read
        // before any adds, and have added before any reads again.
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
        // True for at most one thread: the sums decrease with the digit, so they cross `wanted`
        // once.
        if (above < wanted && here >= wanted) {
            let found_digit = thread << (24u - 8u * (nth % 4u));
            if (nth < 4u) { bound.x = known.x | found_digit; } else { bound.y = known.y | found_digit; }
            left = wanted - above;
            // All keys with these digits are results, so the remaining digits do not matter.
            if (here == wanted) { done = 1u; }
        }
        // Only in the first round can there be fewer candidates than wanted. Then all are results:
        // the bound (1, 0) excludes only −∞ and NaN, whose order is 0.
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
    // Unused places are marked, since the buffer still holds the results of an earlier call.
    for (var place = atomicLoad(&places) + thread; place < params.keep; place += THREADS) {
        found[2u * (results + place)] = EMPTY_PAIR;
        found[2u * (results + place) + 1u] = MINUS_INFINITY;
    }
}
