//= floats
alias Element = f32;
const WEIGHT_FACTOR: f32 = 1.0;

fn elements(values: vec4<f32>) -> vec4<f32> {
  return values;
}
//= halves
alias Element = f16;
// A power of two by which sums are divided again. Devices may flush subnormal f16 to 0, and many
// weights are below 2^-14.
const WEIGHT_FACTOR: f32 = 64.0;

// Clamped, since an infinity would spoil the sums of the whole tile.
fn elements(values: vec4<f32>) -> vec4<f16> {
  return vec4<f16>(clamp(values, vec4<f32>(-65504.0), vec4<f32>(65504.0)));
}
//= memory

// Vectors of four inputs of a row, or of an output.
var<workgroup> x_tile: array<vec4<Element>, TILE_ROWS * ROW_UNITS>;
var<workgroup> w_tile: array<vec4<Element>, TILE_OUTPUTS * ROW_UNITS>;
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
  // Unused tiles have no rows. Matrices of other chunks of the weight are computed by other calls.
  // The condition is the same for the whole workgroup, so no thread waits at a barrier.
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
      x_tile[unit_at(index % TILE_ROWS, octet * 2u)] = elements(o.a);
      x_tile[unit_at(index % TILE_ROWS, octet * 2u + 1u)] = elements(o.b);
    }
    for (var index = thread; index < TILE_OUTPUTS * TILE_OCTETS; index += THREADS) {
      let output = min(first + index % TILE_OUTPUTS, p.outputs - 1u);
      let octet = index / TILE_OUTPUTS;
      var o = Octet(vec4<f32>(0.0), vec4<f32>(0.0));
      if start + octet < octets {
        o = weight_octet(matrix, output, start + octet);
      }
      w_tile[unit_at(index % TILE_OUTPUTS, octet * 2u)] = elements(o.a * WEIGHT_FACTOR);
      w_tile[unit_at(index % TILE_OUTPUTS, octet * 2u + 1u)] = elements(o.b * WEIGHT_FACTOR);
    }
    workgroupBarrier();
//= places

fn input_place(row: u32, slot: u32) -> u32 {
  return input_row(row, slot);
}

fn result_place(row: u32, slot: u32) -> u32 {
  return result_row(row, slot);
}
//= sorted_places

// A sorted row is a pair of row and slot.
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
