//= floats
alias Element = f32;
const WEIGHT_FACTOR: f32 = 1.0;

fn elements(values: vec4<f32>) -> vec4<f32> {
  return values;
}
//= halves
alias Element = f16;
// a power of two, taken back from sums: a device may take subnormal f16 for 0, and weights below 2^-14 are many
const WEIGHT_FACTOR: f32 = 64.0;

// a number beyond the range becomes the largest one
fn elements(values: vec4<f32>) -> vec4<f16> {
  return vec4<f16>(clamp(values, vec4<f32>(-65504.0), vec4<f32>(65504.0)));
}
//= memory

// inputs, then rows or outputs: neighbours in a row of threads read neighbours in memory
var<workgroup> x_tile: array<Element, TILE_INPUTS * TILE_ROWS>;
var<workgroup> w_tile: array<Element, TILE_INPUTS * TILE_OUTPUTS>;
//= per_slot
  let slot = group.y % p.slots;
  let first_row = group.y / p.slots * TILE_ROWS;
  let count = min(TILE_ROWS, p.rows - first_row);
  let matrix = slot * p.matrix_step;
//= sorted
  let slot = 0u;
  let tile = tiles[group.y];
  let first_row = tile.y;
  let count = tile.z;
  let matrix = tile.x - p.first_matrix;
  if count == 0u || matrix >= p.matrices {
    return;
  }
//= sums
  let octets = (p.inputs + 7u) / 8u;
  let first = (group.x + group.z * groups.x) * TILE_OUTPUTS;
  let column = thread % OUTPUT_STEP;
  let line = thread / OUTPUT_STEP;
  var sum_0 = vec4<f32>(0.0);
  var sum_1 = vec4<f32>(0.0);
  var sum_2 = vec4<f32>(0.0);
  var sum_3 = vec4<f32>(0.0);
//= load
  for (var start = 0u; start < octets; start += TILE_OCTETS) {
    for (var index = thread; index < TILE_ROWS * TILE_OCTETS; index += THREADS) {
      let i = min(index % TILE_ROWS, count - 1u);
      let octet = index / TILE_ROWS;
      let row = input_place(first_row + i, slot);
      var o = Octet(vec4<f32>(0.0), vec4<f32>(0.0));
      if start + octet < octets {
        o = input_octet(row, start + octet);
      }
      let a = elements(o.a);
      let b = elements(o.b);
      let at = octet * 8u * TILE_ROWS + index % TILE_ROWS;
      x_tile[at] = a.x;
      x_tile[at + TILE_ROWS] = a.y;
      x_tile[at + 2u * TILE_ROWS] = a.z;
      x_tile[at + 3u * TILE_ROWS] = a.w;
      x_tile[at + 4u * TILE_ROWS] = b.x;
      x_tile[at + 5u * TILE_ROWS] = b.y;
      x_tile[at + 6u * TILE_ROWS] = b.z;
      x_tile[at + 7u * TILE_ROWS] = b.w;
    }
    for (var index = thread; index < TILE_OUTPUTS * TILE_OCTETS; index += THREADS) {
      let output = min(first + index % TILE_OUTPUTS, p.outputs - 1u);
      let octet = index / TILE_OUTPUTS;
      var o = Octet(vec4<f32>(0.0), vec4<f32>(0.0));
      if start + octet < octets {
        o = weight_octet(matrix, output, start + octet);
      }
      let a = elements(o.a * WEIGHT_FACTOR);
      let b = elements(o.b * WEIGHT_FACTOR);
      let at = octet * 8u * TILE_OUTPUTS + index % TILE_OUTPUTS;
      w_tile[at] = a.x;
      w_tile[at + TILE_OUTPUTS] = a.y;
      w_tile[at + 2u * TILE_OUTPUTS] = a.z;
      w_tile[at + 3u * TILE_OUTPUTS] = a.w;
      w_tile[at + 4u * TILE_OUTPUTS] = b.x;
      w_tile[at + 5u * TILE_OUTPUTS] = b.y;
      w_tile[at + 6u * TILE_OUTPUTS] = b.z;
      w_tile[at + 7u * TILE_OUTPUTS] = b.w;
    }
    workgroupBarrier();
    for (var i = 0u; i < TILE_INPUTS; i++) {
      let at = i * TILE_OUTPUTS + column;
      let w = vec4<f32>(
        f32(w_tile[at]),
        f32(w_tile[at + OUTPUT_STEP]),
        f32(w_tile[at + 2u * OUTPUT_STEP]),
        f32(w_tile[at + 3u * OUTPUT_STEP]),
      );
      let place = i * TILE_ROWS + line;
      sum_0 = fma(vec4<f32>(f32(x_tile[place])), w, sum_0);
      sum_1 = fma(vec4<f32>(f32(x_tile[place + ROW_STEP])), w, sum_1);
      sum_2 = fma(vec4<f32>(f32(x_tile[place + 2u * ROW_STEP])), w, sum_2);
      sum_3 = fma(vec4<f32>(f32(x_tile[place + 3u * ROW_STEP])), w, sum_3);
    }
    workgroupBarrier();
  }
//= places

fn input_place(row: u32, slot: u32) -> u32 {
  return input_row(row, slot);
}

fn result_place(row: u32, slot: u32) -> u32 {
  return result_row(row, slot);
}
//= sorted_places

// sorted rows are pairs of a row and a slot
fn input_place(row: u32, slot: u32) -> u32 {
  return input_row(rows[row] / p.slots, rows[row] % p.slots);
}

fn result_place(row: u32, slot: u32) -> u32 {
  return result_row(rows[row] / p.slots, rows[row] % p.slots);
}
//= store

fn store(sums: vec4<f32>, place: u32, output: u32) {
  if output < p.outputs {
    keep(place + output, sums.x);
  }
  if output + OUTPUT_STEP < p.outputs {
    keep(place + output + OUTPUT_STEP, sums.y);
  }
  if output + 2u * OUTPUT_STEP < p.outputs {
    keep(place + output + 2u * OUTPUT_STEP, sums.z);
  }
  if output + 3u * OUTPUT_STEP < p.outputs {
    keep(place + output + 3u * OUTPUT_STEP, sums.w);
  }
}
