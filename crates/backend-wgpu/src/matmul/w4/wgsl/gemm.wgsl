//= memory

// two buffers of each: while one is multiplied, the other is filled
var<workgroup> x_tile: array<f32, 2u * TILE_INPUTS * TILE_ROWS>;
var<workgroup> w_tile: array<f32, 2u * TILE_INPUTS * TILE_COLUMNS>;

fn stash_values(at: u32, w: Octet) {
  w_tile[at] = w.a.x;
  w_tile[at + TILE_COLUMNS] = w.a.y;
  w_tile[at + 2u * TILE_COLUMNS] = w.a.z;
  w_tile[at + 3u * TILE_COLUMNS] = w.a.w;
  w_tile[at + 4u * TILE_COLUMNS] = w.b.x;
  w_tile[at + 5u * TILE_COLUMNS] = w.b.y;
  w_tile[at + 6u * TILE_COLUMNS] = w.b.z;
  w_tile[at + 7u * TILE_COLUMNS] = w.b.w;
}

fn store(row: u32, sums: vec4<f32>, column: u32, at: u32) {
  if row < p.rows {
    let first = at + row * p.y_stride;
    for (var j = 0u; j < 4u; j++) {
      let to = column + j * COLUMN_STEP;
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
  let column = thread % COLUMN_STEP;
  let line = thread / COLUMN_STEP;
  var sum_0 = vec4<f32>(0.0);
  var sum_1 = vec4<f32>(0.0);
  var sum_2 = vec4<f32>(0.0);
  var sum_3 = vec4<f32>(0.0);
//= multiply
    for (var i = 0u; i < TILE_INPUTS; i++) {
      let w_at = (buffer * TILE_INPUTS + i) * TILE_COLUMNS + column;
      let w = vec4<f32>(
        w_tile[w_at],
        w_tile[w_at + COLUMN_STEP],
        w_tile[w_at + 2u * COLUMN_STEP],
        w_tile[w_at + 3u * COLUMN_STEP],
      );
      let x_place = (buffer * TILE_INPUTS + i) * TILE_ROWS + line;
      sum_0 = fma(vec4<f32>(x_tile[x_place]), w, sum_0);
      sum_1 = fma(vec4<f32>(x_tile[x_place + ROW_STEP]), w, sum_1);
      sum_2 = fma(vec4<f32>(x_tile[x_place + 2u * ROW_STEP]), w, sum_2);
      sum_3 = fma(vec4<f32>(x_tile[x_place + 3u * ROW_STEP]), w, sum_3);
    }
//= end
  let at = p.y_first + slice * p.rows * p.columns;
  store(first_row + line, sum_0, first_column + column, at);
  store(first_row + line + ROW_STEP, sum_1, first_column + column, at);
  store(first_row + line + 2u * ROW_STEP, sum_2, first_column + column, at);
  store(first_row + line + 3u * ROW_STEP, sum_3, first_column + column, at);
}
