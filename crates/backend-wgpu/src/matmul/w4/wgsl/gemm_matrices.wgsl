//= memory

// Double-buffered: one half is multiplied while the other is filled.
var<workgroup> x_tile: array<Element, 2u * TILE_ROWS * STRIDE>;
var<workgroup> w_tile: array<Element, 2u * TILE_OUTPUTS * STRIDE>;
// One matrix of results per subgroup, between coopStoreT and the store.
var<workgroup> results: array<f32, SUBGROUPS * SIDE * SIDE>;
//= fill

// `start` is the first word of the step, `end` the end of the slice.
fn fill(thread: u32, buffer: u32, start: u32, end: u32, first_row: u32, first_column: u32) {
  for (var index = thread; index < TILE_OUTPUTS * TILE_WORDS; index += THREADS) {
    let place = index % TILE_OUTPUTS;
    let line = index / TILE_OUTPUTS;
    let column = min(first_column + place, p.columns - 1u);
    let word = start + line;
    var o = Octet(vec4<f32>(0.0), vec4<f32>(0.0));
    if word < end {
      let at = group_of(word, column);
      o = scaled_values(word_values(words[word * p.columns + column]), word, column, scale_at(at), zero_at(at));
    }
    stash_weights((buffer * TILE_OUTPUTS + place) * STRIDE + line * 8u, Octet(o.a * p.f16_factor, o.b * p.f16_factor));
  }
  for (var index = thread; index < TILE_ROWS * TILE_WORDS; index += THREADS) {
    let line = index % TILE_WORDS;
    let row = index / TILE_WORDS;
    let word = start + line;
    var o = Octet(vec4<f32>(0.0), vec4<f32>(0.0));
    if word < end {
      let at = ((p.x_first + min(first_row + row, p.rows - 1u) * p.x_stride) >> 2u) + word * 2u;
      o = Octet(four_inputs(at), four_inputs(at + 1u));
    }
    stash_inputs((buffer * TILE_ROWS + row) * STRIDE + line * 8u, o);
  }
}
//= first
  let all_words = p.inputs / 8u;
  let slice = group.z;
  let first_word = all_words * slice / p.slices;
  let end = all_words * (slice + 1u) / p.slices;
  let steps = (end - first_word + TILE_WORDS - 1u) / TILE_WORDS;
  let first_row = group.y * TILE_ROWS;
  let first_column = group.x * TILE_OUTPUTS;
//= load
  fill(thread, 0u, first_word, end, first_row, first_column);
  workgroupBarrier();
  for (var step = 0u; step < steps; step++) {
    let buffer = step % 2u;
    fill(thread, 1u - buffer, first_word + (step + 1u) * TILE_WORDS, end, first_row, first_column);
//= store

// Stores the elements of a matrix that are inside of the results.
fn store(mine: u32, member: u32, at: vec2<u32>, first_row: u32, first_column: u32, slice: u32) {
  for (var i = member; i < SIDE * SIDE; i += SUBGROUP) {
    let row = first_row + at.x + i / SIDE;
    let column = first_column + at.y + i % SIDE;
    if row < p.rows && column < p.columns {
      y[p.y_first + slice * p.rows * p.columns + row * p.y_stride + column] = results[mine + i] / WEIGHT_FACTOR / p.f16_factor;
    }
  }
}
