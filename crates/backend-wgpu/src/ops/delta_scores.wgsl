// The part of the chunked delta rule that does not depend on the state, for each chunk and head. Π
// denotes the product of decays of the rows between two rows: KKᵢⱼ = Σ_c kᵢ kⱼ Π_{j<t≤i} e^g for j
// < i, QKᵢⱼ is the same with qᵢ for j ≤ i, and T = (1 + diag(β) KK)⁻¹ diag(β). The result is the
// rows of T and QK for each row of the chunk. Products of decays are extended from a row backwards.
// Nothing is divided by a decay, and no logarithms are subtracted, which would lose the digits of a
// weak decay next to a strong one.

struct Params {
    // Index of the chunks' words in `step`.
    chunks: u32,
    heads: u32,
    // Chunks × heads.
    groups: u32,
    q: u32, q_row: u32, q_head: u32,
    k: u32, k_row: u32, k_head: u32,
    g: u32, g_row: u32, g_head: u32,
    beta: u32, beta_row: u32,
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> step: array<u32>;
@group(0) @binding(2) var<storage, read> q: array<f32>;
@group(0) @binding(3) var<storage, read> k: array<f32>;
@group(0) @binding(4) var<storage, read> g: array<f32>;
@group(0) @binding(5) var<storage, read> beta: array<f32>;
@group(0) @binding(6) var<storage, read_write> scores: array<f32>;

const THREADS: u32 = 64u;
// Threads per row.
const SLICES: u32 = THREADS / CHUNK;
// Channels in workgroup memory at a time, and their number of vectors.
const TILE: u32 = 32u;
const VECTORS: u32 = TILE / 4u;

var<workgroup> keys: array<vec4<f32>, CHUNK * VECTORS>;
var<workgroup> decays: array<vec4<f32>, CHUNK * VECTORS>;
// Sums of each thread with each earlier row. Other threads add them up at the end.
var<workgroup> kk: array<f32, CHUNK * THREADS>;
var<workgroup> qk: array<f32, CHUNK * THREADS>;
var<workgroup> summed: array<f32, CHUNK * CHUNK>;
var<workgroup> inverse: array<f32, CHUNK * CHUNK>;
var<workgroup> betas: array<f32, CHUNK>;

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let number = group.y * GRID_WIDTH + group.x;
    if (number >= params.groups) { return; }
    let words = params.chunks + number / params.heads * CHUNK_WORDS;
    let head = number % params.heads;
    let first = step[words];
    let rows = step[words + 1u];
    let own = thread / SLICES;
    let slice = thread % SLICES;
    let queries = params.q + (first + min(own, rows - 1u)) * params.q_row + head * params.q_head;
    for (var j = 0u; j < CHUNK; j++) {
        kk[j * THREADS + thread] = 0.0;
        qk[j * THREADS + thread] = 0.0;
    }
    if (thread < CHUNK) {
        let row = first + min(thread, rows - 1u);
        betas[thread] = 1.0 / (1.0 + exp(-beta[params.beta + row * params.beta_row + head]));
    }
    for (var tile = 0u; tile < WIDTH; tile += TILE) {
        workgroupBarrier();
        for (var n = thread; n < CHUNK * VECTORS; n += THREADS) {
            let channel = tile + n % VECTORS * 4u;
            var key = vec4<f32>();
            var decay = vec4<f32>();
            if (n / VECTORS < rows) {
                let row = first + n / VECTORS;
                let key_at = params.k + row * params.k_row + head * params.k_head;
                let decay_at = params.g + row * params.g_row + head * params.g_head;
                for (var i = 0u; i < 4u; i++) {
                    if (channel + i < WIDTH) {
                        key[i] = k[key_at + channel + i];
                        decay[i] = exp(g[decay_at + channel + i]);
                    }
                }
            }
            keys[n] = key;
            decays[n] = decay;
        }
        workgroupBarrier();
        var key_0 = keys[own * VECTORS + slice];
        var key_1 = keys[own * VECTORS + slice + SLICES];
        var query_0 = vec4<f32>();
        var query_1 = vec4<f32>();
        for (var i = 0u; i < 4u; i++) {
            let channel = tile + slice * 4u + i;
            if (channel < WIDTH) { query_0[i] = q[queries + channel]; }
            if (channel + 4u * SLICES < WIDTH) { query_1[i] = q[queries + channel + 4u * SLICES]; }
        }
        // All threads read the same row j in an iteration, which is a broadcast without bank
        // conflicts. (own | 7) + 1 makes the trip count equal for the threads of a subgroup.
        for (var after = (own | 7u) + 1u; after > 0u; after--) {
            let j = after - 1u;
            if (j <= own) {
                let other_0 = keys[j * VECTORS + slice];
                let other_1 = keys[j * VECTORS + slice + SLICES];
                kk[j * THREADS + thread] += dot(key_0, other_0) + dot(key_1, other_1);
                qk[j * THREADS + thread] += dot(query_0, other_0) + dot(query_1, other_1);
                let decay_0 = decays[j * VECTORS + slice];
                let decay_1 = decays[j * VECTORS + slice + SLICES];
                key_0 *= decay_0;
                key_1 *= decay_1;
                query_0 *= decay_0;
                query_1 *= decay_1;
            }
        }
    }
    workgroupBarrier();
    for (var n = thread; n < CHUNK * CHUNK; n += THREADS) {
        let i = n / CHUNK;
        let j = n % CHUNK;
        var of_key = 0.0;
        var of_query = 0.0;
        if (j <= i) {
            for (var s = 0u; s < SLICES; s++) {
                of_key += kk[j * THREADS + i * SLICES + s];
                of_query += qk[j * THREADS + i * SLICES + s];
            }
        }
        summed[n] = of_key;
        if (i < rows) { scores[((first + i) * params.heads + head) * 2u * CHUNK + CHUNK + j] = of_query; }
    }
    workgroupBarrier();
    // Forward substitution. Each thread computes one column of the inverse and reads no other, so
    // no barriers are needed.
    if (thread < CHUNK) {
        for (var i = 0u; i < rows; i++) {
            var sum = select(0.0, 1.0, i == thread);
            for (var j = thread; j < i; j++) { sum -= summed[i * CHUNK + j] * inverse[j * CHUNK + thread]; }
            sum *= betas[i];
            inverse[i * CHUNK + thread] = sum;
            scores[((first + i) * params.heads + head) * 2u * CHUNK + thread] = sum;
        }
    }
}
