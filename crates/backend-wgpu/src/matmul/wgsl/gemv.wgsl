//= sums

var<workgroup> sums: array<f32, ROWS * OUTPUTS * THREADS>;
//= subgroup_sums

// One sum per subgroup, or per output if a subgroup computes several outputs.
var<workgroup> sums: array<f32, ROWS * OUTPUTS * SUMS>;

// Adds up to eight consecutive sums pairwise.
fn pairwise(first: u32, count: u32) -> f32 {
  var total = sums[first];
  if count >= 2u {
    total += sums[first + 1u];
  }
  if count >= 4u {
    total += sums[first + 2u] + sums[first + 3u];
  }
  if count >= 8u {
    total += (sums[first + 4u] + sums[first + 5u]) + (sums[first + 6u] + sums[first + 7u]);
  }
  return total;
}
//= subgroup_entry

@compute @workgroup_size(THREADS)
fn main(
  @builtin(workgroup_id) group: vec3<u32>,
  @builtin(num_workgroups) groups: vec3<u32>,
  @builtin(subgroup_id) subgroup: u32,
  @builtin(subgroup_size) size: u32,
  @builtin(subgroup_invocation_id) member: u32,
) {
  // Not local_invocation_index: shuffles need consecutive numbers within a subgroup, and the
  // mapping of invocations to subgroups is up to the device. If a device filled subgroups only
  // partly, results would be wrong, but the bounded index stays inside of the arrays.
  let thread = min(subgroup * size + member, THREADS - 1u);
//= floats

fn add_octet(sum: vec4<f32>, x: Octet, w: Octet) -> vec4<f32> {
  return fma(x.b, w.b, fma(x.a, w.a, sum));
}
//= per_slot
  let octets = (p.inputs + 7u) / 8u;
  let lane = thread % LANES;
  let first = ((group.x + group.z * groups.x) * (THREADS / LANES) + thread / LANES) * OUTPUTS;
  let slot = group.y % p.slots;
  let batch = group.y / p.slots * ROWS;
  let matrix = slot * p.matrix_step;
//= by_ids
  let octets = (p.inputs + 7u) / 8u;
  let lane = thread % LANES;
  let first = ((group.x + group.z * groups.x) * (THREADS / LANES) + thread / LANES) * OUTPUTS;
  let slot = group.y % p.slots;
  let batch = group.y / p.slots;
  let matrix = rows[p.ids + (p.first_row + batch) * p.slots + slot] - p.first_matrix;
  if matrix >= p.matrices {
    return;
  }
//= reduce
  workgroupBarrier();
  // Neighbours first, as in the reduction within subgroups, so that both give the same bits.
  for (var distance = 1u; distance < LANES; distance *= 2u) {
    if lane % (2u * distance) == 0u {
      for (var i = 0u; i < ROWS * OUTPUTS; i++) {
        sums[i * THREADS + thread] += sums[i * THREADS + thread + distance];
      }
    }
    workgroupBarrier();
  }
  for (var i = lane; i < ROWS * OUTPUTS; i += LANES) {
    let row = batch + i / OUTPUTS;
    let output = first + i % OUTPUTS;
    if row < p.rows && output < p.outputs {
      keep(result_row(row, slot) + output, sums[i * THREADS + thread - lane]);
    }
  }
}
//= subgroup_reduce
  workgroupBarrier();
  for (var i = lane; i < ROWS * OUTPUTS; i += LANES) {
    let row = batch + i / OUTPUTS;
    let output = first + i % OUTPUTS;
    if row < p.rows && output < p.outputs {
      keep(result_row(row, slot) + output, pairwise(i * SUMS + (thread - lane) / lanes, LANES / lanes));
    }
  }
}
