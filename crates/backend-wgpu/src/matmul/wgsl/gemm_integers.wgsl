//= memory

// Octets of int8 inputs of a row, or of quants of an output. A step of 32 inputs is one block of
// x_scales.
var<workgroup> x_tile: array<vec2<u32>, TILE_ROWS * ROW_UNITS>;
var<workgroup> w_tile: array<vec2<u32>, TILE_OUTPUTS * ROW_UNITS>;
var<workgroup> x_scales: array<f32, TILE_ROWS>;
// Sums of the inputs of each octet, for formats with minima.
var<workgroup> x_totals: array<i32, TILE_OCTETS * TILE_ROWS>;
// One scale per sixteen weights, the smallest sub-block of any format.
var<workgroup> w_scales: array<Scale, TILE_OCTETS / 2u * TILE_OUTPUTS>;

fn octet_dot(x: vec2<u32>, w: vec2<u32>) -> i32 {
  return dot4I8Packed(x.x, w.x) + dot4I8Packed(x.y, w.y);
}

fn dots(x: vec2<u32>, w_0: vec2<u32>, w_1: vec2<u32>, w_2: vec2<u32>, w_3: vec2<u32>) -> vec4<i32> {
  return vec4<i32>(octet_dot(x, w_0), octet_dot(x, w_1), octet_dot(x, w_2), octet_dot(x, w_3));
}
//= scales

fn scaled(sum: vec4<f32>, dots: vec4<i32>, half: u32, row: u32, column: u32) -> vec4<f32> {
  let at = half * TILE_OUTPUTS + column;
  let scales = vec4<f32>(
    w_scales[at],
    w_scales[at + OUTPUT_STEP],
    w_scales[at + 2u * OUTPUT_STEP],
    w_scales[at + 3u * OUTPUT_STEP],
  );
  return fma(scales * x_scales[row], vec4<f32>(dots), sum);
}
//= adds

// Σ x (scale · quant + minimum) = scale · Σ x · quant + minimum · Σ x.
fn scaled(sum: vec4<f32>, dots: vec4<i32>, half: u32, row: u32, column: u32) -> vec4<f32> {
  let at = half * TILE_OUTPUTS + column;
  let one = w_scales[at];
  let two = w_scales[at + OUTPUT_STEP];
  let three = w_scales[at + 2u * OUTPUT_STEP];
  let four = w_scales[at + 3u * OUTPUT_STEP];
  let total = f32(x_totals[2u * half * TILE_ROWS + row] + x_totals[(2u * half + 1u) * TILE_ROWS + row]);
  let added = vec4<f32>(one.y, two.y, three.y, four.y) * total;
  let terms = fma(vec4<f32>(one.x, two.x, three.x, four.x), vec4<f32>(dots), added);
  return fma(vec4<f32>(x_scales[row]), terms, sum);
}
//= load
  for (var start = 0u; start < octets; start += TILE_OCTETS) {
    for (var index = thread; index < TILE_ROWS * TILE_OCTETS; index += THREADS) {
      let i = min(index % TILE_ROWS, count - 1u);
      let octet = index / TILE_ROWS;
      let row = input_place(first_row + i, slot);
      let input = input_int8(row, start + octet);
      let quants = input.quants;
      x_tile[unit_at(index % TILE_ROWS, octet)] = quants;
      x_totals[index] = dot4I8Packed(quants.x, 0x01010101u) + dot4I8Packed(quants.y, 0x01010101u);
      if octet == 0u {
        x_scales[index % TILE_ROWS] = input.scale;
      }
    }
    for (var index = thread; index < TILE_OUTPUTS * TILE_OCTETS; index += THREADS) {
      let output = min(first + index % TILE_OUTPUTS, p.outputs - 1u);
      let octet = index / TILE_OUTPUTS;
      let block = weight_block(matrix, output, start + octet);
      let quants = block_quants(block, (start + octet) % BLOCK_OCTETS);
      w_tile[unit_at(index % TILE_OUTPUTS, octet)] = quants;
      if octet % 2u == 0u {
        w_scales[octet / 2u * TILE_OUTPUTS + index % TILE_OUTPUTS] = octet_scale(block, (start + octet) % BLOCK_OCTETS);
      }
    }
    workgroupBarrier();
    for (var half = 0u; half < TILE_OCTETS / 2u; half++) {
      var dots_0 = vec4<i32>(0);
      var dots_1 = vec4<i32>(0);
      var dots_2 = vec4<i32>(0);
      var dots_3 = vec4<i32>(0);
      for (var i = 0u; i < 2u; i++) {
//= multiply
        dots_0 += dots(x_0, w_0, w_1, w_2, w_3);
        dots_1 += dots(x_1, w_0, w_1, w_2, w_3);
        dots_2 += dots(x_2, w_0, w_1, w_2, w_3);
        dots_3 += dots(x_3, w_0, w_1, w_2, w_3);
      }
      sum_0 = scaled(sum_0, dots_0, half, line, column);
      sum_1 = scaled(sum_1, dots_1, half, line + ROW_STEP, column);
      sum_2 = scaled(sum_2, dots_2, half, line + 2u * ROW_STEP, column);
      sum_3 = scaled(sum_3, dots_3, half, line + 3u * ROW_STEP, column);
    }
    workgroupBarrier();
  }
