struct Params {
  rows: u32,
  inputs: u32,
  columns: u32,
  group: u32,
  x_first: u32,
  x_stride: u32,
  y_first: u32,
  y_stride: u32,
  slices: u32,
  tensor_scale: f32,
  f16_factor: f32,
  spare: u32,
}

struct Octet {
  a: vec4<f32>,
  b: vec4<f32>,
}

