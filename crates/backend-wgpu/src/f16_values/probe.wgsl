// Checks that the device converts every f16 exactly, including subnormals. NaN need only stay NaN.
@group(0) @binding(0) var<uniform> p: vec4<u32>;
@group(0) @binding(1) var<storage, read_write> wrong: array<u32>;

@compute @workgroup_size(256)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  let bits = id.x;
  if bits >= p.x {
    return;
  }
  // The upper half is a different number, so that a device that reads the wrong half is detected.
  let found = bitcast<u32>(unpack2x16float(bits | 0x3c010000u).x);
  let exact = bitcast<u32>(f16_value(bits));
  let nan = (bits & 0x7fffu) > 0x7c00u;
  let is_nan = (found & 0x7fffffffu) > 0x7f800000u;
  wrong[id.x] = select(u32(found != exact), u32(!is_nan), nan);
}
