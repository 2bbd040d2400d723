//= bias
@group(0) @binding(1) var<storage, read> bias: array<f32>;
@group(0) @binding(2) var<storage, read_write> y: array<f32>;

// Adds a value per column to every row.
fn work(index: u32) {
  if index < p.rows * p.columns {
    let column = index % p.columns;
    y[p.y_first + index / p.columns * p.y_stride + column] += bias[column];
  }
}
//= select_f32
@group(0) @binding(1) var<storage, read> order: array<u32>;
@group(0) @binding(2) var<storage, read> x: array<f32>;
@group(0) @binding(3) var<storage, read_write> y: array<f32>;

// Permutes columns.
fn work(index: u32) {
  if index < p.rows * p.columns {
    let row = index / p.columns;
    y[index] = x[row * p.columns + order[index % p.columns]];
  }
}
//= select_f16
@group(0) @binding(1) var<storage, read> order: array<u32>;
@group(0) @binding(2) var<storage, read> x: array<u32>;
@group(0) @binding(3) var<storage, read_write> y: array<u32>;

fn half_at(at: u32) -> u32 {
  return (x[at >> 1u] >> ((at & 1u) * 16u)) & 0xffffu;
}

// Permutes columns, two per word. Their number is even.
fn work(index: u32) {
  let first = index * 2u;
  if first < p.rows * p.columns {
    let column = first % p.columns;
    let row = first - column;
    y[index] = half_at(row + order[column]) | (half_at(row + order[column + 1u]) << 16u);
  }
}
//= to_f16
@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read_write> y: array<u32>;

// Two columns of a row become a word. The last of an odd number is alone in its word.
fn work(index: u32) {
  let row = index / p.y_stride;
  let column = index % p.y_stride * 2u;
  if row < p.rows {
    let at = row * p.columns + column;
    var upper = 0u;
    if column + 1u < p.columns {
      upper = f16_bits(x[at + 1u]);
    }
    y[index] = f16_bits(x[at]) | (upper << 16u);
  }
}
//= to_f32
@group(0) @binding(1) var<storage, read> x: array<u32>;
@group(0) @binding(2) var<storage, read_write> y: array<f32>;

fn work(index: u32) {
  let row = index / p.columns;
  let column = index % p.columns;
  if row < p.rows {
    let word = x[row * p.x_stride + column / 2u];
    y[index] = f16_value((word >> ((column & 1u) * 16u)) & 0xffffu);
  }
}
//= entry

@compute @workgroup_size(THREADS)
fn main(
  @builtin(workgroup_id) group: vec3<u32>,
  @builtin(num_workgroups) groups: vec3<u32>,
  @builtin(local_invocation_index) thread: u32,
) {
  work((group.x + group.z * groups.x) * THREADS + thread);
}
