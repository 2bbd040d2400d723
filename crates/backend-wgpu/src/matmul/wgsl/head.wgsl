struct Octet {
  a: vec4<f32>,
  b: vec4<f32>,
}

struct Params {
  rows: u32,
  inputs: u32,
  outputs: u32,
  row_bytes: u32,
  first_byte: u32,
  x_first: u32,
  x_stride: u32,
  x_share: u32,
  y_first: u32,
  y_stride: u32,
  expert_outputs: u32,
  first_expert: u32,
  experts: u32,
  scale_rows: u32,
  scale_inputs: u32,
  scale_stride: u32,
  first_output: u32,
  scale_expert: u32,
  first_row: u32,
  spare: u32,
}

