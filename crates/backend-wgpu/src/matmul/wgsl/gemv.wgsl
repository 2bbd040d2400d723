//= sums

var<workgroup> sums: array<f32, ROWS * OUTPUTS * THREADS>;

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
  for (var half = LANES / 2u; half > 0u; half /= 2u) {
    if lane < half {
      for (var i = 0u; i < ROWS * OUTPUTS; i++) {
        sums[i * THREADS + thread] += sums[i * THREADS + thread + half];
      }
    }
    workgroupBarrier();
  }
  for (var i = lane; i < ROWS * OUTPUTS; i += LANES) {
    let row = batch + i / OUTPUTS;
    let output = first + i % OUTPUTS;
    if row < p.rows && output < p.outputs {
      y[result_row(row, slot) + output] = sums[i * THREADS + thread - lane];
    }
  }
}
