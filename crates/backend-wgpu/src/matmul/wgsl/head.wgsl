struct Octet {
  a: vec4<f32>,
  b: vec4<f32>,
}

struct Params {
  first_row: u32,
  rows: u32,
  slots: u32,
  inputs: u32,
  outputs: u32,
  // the weight: matrices that are matrix_rows apart
  row_bytes: u32,
  first_byte: u32,
  matrix_rows: u32,
  first_matrix: u32,
  matrices: u32,
  matrix_step: u32,
  // element x + row * x_row + slot * x_slot, modulo 2^32
  x: u32,
  x_row: u32,
  x_slot: u32,
  y: u32,
  y_row: u32,
  y_slot: u32,
  ids: u32,
  // factors of rectangles: rows and inputs of one, and how they are found
  scale_rows: u32,
  scale_inputs: u32,
  scale_stride: u32,
  scale_matrix: u32,
  scale_matrix_rows: u32,
  scale_first_row: u32,
  // byte at which the scales of repacked blocks begin
  d_first: u32,
  // of sums that are added
  factor: f32,
}

