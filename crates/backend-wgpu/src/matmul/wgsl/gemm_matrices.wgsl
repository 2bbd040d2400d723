//= memory

// Rows of inputs, and rows of the weight.
var<workgroup> x_tile: array<Element, TILE_ROWS * STRIDE>;
var<workgroup> w_tile: array<Element, TILE_OUTPUTS * STRIDE>;
// One matrix of results per subgroup, between coopStoreT and the epilogue.
var<workgroup> results: array<f32, SUBGROUPS * SIDE * SIDE>;
//= stash

fn stash_inputs(at: u32, o: Octet) {
  let a = elements(o.a);
  let b = elements(o.b);
  x_tile[at] = a.x;
  x_tile[at + 1u] = a.y;
  x_tile[at + 2u] = a.z;
  x_tile[at + 3u] = a.w;
  x_tile[at + 4u] = b.x;
  x_tile[at + 5u] = b.y;
  x_tile[at + 6u] = b.z;
  x_tile[at + 7u] = b.w;
}

fn stash_weights(at: u32, o: Octet) {
  let a = elements(o.a * WEIGHT_FACTOR);
  let b = elements(o.b * WEIGHT_FACTOR);
  w_tile[at] = a.x;
  w_tile[at + 1u] = a.y;
  w_tile[at + 2u] = a.z;
  w_tile[at + 3u] = a.w;
  w_tile[at + 4u] = b.x;
  w_tile[at + 5u] = b.y;
  w_tile[at + 6u] = b.z;
  w_tile[at + 7u] = b.w;
}
//= sorted_memory

var<workgroup> chosen: vec4<u32>;
//= sorted
  let slot = 0u;
  // Cooperative operations need uniform control flow. So the tile is loaded once for all threads
  // (workgroupUniformLoad), and `|` is used instead of `||`, which is a branch.
  if thread == 0u {
    chosen = tiles[group.y];
  }
  let tile = workgroupUniformLoad(&chosen);
  let first_row = tile.y;
  let count = tile.z;
  let matrix = tile.x - p.first_matrix;
  if (count == 0u) | (matrix >= p.matrices) {
    return;
  }
//= entry

@compute @workgroup_size(THREADS)
fn main(
  @builtin(workgroup_id) group: vec3<u32>,
  @builtin(num_workgroups) groups: vec3<u32>,
  @builtin(local_invocation_index) thread: u32,
  @builtin(subgroup_id) subgroup: u32,
  @builtin(subgroup_invocation_id) member: u32,
) {
//= first
  let octets = (p.inputs + 7u) / 8u;
  let first = (group.x + group.z * groups.x) * TILE_OUTPUTS;
//= begin
  let top = subgroup / ACROSS * HIGH;
  let left = subgroup % ACROSS * WIDE;
  let mine = subgroup * SIDE * SIDE;
  for (var i = thread; i < SUBGROUPS * SIDE * SIDE; i += THREADS) {
    results[i] = 0.0;
  }
  workgroupBarrier();
//= load
  for (var start = 0u; start < octets; start += TILE_OCTETS) {
    for (var index = thread; index < TILE_ROWS * TILE_OCTETS; index += THREADS) {
      let octet = index % TILE_OCTETS;
      let line = index / TILE_OCTETS;
      let row = input_place(first_row + min(line, count - 1u), slot);
      var o = Octet(vec4<f32>(0.0), vec4<f32>(0.0));
      if start + octet < octets {
        o = input_octet(row, start + octet);
      }
      stash_inputs(line * STRIDE + octet * 8u, o);
    }
    for (var index = thread; index < TILE_OUTPUTS * TILE_OCTETS; index += THREADS) {
      let octet = index % TILE_OCTETS;
      let line = index / TILE_OCTETS;
      var o = Octet(vec4<f32>(0.0), vec4<f32>(0.0));
      if start + octet < octets {
        o = weight_octet(matrix, min(first + line, p.outputs - 1u), start + octet);
      }
      stash_weights(line * STRIDE + octet * 8u, o);
    }
    workgroupBarrier();
//= store

// Stores the elements of a matrix that are inside of the tile's rows and of the results.
fn store(mine: u32, member: u32, at: vec2<u32>, rows_of: vec3<u32>, first: u32) {
  for (var i = member; i < SIDE * SIDE; i += SUBGROUP) {
    let row = at.x + i / SIDE;
    let output = first + at.y + i % SIDE;
    if row < rows_of.z && output < p.outputs {
      keep(result_place(rows_of.x + row, rows_of.y) + output, results[mine + i] / WEIGHT_FACTOR);
    }
  }
}
