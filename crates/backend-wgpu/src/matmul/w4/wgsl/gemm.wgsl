//= memory

// Double-buffered: one half is multiplied while the other is filled. Vectors of four inputs of a
// row, or of a column.
var<workgroup> x_tile: array<vec4<f32>, 2u * TILE_ROWS * ROW_UNITS>;
var<workgroup> w_tile: array<vec4<f32>, 2u * TILE_COLUMNS * ROW_UNITS>;

fn stash_values(column: u32, word: u32, w: Octet) {
  w_tile[unit_at(column, word * 2u)] = w.a;
  w_tile[unit_at(column, word * 2u + 1u)] = w.b;
}

fn store(row: u32, sums: vec4<f32>, column: u32, at: u32) {
  if row < p.rows {
    let first = at + row * p.y_stride;
    for (var j = 0u; j < 4u; j++) {
      let to = column + j * OUTPUT_STEP;
      if to < p.columns {
        y[first + to] = sums[j];
      }
    }
  }
}
//= begin
  let all_words = p.inputs / 8u;
  let slice = group.z;
  let begin = all_words * slice / p.slices;
  let end = all_words * (slice + 1u) / p.slices;
  let steps = (end - begin + TILE_WORDS - 1u) / TILE_WORDS;
  let first_row = group.y * TILE_ROWS;
  let first_column = group.x * TILE_COLUMNS;
  let x_row = thread % TILE_ROWS;
  let x_quad = thread / TILE_ROWS;
  let x_at = (p.x_first + min(first_row + x_row, p.rows - 1u) * p.x_stride) >> 2u;
  let column = thread % OUTPUT_STEP;
  let line = thread / OUTPUT_STEP;
  var sum_0 = vec4<f32>(0.0);
  var sum_1 = vec4<f32>(0.0);
  var sum_2 = vec4<f32>(0.0);
  var sum_3 = vec4<f32>(0.0);
//= end
  let at = p.y_first + slice * p.rows * p.columns;
  store(first_row + line, sum_0, first_column + column, at);
  store(first_row + line + ROW_STEP, sum_1, first_column + column, at);
  store(first_row + line + 2u * ROW_STEP, sum_2, first_column + column, at);
  store(first_row + line + 3u * ROW_STEP, sum_3, first_column + column, at);
}
