// Bindings of shaders that write rows of the KV cache.

struct Params {
    first_row: u32,
    rows: u32,
    // Indices in `step` of each row's slot, and of cosine and sine of each pair.
    slots: u32,
    angles: u32,
    x: u32, x_row: u32, x_head: u32,
    k: u32, k_row: u32,
    v: u32, v_row: u32, v_head: u32,
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> step: array<u32>;
@group(0) @binding(2) var<storage, read_write> cache: array<u32>;
@group(0) @binding(3) var<storage, read> x: array<f32>;
@group(0) @binding(4) var<storage, read> k: array<f32>;
