struct Params {
  first_row: u32,
  rows: u32,
  slots: u32,
  inputs: u32,
  x: u32,
  x_row: u32,
  x_slot: u32,
  spare: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read_write> blocks: array<u32>;

fn packed(values: vec4<f32>) -> u32 {
  let quants = bitcast<vec4<u32>>(vec4<i32>(values)) & vec4<u32>(0xffu);
  return quants.x | (quants.y << 8u) | (quants.z << 16u) | (quants.w << 24u);
}

// A thread quantizes a block of 32 inputs: scale = largest magnitude / 127, quants rounded to nearest even. A block with an infinity or NaN
// gets the scale NaN.
@compute @workgroup_size(THREADS)
fn main(
  @builtin(workgroup_id) group: vec3<u32>,
  @builtin(num_workgroups) groups: vec3<u32>,
  @builtin(local_invocation_index) thread: u32,
) {
  let index = (group.x + group.z * groups.x) * THREADS + thread;
  let row_blocks = p.inputs / 32u;
  let item = index / row_blocks;
  if item >= p.rows * p.slots {
    return;
  }
  let row = p.first_row + item / p.slots;
  let at = p.x + row * p.x_row + item % p.slots * p.x_slot + index % row_blocks * 32u;
  // as bits: a comparison of floats may take a NaN for anything
  var bits = 0u;
  for (var i = 0u; i < 32u; i++) {
    bits = max(bits, bitcast<u32>(x[at + i]) & 0x7fffffffu);
  }
  let to = index * 9u;
  if bits >= 0x7f800000u {
    for (var word = 0u; word < 8u; word++) {
      blocks[to + word] = 0u;
    }
    blocks[to + 8u] = 0x7fc00000u;
    return;
  }
  let largest = bitcast<f32>(bits);
  // below, 127 / largest overflows: such a block is zero
  let inverse = select(127.0 / max(largest, 4e-37), 0.0, largest < 4e-37);
  for (var word = 0u; word < 8u; word++) {
    let i = at + word * 4u;
    let four = round(vec4<f32>(x[i], x[i + 1u], x[i + 2u], x[i + 3u]) * inverse);
    blocks[to + word] = packed(clamp(four, vec4<f32>(-127.0), vec4<f32>(127.0)));
  }
  blocks[to + 8u] = bitcast<u32>(largest / 127.0);
}
