//= memory

// words of four inputs, then rows or outputs
var<workgroup> x_tile: array<u32, TILE_INPUTS / 4u * TILE_ROWS>;
var<workgroup> w_tile: array<u32, TILE_INPUTS / 4u * TILE_OUTPUTS>;
var<workgroup> x_scales: array<f32, TILE_ROWS>;
// sums of octets
var<workgroup> x_totals: array<i32, TILE_OCTETS * TILE_ROWS>;
// one for sixteen weights
var<workgroup> w_scales: array<Scale, TILE_OCTETS / 2u * TILE_OUTPUTS>;
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

// what is added to each weight is multiplied with the sum of the inputs
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
      let quants = input_quants(row, start + octet);
      let at = octet * 2u * TILE_ROWS + index % TILE_ROWS;
      x_tile[at] = quants.x;
      x_tile[at + TILE_ROWS] = quants.y;
      x_totals[index] = dot4I8Packed(quants.x, 0x01010101u) + dot4I8Packed(quants.y, 0x01010101u);
      if octet == 0u {
        x_scales[index % TILE_ROWS] = input_scale(row, start);
      }
    }
    for (var index = thread; index < TILE_OUTPUTS * TILE_OCTETS; index += THREADS) {
      let output = min(first + index % TILE_OUTPUTS, p.outputs - 1u);
      let octet = index / TILE_OUTPUTS;
      let block = weight_block(matrix, output, start + octet);
      let quants = block_quants(block, (start + octet) % BLOCK_OCTETS);
      let at = octet * 2u * TILE_OUTPUTS + index % TILE_OUTPUTS;
      w_tile[at] = quants.x;
      w_tile[at + TILE_OUTPUTS] = quants.y;
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
      for (var word = half * 4u; word < half * 4u + 4u; word++) {
        let at = word * TILE_OUTPUTS + column;
        let w_0 = w_tile[at];
        let w_1 = w_tile[at + OUTPUT_STEP];
        let w_2 = w_tile[at + 2u * OUTPUT_STEP];
        let w_3 = w_tile[at + 3u * OUTPUT_STEP];
        let place = word * TILE_ROWS + line;
        let x_0 = x_tile[place];
        let x_1 = x_tile[place + ROW_STEP];
        let x_2 = x_tile[place + 2u * ROW_STEP];
        let x_3 = x_tile[place + 3u * ROW_STEP];
        dots_0 += vec4<i32>(dot4I8Packed(x_0, w_0), dot4I8Packed(x_0, w_1), dot4I8Packed(x_0, w_2), dot4I8Packed(x_0, w_3));
        dots_1 += vec4<i32>(dot4I8Packed(x_1, w_0), dot4I8Packed(x_1, w_1), dot4I8Packed(x_1, w_2), dot4I8Packed(x_1, w_3));
        dots_2 += vec4<i32>(dot4I8Packed(x_2, w_0), dot4I8Packed(x_2, w_1), dot4I8Packed(x_2, w_2), dot4I8Packed(x_2, w_3));
        dots_3 += vec4<i32>(dot4I8Packed(x_3, w_0), dot4I8Packed(x_3, w_1), dot4I8Packed(x_3, w_2), dot4I8Packed(x_3, w_3));
      }
      sum_0 = scaled(sum_0, dots_0, half, line, column);
      sum_1 = scaled(sum_1, dots_1, half, line + ROW_STEP, column);
      sum_2 = scaled(sum_2, dots_2, half, line + 2u * ROW_STEP, column);
      sum_3 = scaled(sum_3, dots_3, half, line + 3u * ROW_STEP, column);
    }
    workgroupBarrier();
  }
