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

// A thread quantizes a block of 32 inputs.
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
  var bits = 0u;
  for (var i = 0u; i < 32u; i += 4u) {
    bits = max(bits, magnitude_bits(vec4<f32>(x[at + i], x[at + i + 1u], x[at + i + 2u], x[at + i + 3u])));
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
  let inverse = inverse_scale(largest);
  for (var word = 0u; word < 8u; word++) {
    let i = at + word * 4u;
    blocks[to + word] = quantized(vec4<f32>(x[i], x[i + 1u], x[i + 2u], x[i + 3u]), inverse);
  }
  blocks[to + 8u] = bitcast<u32>(largest / 127.0);
}
