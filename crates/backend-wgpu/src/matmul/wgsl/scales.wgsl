//= half
fn octet_scale(block: u32, octet: u32) -> f32 {
  return half_at(d_place(block));
}
//= half_min
fn octet_scale(block: u32, octet: u32) -> vec2<f32> {
  return vec2<f32>(half_at(d_place(block)), half_at(block + MIN_AT));
}
//= single
fn octet_scale(block: u32, octet: u32) -> f32 {
  return bitcast<f32>(word_at(d_place(block)));
}
//= e8m0
// Half of 2^(e - 127), since the table has doubled values. For e < 2 it is subnormal in f32, which
// a device may flush to 0.
fn octet_scale(block: u32, octet: u32) -> f32 {
  let e = byte_at(d_place(block));
  return bitcast<f32>(select((e - 1u) << 23u, 0x00200000u << (e & 1u), e < 2u));
}
//= ue4m3
// Half the scale, since the table has doubled values. The sign is ignored. 0x7f is 0, but 0xff is
// not, as in ggml.
fn octet_scale(block: u32, octet: u32) -> f32 {
  let stored = byte_at(block + SCALES_AT + octet * 8u / SUB_BLOCK);
  let code = stored & 0x7fu;
  let normal = bitcast<f32>((code << 20u) + (119u << 23u));
  let scale = select(normal, 2.0 * (normal - 0.00390625), code < 8u);
  return select(scale, 0.0, stored == 0x7fu);
}
//= nibble_mins
fn octet_scale(block: u32, octet: u32) -> vec2<f32> {
  let both = byte_at(block + SCALES_AT + octet * 8u / SUB_BLOCK);
  return vec2<f32>(half_at(d_place(block)) * f32(both & 15u), -(half_at(block + MIN_AT) * f32(both >> 4u)));
}
//= six_bit_mins
fn octet_scale(block: u32, octet: u32) -> vec2<f32> {
  let g = octet * 8u / SUB_BLOCK;
  let at = block + SCALES_AT;
  let i = g & 3u;
  let a = byte_at(at + i);
  let b = byte_at(at + 4u + i);
  let c = byte_at(at + 8u + i);
  let upper = g >= 4u;
  let scale = select(a & 63u, (c & 15u) | ((a >> 6u) << 4u), upper);
  let least = select(b & 63u, (c >> 4u) | ((b >> 6u) << 4u), upper);
  return vec2<f32>(half_at(d_place(block)) * f32(scale), -(half_at(block + MIN_AT) * f32(least)));
}
//= six_bit
fn octet_scale(block: u32, octet: u32) -> f32 {
  let g = octet * 8u / SUB_BLOCK;
  let low = (byte_at(block + SCALES_AT + (g & 7u)) >> (g >> 3u << 2u)) & 15u;
  let high = (byte_at(block + SCALES_AT + 8u + (g & 3u)) >> (g >> 2u << 1u)) & 3u;
  return half_at(d_place(block)) * (f32(low | (high << 4u)) - 32.0);
}
//= bytes
fn octet_scale(block: u32, octet: u32) -> f32 {
  let scale = byte_at(block + SCALES_AT + octet * 8u / SUB_BLOCK);
  return half_at(d_place(block)) * f32(bitcast<i32>(scale << 24u) >> 24u);
}
//= split_six_bit
fn octet_scale(block: u32, octet: u32) -> f32 {
  let g = octet * 8u / SUB_BLOCK;
  let low = (byte_at(block + SCALES_AT + (g >> 1u)) >> ((g & 1u) << 2u)) & 15u;
  let high = (half_bits_at(block + UPPER_AT) >> (g << 1u)) & 3u;
  return half_at(d_place(block)) * (f32(low | (high << 4u)) - 32.0);
}
