//= sums

var<workgroup> sums: array<f32, ROWS * THREADS>;

fn dot_octet(row: u32, word: u32, w: Octet) -> f32 {
  let at = ((p.x_first + row * p.x_stride) >> 2u) + word * 2u;
  let four = fma(four_inputs(at + 1u), w.b, four_inputs(at) * w.a);
  return (four.x + four.y) + (four.z + four.w);
}
//= begin
  let lane = thread / COLUMNS;
  let column = group.x * COLUMNS + thread % COLUMNS;
  let inside = min(column, p.columns - 1u);
  let batch = group.y * ROWS;
  let words_k = p.inputs / 8u;
//= whole_groups
  for (var word = lane; word < words_k; word += LANES) {
    let at = group_of(word, inside);
    let scale = scale_at(at);
    let values = word_values(words[word * p.columns + inside]);
    let zero = zero_at(at);
    let w = Octet(values.a - zero, values.b - zero);
//= cut_groups
  for (var word = lane; word < words_k; word += LANES) {
    let scale = 1.0;
    let w = scaled_values(word_values(words[word * p.columns + inside]), word, inside, 1.0, 0.0);
//= reduce
  workgroupBarrier();
  for (var half = LANES / 2u; half > 0u; half /= 2u) {
    if lane < half {
      for (var i = 0u; i < ROWS; i++) {
        sums[i * THREADS + thread] += sums[i * THREADS + thread + half * COLUMNS];
      }
    }
    workgroupBarrier();
  }
  for (var i = lane; i < ROWS; i += LANES) {
    if batch + i < p.rows && column < p.columns {
      y[p.y_first + (batch + i) * p.y_stride + column] = sums[i * THREADS + thread % COLUMNS];
    }
  }
}
