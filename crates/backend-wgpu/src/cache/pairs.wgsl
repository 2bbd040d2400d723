
// Pairs of elements that are rotated together: neighbours (interleaved), or one element of each
// half (NeoX).

fn pair_of(i: u32) -> u32 { return select(i % max(PAIRS, 1u), i / 2u, INTERLEAVED); }
fn is_second(i: u32) -> bool { return select(i >= PAIRS, i % 2u == 1u, INTERLEAVED); }
fn first_of(pair: u32) -> u32 { return select(pair, 2u * pair, INTERLEAVED); }
fn second_of(pair: u32) -> u32 { return select(pair + PAIRS, 2u * pair + 1u, INTERLEAVED); }

// Turn: cosine and sine.
fn rotated(a: f32, b: f32, turn: vec2<f32>) -> vec2<f32> {
    return vec2<f32>(a * turn.x - b * turn.y, a * turn.y + b * turn.x);
}
