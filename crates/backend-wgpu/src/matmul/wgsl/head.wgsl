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
  // The weight. Matrices are matrix_rows rows apart.
  row_bytes: u32,
  first_byte: u32,
  matrix_rows: u32,
  first_matrix: u32,
  matrices: u32,
  matrix_step: u32,
  // Inputs: element x + row * x_row + slot * x_slot, modulo 2^32.
  x: u32,
  x_row: u32,
  x_slot: u32,
  y: u32,
  y_row: u32,
  y_slot: u32,
  ids: u32,
  // Block scales: rows and inputs per scale, and strides.
  scale_rows: u32,
  scale_inputs: u32,
  scale_stride: u32,
  scale_matrix: u32,
  scale_matrix_rows: u32,
  scale_first_row: u32,
  // Byte offset of the scales of repacked blocks.
  d_first: u32,
  // Factor of the epilogue that adds.
  factor: f32,
}

