// One workgroup copies one row and rotates its rope parts. All words are read before any is
// written, since both slots may be the same. One workgroup, because barriers do not span
// workgroups.

struct Params {
    source: u32,
    to: u32,
    // Cosine and sine of each pair, two pairs at a time.
    @align(16) angles: array<vec4<f32>, ANGLES>,
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read_write> cache: array<u32>;

const THREADS: u32 = 256u;
const OWN: u32 = (ROW_WORDS + THREADS - 1u) / THREADS;

fn element(row: u32, i: u32) -> f32 {
    let within = i % HEAD_WIDTH;
    if (within < ROPE_AT || within >= ROPE_AT + 2u * PAIRS) { return cached(row, i); }
    let rope = i - within + ROPE_AT;
    let at = within - ROPE_AT;
    let pair = pair_of(at);
    let turns = params.angles[pair / 2u];
    let turn = select(turns.xy, turns.zw, pair % 2u == 1u);
    let turned = rotated(cached(row, rope + first_of(pair)), cached(row, rope + second_of(pair)), turn);
    return select(turned.x, turned.y, is_second(at));
}

@compute @workgroup_size(THREADS)
fn main(@builtin(local_invocation_index) thread: u32) {
    var words: array<u32, OWN>;
    for (var i = 0u; i < OWN; i++) {
        let word = thread + i * THREADS;
        if (word < ROW_WORDS) { words[i] = packed(params.source, word); }
    }
    storageBarrier();
    for (var i = 0u; i < OWN; i++) {
        let word = thread + i * THREADS;
        if (word < ROW_WORDS) { cache[params.to * ROW_WORDS + word] = words[i]; }
    }
}
