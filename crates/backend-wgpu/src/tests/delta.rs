//! Compares the delta rule over the spans of a step with its formula in f64.

use crate::buffers::{Buffer, float_bytes, floats, word_bytes};
use crate::commands::Commands;
use crate::device::Device;
use crate::ops::delta_rule::{DeltaCall, DeltaShaders, MAX_WIDTH};
use crate::state_runs::add_rounds;
use crate::testing::{checking_device, device};
use latent_backend::{SeqSpan, SpanState};
use latent_graph::ir::AttentionPath;
use std::ops::Range;
use std::sync::Arc;

const SLOTS: usize = 12;

/// Random numbers between −1 and 1.
fn numbers(seed: u32, count: usize) -> Vec<f32> {
    let mut state = seed;
    let next = |_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..count).map(next).collect()
}

fn span(rows: Range<usize>, first: usize, from: Option<u32>, to: u32, kept: &[(usize, u32)]) -> SeqSpan {
    let state = Some(SpanState { from, to, kept: kept.to_vec(), drafted: false });
    SeqSpan { rows, first, block_table: Vec::new(), path: AttentionPath::All, state }
}

/// One token, a prompt, a prompt that continues inside a chunk, drafts, and a few rows.
fn spans() -> Vec<SeqSpan> {
    let mut drafts = span(63..72, 16, Some(2), 9, &[(3, 10)]);
    drafts.state.as_mut().unwrap().drafted = true;
    vec![
        span(0..1, 33, Some(0), 3, &[]),
        span(1..38, 0, None, 4, &[(20, 5), (32, 6)]),
        span(38..63, 14, Some(1), 7, &[(18, 8)]),
        drafts,
        span(72..75, 5, Some(1), 11, &[]),
    ]
}

/// Compares found numbers with the truth. The name is for error messages.
type Comparison<'c> = dyn FnMut(&str, &[f32], &[f64]) + 'c;

/// Inputs of all heads. Rows have margins, so that a shader with a wrong stride reads wrong
/// numbers.
struct DeltaInputs {
    heads: usize,
    width: usize,
    /// Queries, keys, values and decays.
    inputs: [Vec<f32>; 4],
    beta: Vec<f32>,
    states: Vec<f32>,
}

/// For each input, the elements of a row before its first head, and after its last.
const MARGINS: [(usize, usize); 4] = [(0, 0), (3, 1), (1, 0), (0, 5)];

impl DeltaInputs {
    /// Creates inputs with log decays between 0 and `-steep`, and logits of β up to `logit`.
    fn new(rows: usize, (heads, width): (usize, usize), steep: f32, logit: f32) -> DeltaInputs {
        let mut inputs = [0, 1, 2, 3].map(|i| {
            let (before, after) = MARGINS[i];
            numbers(10 + i as u32, rows * (before + heads * width + after))
        });
        let mut all = DeltaInputs {
            heads,
            width,
            beta: numbers(5, rows * heads),
            states: numbers(6, SLOTS * heads * width * width),
            inputs: Default::default(),
        };
        inputs[3].iter_mut().for_each(|g| *g = (*g - 1.0) / 2.0 * steep);
        // If the logits are large, β is always nearly 0 or nearly 1.
        all.beta.iter_mut().for_each(|beta| *beta = logit * if logit > 50.0 { beta.signum() } else { *beta });
        all.inputs = inputs;
        // Queries and keys have unit length, as in a model.
        for (i, number) in [0, 1].into_iter().flat_map(|i| (0..rows * heads).map(move |number| (i, number))) {
            let at = all.at(i, number / heads, number % heads);
            let x = &mut all.inputs[i][at..at + width];
            let length = x.iter().map(|x| x * x).sum::<f32>().sqrt().max(1e-3);
            x.iter_mut().for_each(|x| *x /= length);
        }
        all
    }

    fn stride(&self, input: usize) -> usize {
        let (before, after) = MARGINS[input];
        before + self.heads * self.width + after
    }

    fn at(&self, input: usize, row: usize, head: usize) -> usize {
        row * self.stride(input) + MARGINS[input].0 + head * self.width
    }

    /// Results of all rows, and the states of all slots.
    fn run(&self, device: &Arc<Device>, spans: &[SeqSpan]) -> (Vec<f32>, Vec<f32>) {
        let (heads, width) = (self.heads, self.width);
        let rows = self.beta.len() / heads;
        let mut words = vec![77; 5];
        let rounds = add_rounds(&mut words, spans.iter());
        let with = |numbers: &[f32]| Buffer::with(device, "numbers", &float_bytes(numbers)).unwrap();
        let step = Buffer::with(device, "step", &word_bytes(&words)).unwrap();
        let inputs = self.inputs.each_ref().map(|input| with(input));
        let (beta, states) = (with(&self.beta), with(&self.states));
        // Results that no shader writes stay NaN and fail the test.
        let nothing = |count: usize| with(&vec![f32::NAN; count]);
        let y = nothing(rows * heads * width);
        let scores = nothing(DeltaShaders::score_bytes(rows, heads) as usize / 4);
        let bound = |i: usize| {
            let address = [MARGINS[i].0, self.stride(i), width].map(|n| n as u32);
            ((&inputs[i]).into(), address)
        };
        let call = DeltaCall {
            step: (&step).into(),
            inputs: [0, 1, 2, 3].map(bound),
            beta: ((&beta).into(), [0, heads as u32]),
            y: ((&y).into(), [0, (heads * width) as u32, width as u32]),
            heads: heads as u32,
            states: (&states).into(),
            scores: (&scores).into(),
        };
        let mut commands = Commands::new(device);
        DeltaShaders::new(device, width).unwrap().record(&mut commands, &call, &rounds);
        commands.submit(&[]).unwrap();
        let read = |buffer: &Buffer| floats(&buffer.read("results", 0..buffer.bytes()).unwrap());
        let mut found = read(&y);
        found.truncate(rows * heads * width);
        (found, read(&states))
    }

    /// Computes the same by the formula, one span and head after the other, and calls `compare`
    /// with the results and the states.
    fn check(&self, spans: &[SeqSpan], found: &(Vec<f32>, Vec<f32>), compare: &mut Comparison<'_>) {
        let (heads, width) = (self.heads, self.width);
        let size = width * width;
        for (number, span) in spans.iter().enumerate() {
            let slots = span.state.as_ref().unwrap();
            for head in 0..heads {
                let of_slot = |slot: u32| {
                    (slot as usize * heads + head) * size..(slot as usize * heads + head + 1) * size
                };
                let mut state: Vec<f64> = match slots.from {
                    Some(slot) => self.states[of_slot(slot)].iter().map(|s| f64::from(*s)).collect(),
                    None => vec![0.0; size],
                };
                let (mut results, mut expected) = (Vec::new(), Vec::new());
                for row in span.rows.clone() {
                    let [q, k, v, g] = [0, 1, 2, 3].map(|i| {
                        let at = self.at(i, row, head);
                        self.inputs[i][at..at + width].iter().map(|x| f64::from(*x)).collect::<Vec<f64>>()
                    });
                    let beta = 1.0 / (1.0 + (-f64::from(self.beta[row * heads + head])).exp());
                    for (s, g) in state.chunks_exact_mut(width).zip(&g) {
                        s.iter_mut().for_each(|s| *s *= g.exp());
                    }
                    let read = |state: &[f64], by: &[f64], j: usize| -> f64 {
                        (0..width).map(|c| by[c] * state[c * width + j]).sum()
                    };
                    let u: Vec<f64> = (0..width).map(|j| beta * (v[j] - read(&state, &k, j))).collect();
                    for (s, k) in state.chunks_exact_mut(width).zip(&k) {
                        s.iter_mut().zip(&u).for_each(|(s, u)| *s += k * u);
                    }
                    expected.extend((0..width).map(|j| read(&state, &q, j)));
                    let at = (row * heads + head) * width;
                    results.extend(&found.0[at..at + width]);
                    let done = row + 1 - span.rows.start;
                    for (_, slot) in slots.kept.iter().filter(|(after, _)| *after == done) {
                        compare(
                            &format!("span {number}, head {head}, row {done}"),
                            &found.1[of_slot(*slot)],
                            &state,
                        );
                    }
                }
                compare(&format!("span {number}, head {head}"), &results, &expected);
                compare(
                    &format!("span {number}, head {head}, last state"),
                    &found.1[of_slot(slots.to)],
                    &state,
                );
                // The state that a span starts from must not change: others may start from it too.
                if let Some(slot) = slots.from {
                    let truth: Vec<f64> = self.states[of_slot(slot)].iter().map(|s| f64::from(*s)).collect();
                    compare(
                        &format!("span {number}, head {head}, first state"),
                        &found.1[of_slot(slot)],
                        &truth,
                    );
                }
            }
        }
    }
}

fn assert_formula(device: &Arc<Device>, shape: (usize, usize), steep: f32, logit: f32) {
    let spans = spans();
    let inputs = DeltaInputs::new(75, shape, steep, logit);
    let found = inputs.run(device, &spans);
    inputs.check(&spans, &found, &mut |name, found, truth| {
        let error: f64 = found.iter().zip(truth).map(|(a, b)| (f64::from(*a) - b).powi(2)).sum();
        let size: f64 = truth.iter().map(|t| t * t).sum();
        // Devices may replace states below the smallest normal number by zeros.
        assert!(error <= 1e-11 * size + 1e-60, "{shape:?} {steep} {logit}: {name}: {:e}", error / size);
    });
}

#[test]
fn spans_in_rows_and_in_chunks_follow_the_formula() {
    let Some(device) = device() else { return };
    for shape in [(1, 1), (3, 5), (2, 18), (16, 24), (5, 32), (1, 75), (2, 128), (1, 130), (1, 256)] {
        assert_formula(&device, shape, 1.0, 3.0);
    }
    assert_formula(&device, (1, MAX_WIDTH), 1.0, 3.0);
    // Weak and strong decays, some beyond the range of f32, and β of 0 and 1.
    for steep in [0.0, 0.05, 5.0, 60.0, 180.0, 1e30] {
        for logit in [3.0, 200.0] {
            assert_formula(&device, (2, 36), steep, logit);
        }
    }
}

#[test]
fn shaders_of_the_delta_rule_stay_inside_their_buffers() {
    let Some(device) = checking_device(None) else { return };
    for shape in [(3, 5), (1, 75), (1, 130)] {
        assert_formula(&device, shape, 1.0, 3.0);
    }
}

#[test]
fn rows_have_the_same_bits_next_to_others_from_a_snapshot_on_and_as_drafts() {
    let Some(device) = device() else { return };
    let inputs = DeltaInputs::new(75, (2, 40), 2.0, 3.0);
    let row = 2 * 40;
    let bits = |x: &[f32]| x.iter().map(|x| x.to_bits()).collect::<Vec<u32>>();
    let all = spans();
    let whole = inputs.run(&device, &all);
    for span in &all {
        let alone = inputs.run(&device, std::slice::from_ref(span));
        let of_span = span.rows.start * row..span.rows.end * row;
        assert_eq!(bits(&whole.0[of_span.clone()]), bits(&alone.0[of_span]), "{span:?}");
    }
    // Continues each span from a snapshot.
    for (number, after, slot) in [(1, 20, 5), (1, 32, 6), (2, 18, 8)] {
        let span = &all[number];
        let mut rest = span.clone();
        (rest.rows.start, rest.first) = (span.rows.start + after, span.first + after);
        let state = rest.state.as_mut().unwrap();
        state.kept.retain(|(row, _)| *row > after);
        state.kept.iter_mut().for_each(|(row, _)| *row -= after);
        state.from = Some(slot);
        let continued = DeltaInputs {
            states: whole.1.clone(),
            inputs: inputs.inputs.clone(),
            beta: inputs.beta.clone(),
            ..inputs
        };
        let found = continued.run(&device, &[rest.clone()]);
        let of_rest = rest.rows.start * row..rest.rows.end * row;
        assert_eq!(bits(&whole.0[of_rest.clone()]), bits(&found.0[of_rest]), "{rest:?}");
        assert_eq!(bits(&whole.1), bits(&found.1), "{rest:?}");
    }
    // Drafts must have the bits of steps of one row.
    let mut states = inputs.states.clone();
    for at in 0..9 {
        // Two slots are used in turn, because a step must not write the slot that it reads.
        let (from, to) = if at % 2 == 0 { (2, 9) } else { (9, 2) };
        let single = span(63 + at..64 + at, 16 + at, Some(from), to, &[]);
        let step = DeltaInputs { states, inputs: inputs.inputs.clone(), beta: inputs.beta.clone(), ..inputs };
        let found = step.run(&device, &[single]);
        let of_row = (63 + at) * row..(64 + at) * row;
        assert_eq!(bits(&whole.0[of_row.clone()]), bits(&found.0[of_row]), "draft {at}");
        states = found.1;
    }
}
