// The delta rule with decay over the rows of a span: S ← diag(e^g) S; u = β (v − Sᵀk); S ← S + k
// uᵀ; o = Sᵀq. A workgroup holds some columns of a head's state in workgroup memory from the first
// row to the last, so the state is read and written once. Each thread always updates the same
// elements, so only sums need barriers.

struct Params {
    // Index of the spans' words in `step`.
    spans: u32,
    heads: u32,
    // Groups of columns per head.
    parts: u32,
    groups: u32,
    q: u32, q_row: u32, q_head: u32,
    k: u32, k_row: u32, k_head: u32,
    v: u32, v_row: u32, v_head: u32,
    g: u32, g_row: u32, g_head: u32,
    beta: u32, beta_row: u32,
    y: u32, y_row: u32, y_head: u32,
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> step: array<u32>;
@group(0) @binding(2) var<storage, read> q: array<f32>;
@group(0) @binding(3) var<storage, read> k: array<f32>;
@group(0) @binding(4) var<storage, read> v: array<f32>;
@group(0) @binding(5) var<storage, read> g: array<f32>;
@group(0) @binding(6) var<storage, read> beta: array<f32>;
@group(0) @binding(7) var<storage, read_write> y: array<f32>;
@group(0) @binding(8) var<storage, read_write> states: array<f32>;

const THREADS: u32 = COLUMNS * SHARES;

var<workgroup> matrix: array<f32, WIDTH * COLUMNS>;
var<workgroup> query: array<f32, WIDTH>;
var<workgroup> key: array<f32, WIDTH>;
var<workgroup> decay: array<f32, WIDTH>;
var<workgroup> predicted: array<f32, THREADS>;
var<workgroup> answered: array<f32, THREADS>;

fn write(slot: u32, head: u32, column: u32, thread: u32) {
    let base = (slot * params.heads + head) * WIDTH * WIDTH;
    if (column < WIDTH) {
        for (var i = thread / COLUMNS; i < WIDTH; i += SHARES) {
            states[base + i * WIDTH + column] = matrix[i * COLUMNS + thread % COLUMNS];
        }
    }
}

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let number = group.y * GRID_WIDTH + group.x;
    if (number >= params.groups) { return; }
    let span = params.spans + number / (params.parts * params.heads) * SPAN_WORDS;
    let head = number / params.parts % params.heads;
    let column = number % params.parts * COLUMNS + thread % COLUMNS;
    let share = thread / COLUMNS;
    let inside = column < WIDTH;
    let first = step[span];
    let rows = step[span + 1u];
    let before = step[span + 2u];
    let kept = step[span + 4u];
    let kept_at = step[span + 5u];
    for (var i = share; i < WIDTH; i += SHARES) {
        matrix[i * COLUMNS + thread % COLUMNS] = 0.0;
        if (before != NO_SLOT && inside) {
            let base = (before * params.heads + head) * WIDTH * WIDTH;
            matrix[i * COLUMNS + thread % COLUMNS] = states[base + i * WIDTH + column];
        }
    }
    var next = 0u;
    for (var done = 0u; done < rows; done++) {
        let row = first + done;
        for (var i = thread; i < WIDTH; i += THREADS) {
            query[i] = q[params.q + row * params.q_row + head * params.q_head + i];
            key[i] = k[params.k + row * params.k_row + head * params.k_head + i];
            decay[i] = exp(g[params.g + row * params.g_row + head * params.g_head + i]);
        }
        workgroupBarrier();
        var sum = 0.0;
        for (var i = share; i < WIDTH; i += SHARES) {
            let element = matrix[i * COLUMNS + thread % COLUMNS] * decay[i];
            matrix[i * COLUMNS + thread % COLUMNS] = element;
            sum += key[i] * element;
        }
        predicted[thread] = sum;
        workgroupBarrier();
        var prediction = 0.0;
        for (var i = 0u; i < SHARES; i++) { prediction += predicted[i * COLUMNS + thread % COLUMNS]; }
        var value = 0.0;
        if (inside) { value = v[params.v + row * params.v_row + head * params.v_head + column]; }
        let change = (value - prediction) / (1.0 + exp(-beta[params.beta + row * params.beta_row + head]));
        sum = 0.0;
        for (var i = share; i < WIDTH; i += SHARES) {
            let element = matrix[i * COLUMNS + thread % COLUMNS] + key[i] * change;
            matrix[i * COLUMNS + thread % COLUMNS] = element;
            sum += query[i] * element;
        }
        answered[thread] = sum;
        workgroupBarrier();
        if (share == 0u && inside) {
            var answer = 0.0;
            for (var i = 0u; i < SHARES; i++) { answer += answered[i * COLUMNS + thread]; }
            y[params.y + row * params.y_row + head * params.y_head + column] = answer;
        }
        if (next < kept && step[kept_at + 2u * next] == done + 1u) {
            write(step[kept_at + 2u * next + 1u], head, column, thread);
            next++;
        }
    }
    write(step[span + 3u], head, column, thread);
}
