//= f32
fn decode_block(block: u32, octet: u32) -> Octet {
  let at = block >> 2u;
  return Octet(
    bitcast<vec4<f32>>(vec4<u32>(weight[at], weight[at + 1u], weight[at + 2u], weight[at + 3u])),
    bitcast<vec4<f32>>(vec4<u32>(weight[at + 4u], weight[at + 5u], weight[at + 6u], weight[at + 7u])),
  );
}
//= f16
fn decode_block(block: u32, octet: u32) -> Octet {
  let a = words_at(block);
  let b = words_at(block + 8u);
  return Octet(
    vec4<f32>(f16_value(a.x & 0xffffu), f16_value(a.x >> 16u), f16_value(a.y & 0xffffu), f16_value(a.y >> 16u)),
    vec4<f32>(f16_value(b.x & 0xffffu), f16_value(b.x >> 16u), f16_value(b.y & 0xffffu), f16_value(b.y >> 16u)),
  );
}
//= bf16
fn decode_block(block: u32, octet: u32) -> Octet {
  let a = words_at(block);
  let b = words_at(block + 8u);
  return Octet(
    bitcast<vec4<f32>>(vec4<u32>(a.x << 16u, a.x & 0xffff0000u, a.y << 16u, a.y & 0xffff0000u)),
    bitcast<vec4<f32>>(vec4<u32>(b.x << 16u, b.x & 0xffff0000u, b.y << 16u, b.y & 0xffff0000u)),
  );
}
//= f8_e4m3
fn decode_block(block: u32, octet: u32) -> Octet {
  let codes = words_at(block);
  return Octet(e4m3(bytes_of(codes.x)), e4m3(bytes_of(codes.y)));
}
