struct Params {
  pairs: u32,
  experts: u32,
  tiles: u32,
  first: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> ids: array<u32>;
@group(0) @binding(2) var<storage, read_write> order: array<u32>;
@group(0) @binding(3) var<storage, read_write> tiles: array<vec4<u32>>;

var<workgroup> counts: array<u32, MAX_EXPERTS>;
var<workgroup> firsts: array<u32, MAX_EXPERTS>;
var<workgroup> first_tiles: array<u32, MAX_EXPERTS>;
var<workgroup> used: u32;

// Sorts (token, slot) pairs by expert, and cuts each expert's pairs into tiles of rows. Pairs of
// one expert keep their order. A thread handles all pairs of an expert: with atomics, the order
// would depend on timing, and with it the bits of sums.
@compute @workgroup_size(THREADS)
fn main(@builtin(local_invocation_index) thread: u32) {
  for (var expert = thread; expert < p.experts; expert += THREADS) {
    var count = 0u;
    for (var pair = 0u; pair < p.pairs; pair++) {
      count += select(0u, 1u, ids[p.first + pair] == expert);
    }
    counts[expert] = count;
  }
  workgroupBarrier();
  // Prefix sums by one thread: at most MAX_EXPERTS steps.
  if thread == 0u {
    var first = 0u;
    var tile = 0u;
    for (var expert = 0u; expert < p.experts; expert++) {
      firsts[expert] = first;
      first_tiles[expert] = tile;
      first += counts[expert];
      tile += (counts[expert] + TILE_ROWS - 1u) / TILE_ROWS;
    }
    used = tile;
  }
  workgroupBarrier();
  for (var expert = thread; expert < p.experts; expert += THREADS) {
    var at = firsts[expert];
    for (var pair = 0u; pair < p.pairs; pair++) {
      if ids[p.first + pair] == expert {
        order[at] = pair;
        at++;
      }
    }
    var tile = first_tiles[expert];
    for (var row = 0u; row < counts[expert]; row += TILE_ROWS) {
      tiles[tile] = vec4<u32>(expert, firsts[expert] + row, min(TILE_ROWS, counts[expert] - row), 0u);
      tile++;
    }
  }
  // Unused tiles get no rows. The buffer holds the tiles of an earlier sort.
  for (var tile = used + thread; tile < p.tiles; tile += THREADS) {
    tiles[tile] = vec4<u32>(0u);
  }
}
