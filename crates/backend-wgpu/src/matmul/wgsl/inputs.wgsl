//= vectors
fn input_octet(row: u32, octet: u32) -> Octet {
  let at = (row >> 2u) + octet * 2u;
  return Octet(x[at], x[at + 1u]);
}
//= elements
// Elements after the end of a row are 0.
fn input_octet(row: u32, octet: u32) -> Octet {
  let at = row + octet * 8u;
  return inside(Octet(
    vec4<f32>(x[at], x[at + 1u], x[at + 2u], x[at + 3u]),
    vec4<f32>(x[at + 4u], x[at + 5u], x[at + 6u], x[at + 7u]),
  ), octet);
}
//= tails
fn inside(o: Octet, octet: u32) -> Octet {
  let left = vec4<u32>(p.inputs - octet * 8u);
  let none = vec4<f32>(0.0);
  return Octet(
    select(none, o.a, vec4<u32>(0u, 1u, 2u, 3u) < left),
    select(none, o.b, vec4<u32>(4u, 5u, 6u, 7u) < left),
  );
}
//= weights
fn weight_octet(matrix: u32, output: u32, octet: u32) -> Octet {
  return decode(p.first_byte + (matrix * p.matrix_rows + output) * p.row_bytes, octet);
}
//= weights_tails
fn weight_octet(matrix: u32, output: u32, octet: u32) -> Octet {
  return inside(decode(p.first_byte + (matrix * p.matrix_rows + output) * p.row_bytes, octet), octet);
}
//= weights_scaled
fn weight_octet(matrix: u32, output: u32, octet: u32) -> Octet {
  let o = inside(decode(p.first_byte + (matrix * p.matrix_rows + output) * p.row_bytes, octet), octet);
  let number = p.first_matrix + matrix;
  let row = (p.scale_first_row + number * p.scale_matrix_rows + output) / p.scale_rows;
  let scale = block_scales[number * p.scale_matrix + row * p.scale_stride + octet * 8u / p.scale_inputs];
  return Octet(o.a * scale, o.b * scale);
}
//= decode
fn decode(row: u32, octet: u32) -> Octet {
  return decode_block(row + octet / BLOCK_OCTETS * BLOCK_BYTES, octet % BLOCK_OCTETS);
}
//= places
fn input_row(row: u32, slot: u32) -> u32 {
  return p.x + (p.first_row + row) * p.x_row + slot * p.x_slot;
}

fn result_row(row: u32, slot: u32) -> u32 {
  return p.y + (p.first_row + row) * p.y_row + slot * p.y_slot;
}
