//= sums

// Eight outputs per thread. Plane i holds output i of all threads, so neighbouring threads use
// neighbouring words.
var<workgroup> sums: array<f32, 8u * THREADS>;

fn scaled_sum(sum: Octet, x: f32, w: Octet) -> Octet {
  return Octet(fma(vec4<f32>(x), w.a, sum.a), fma(vec4<f32>(x), w.b, sum.b));
}

// Adds the sums of all lanes in order, and stores the results of one row.
fn reduce(sum: Octet, thread: u32, row: u32, slot: u32, first: u32) {
  // All threads have read the sums of the previous row.
  workgroupBarrier();
  sums[thread] = sum.a.x;
  sums[THREADS + thread] = sum.a.y;
  sums[2u * THREADS + thread] = sum.a.z;
  sums[3u * THREADS + thread] = sum.a.w;
  sums[4u * THREADS + thread] = sum.b.x;
  sums[5u * THREADS + thread] = sum.b.y;
  sums[6u * THREADS + thread] = sum.b.z;
  sums[7u * THREADS + thread] = sum.b.w;
  workgroupBarrier();
  // One thread per output.
  for (var index = thread; index < OCTETS * 8u; index += THREADS) {
    let output = first * 8u + index;
    if row < p.rows && output < p.inputs {
      let place = index % 8u * THREADS + index / 8u;
      var total = sums[place];
      for (var lane = 1u; lane < LANES; lane++) {
        total += sums[place + lane * OCTETS];
      }
      y[result_row(row, slot) + output] = total;
    }
  }
}
//= begin
  let first = (group.x + group.z * groups.x) * OCTETS;
  let lane = thread / OCTETS;
  let octets = (p.inputs + 7u) / 8u;
  let octet = min(first + thread % OCTETS, octets - 1u);
  let slot = group.y % p.slots;
  let batch = group.y / p.slots * ROWS;
  let matrix = slot * p.matrix_step;
