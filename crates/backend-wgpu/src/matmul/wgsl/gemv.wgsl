//= sums

var<workgroup> sums: array<f32, ROWS * OUTPUTS * THREADS>;

fn add_octet(sum: vec4<f32>, x: Octet, w: Octet) -> vec4<f32> {
  return fma(x.b, w.b, fma(x.a, w.a, sum));
}
//= rows
  let octets = (p.inputs + 7u) / 8u;
  let lane = thread % LANES;
  let first = ((group.x + group.z * groups.x) * (THREADS / LANES) + thread / LANES) * OUTPUTS;
  let batch = group.y * ROWS;
  let weight_first = 0u;
//= expert
  let octets = (p.inputs + 7u) / 8u;
  let lane = thread % LANES;
  let first = ((group.x + group.z * groups.x) * (THREADS / LANES) + thread / LANES) * OUTPUTS;
  let batch = group.y;
  let expert = rows[batch] - p.first_expert;
  if expert >= p.experts {
    return;
  }
  let weight_first = expert * p.expert_outputs;
  let input = batch / p.x_share;
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
      y[p.y_first + row * p.y_stride + output] = sums[i * THREADS + thread - lane];
    }
  }
}
