@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> partials: array<f32>;
@group(0) @binding(2) var<storage, read_write> y: array<f32>;

// Adds the partial sums of all slices in order, so that the bits do not depend on timing.
@compute @workgroup_size(THREADS)
fn main(
  @builtin(workgroup_id) group: vec3<u32>,
  @builtin(num_workgroups) groups: vec3<u32>,
  @builtin(local_invocation_index) thread: u32,
) {
  let index = (group.x + group.z * groups.x) * THREADS + thread;
  let count = p.rows * p.columns;
  if index >= count {
    return;
  }
  var sum = partials[p.x_first + index];
  for (var slice = 1u; slice < p.slices; slice++) {
    sum += partials[p.x_first + slice * count + index];
  }
  y[p.y_first + index / p.columns * p.y_stride + index % p.columns] = sum;
}
