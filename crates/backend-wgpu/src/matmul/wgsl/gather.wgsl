
// Dequantizes rows of the only matrix: result i is row rows[i]. A thread decodes an octet.
@compute @workgroup_size(THREADS)
fn main(
  @builtin(workgroup_id) group: vec3<u32>,
  @builtin(num_workgroups) groups: vec3<u32>,
  @builtin(local_invocation_index) thread: u32,
) {
  let index = (group.x + group.z * groups.x) * THREADS + thread;
  let octets = (p.inputs + 7u) / 8u;
  let row = index / octets;
  let octet = index % octets;
  if row >= p.rows {
    return;
  }
  // Index within this chunk of the weight. Rows of other chunks wrap around or are too large, and
  // are skipped.
  let output = rows[p.ids + row] - p.scale_first_row;
  if output >= p.outputs {
    return;
  }
  let o = weight_octet(0u, output, octet);
  let at = result_row(row, 0u) + octet * 8u;
  let all = array<f32, 8>(o.a.x, o.a.y, o.a.z, o.a.w, o.b.x, o.b.y, o.b.z, o.b.w);
  for (var i = 0u; i < 8u && octet * 8u + i < p.inputs; i++) {
    y[at + i] = all[i];
  }
}
