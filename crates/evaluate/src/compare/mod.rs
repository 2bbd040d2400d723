//! Finds where two runs diverge: compares their traces activation by activation, and each error
//! with the errors of the activation's inputs.
//!
//! * [`compare`]: two traces to a [`ComparisonReport`].
//! * [`Tolerance`]: allowed differences, derived from the precision of both runs.
//! * [`dump`]: traces as safetensors files, Latent's own or another program's.

pub mod dump;
mod measure;
mod tolerance;

pub use measure::Distance;
pub use tolerance::{Numerics, Tolerance};

use self::measure::{chosen_otherwise, distance, row_error};
use latent_backend::{ActivationTrace, TraceValues};
use latent_graph::activations::{Activation, Activations};
use serde::Serialize;

#[derive(Clone, Copy)]
pub struct ComparedRun<'a> {
    /// The activations of its model.
    pub points: &'a Activations,
    /// The recorded values.
    pub trace: &'a ActivationTrace,
}

/// The verdict about an activation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PointVerdict {
    /// Every bit agrees.
    Same,
    /// Within the tolerance.
    Within,
    /// Beyond the tolerance, but explained by the errors of its inputs.
    Follows,
    /// Some elements are not finite on both sides and cannot be compared. The others agree.
    NotFinite,
    /// Beyond the tolerance and not explained: the operation is faulty.
    Parts,
}

impl PointVerdict {
    pub fn word(self) -> &'static str {
        match self {
            PointVerdict::Same => "same",
            PointVerdict::Within => "within",
            PointVerdict::Follows => "follows",
            PointVerdict::NotFinite => "NaN",
            PointVerdict::Parts => "PARTS",
        }
    }
}

/// The comparison of an activation.
#[derive(Clone, Debug, Serialize)]
pub struct PointReport {
    pub name: String,
    /// The layer; `None` outside of layers.
    pub layer: Option<usize>,
    /// The operation of the circuit that computes it.
    pub operation: &'static str,
    /// The tensors that it uses.
    pub tensors: Vec<String>,
    /// The distance of the values.
    #[serde(flatten)]
    pub distance: Distance,
    /// Maximum error of a row among its inputs.
    pub inputs_error: f64,
    /// The inputs: the compared activations that it is computed from.
    pub inputs: Vec<String>,
    /// Activations between the inputs and this one that a side did not keep.
    pub unseen: Vec<String>,
    /// The tensors that the unseen activations use.
    pub unseen_tensors: Vec<String>,
    /// Number of rows with other experts (routing only).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub other_experts: Option<usize>,
    /// The verdict.
    pub verdict: PointVerdict,
    /// The operations that computed it on each side, as printed in their plans.
    pub made_by: [String; 2],
}

/// The comparison of two runs.
#[derive(Clone, Debug, Serialize)]
pub struct ComparisonReport {
    /// The allowed differences.
    pub tolerance: Tolerance,
    /// The activations that both sides have, in the order of the circuit.
    pub points: Vec<PointReport>,
    /// Index of the first activation with the verdict `Parts`.
    pub parted: Option<usize>,
    /// Number of elements that are NaN or the same infinity on both sides.
    pub not_finite: u64,
    /// Activations that a side lacks. A plan need not keep every value.
    pub not_compared: Vec<String>,
}

/// Errors of runs that cannot be compared.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DiffError {
    #[error(
        "{point} has {a} numbers per row on side A and {b} on side B: these are models of different shapes"
    )]
    Width {
        point: String,
        /// Elements per row on side A.
        a: usize,
        b: usize,
    },
    #[error(
        "the two sides ran different tokens: {a} on side A and {b} on side B, the first difference at position {at}"
    )]
    Tokens {
        a: usize,
        b: usize,
        /// The first position with different tokens.
        at: usize,
    },
    #[error("the two sides have no value in common to compare; they have {a} and {b} values")]
    Nothing { a: usize, b: usize },
}

/// A row may choose other experts if the error of its router logits exceeds this fraction of `1 /
/// experts`.
// Between the last chosen expert and the next one, logits differ by about `1 / experts` of their
// spread on average, and by a thousandth of that in one row of a thousand.
const TIE: f64 = 1.0 / 1024.0;

/// Compares B with A at every activation of A's model that both sides have.
pub fn compare(
    a: ComparedRun<'_>,
    b: ComparedRun<'_>,
    tolerance: Tolerance,
) -> Result<ComparisonReport, DiffError> {
    let (left, right) = (a.trace.tokens(), b.trace.tokens());
    if left != right {
        let at = left.iter().zip(right).take_while(|(a, b)| a == b).count();
        return Err(DiffError::Tokens { a: left.len(), b: right.len(), at });
    }
    let list = a.points.list();
    let mut errors = RowErrors { points: list, rows: vec![None; list.len()], reach: vec![None; list.len()] };
    let mut report = ComparisonReport {
        tolerance,
        points: Vec::new(),
        parted: None,
        not_finite: 0,
        not_compared: Vec::new(),
    };
    for (index, point) in list.iter().enumerate() {
        // By name: the two models may have different circuits, hence different indices.
        let other = b.points.find(&point.name).and_then(|i| b.trace.values(i));
        let (Some(left), Some(right)) = (a.trace.values(index), other) else {
            report.not_compared.push(point.name.clone());
            continue;
        };
        if left.width != right.width {
            return Err(DiffError::Width { point: point.name.clone(), a: left.width, b: right.width });
        }
        let Some(distance) = distance(left, right) else {
            report.not_compared.push(point.name.clone());
            continue;
        };
        let found = judge(&mut errors, index, left, right, distance, tolerance);
        if found.verdict == PointVerdict::Parts && report.parted.is_none() {
            report.parted = Some(report.points.len());
        }
        report.not_finite += found.distance.not_finite;
        report.points.push(found);
    }
    if report.points.is_empty() {
        let count = |side: ComparedRun<'_>| {
            (0..side.points.list().len()).filter(|i| side.trace.values(*i).is_some()).count()
        };
        // An empty report would read as agreement.
        return Err(DiffError::Nothing { a: count(a), b: count(b) });
    }
    Ok(report)
}

/// Rows with fewer elements have errors relative to the mean size of all rows.
const NARROW_WIDTH: usize = 16;

/// Root mean square of the norms of all rows.
fn root_mean_square(values: &TraceValues) -> f64 {
    let rows: Vec<&[f32]> = (0..values.have.len()).filter_map(|row| values.row(row)).collect();
    let squares =
        rows.iter().flat_map(|row| row.iter()).filter(|x| x.is_finite()).map(|x| f64::from(*x).powi(2));
    (squares.sum::<f64>() / rows.len().max(1) as f64).sqrt()
}

/// Judges an activation row by row, and records its errors for the activations computed from it.
fn judge(
    errors: &mut RowErrors<'_>,
    index: usize,
    left: &TraceValues,
    right: &TraceValues,
    distance: Distance,
    tolerance: Tolerance,
) -> PointReport {
    let point = &errors.points[index];
    let routing = point.op == "route";
    let (mut verdict, mut inputs_error, mut flips) = (PointVerdict::Within, 0.0f64, 0);
    let mut rows = vec![None; left.have.len()];
    // `noise` is the rounding error of an activation that is reconstructed from larger values. Both
    // sides may have it.
    let noise = (left.noise + right.noise) * (left.width as f64).sqrt();
    let usual = if left.width < NARROW_WIDTH { root_mean_square(left) } else { 0.0 };
    for (row, error) in rows.iter_mut().enumerate() {
        let (Some(a), Some(b)) = (left.row(row), right.row(row)) else { continue };
        let (found, size) = row_error(a, b);
        // The few elements of a narrow row may all be near zero, which makes its relative error
        // meaningless.
        let found = if size < usual { found * size / usual } else { found };
        *error = Some(found);
        let inputs = errors.of_inputs(index, row);
        inputs_error = inputs_error.max(inputs);
        let flipped = routing && chosen_otherwise(a, b);
        flips += usize::from(flipped);
        // The width of a routing row is the number of experts.
        let tie = flipped && inputs * point.width as f64 > TIE;
        let level = tolerance.level + if size > 0.0 { noise / size } else { 0.0 };
        // NaN compares false with everything, so it is tested separately.
        if found > level || found.is_nan() {
            verdict = if found <= tolerance.growth * inputs || tie {
                // One unexplained row makes the whole activation `Parts`.
                if verdict == PointVerdict::Parts { verdict } else { PointVerdict::Follows }
            } else {
                PointVerdict::Parts
            };
        }
    }
    if distance.not_finite > 0 && verdict != PointVerdict::Parts {
        verdict = PointVerdict::NotFinite;
    } else if distance.max_abs == 0.0 {
        verdict = PointVerdict::Same;
    }
    let (inputs, unseen) = errors.sources(index);
    let unseen_tensors = unseen.iter().flat_map(|i| errors.points[*i].tensors.iter().cloned()).collect();
    let names = |list: Vec<usize>| list.into_iter().map(|i| errors.points[i].name.clone()).collect();
    let (inputs, unseen) = (names(inputs), names(unseen));
    let report = PointReport {
        name: point.name.clone(),
        layer: point.layer,
        operation: point.op,
        tensors: point.tensors.clone(),
        distance,
        inputs_error,
        inputs,
        unseen,
        unseen_tensors,
        other_experts: routing.then_some(flips),
        verdict,
        made_by: [left.made_by.clone(), right.made_by.clone()],
    };
    errors.note(index, rows);
    report
}

/// Errors per row, and the inputs of each activation among the compared ones.
struct RowErrors<'a> {
    points: &'a [Activation],
    /// The error of each row, if the activation was compared.
    rows: Vec<Option<Vec<Option<f64>>>>,
    /// Maximum error up to each row. An operation that mixes rows (attention, recurrence) reads all
    /// rows before its own.
    reach: Vec<Option<Vec<f64>>>,
}

impl RowErrors<'_> {
    fn note(&mut self, point: usize, rows: Vec<Option<f64>>) {
        let mut largest = 0.0f64;
        let reach = rows.iter().map(|error| {
            largest = largest.max(error.unwrap_or(0.0));
            largest
        });
        self.reach[point] = Some(reach.collect());
        self.rows[point] = Some(rows);
    }

    /// Maximum error among the inputs of a row of `point`.
    fn of_inputs(&self, point: usize, row: usize) -> f64 {
        let mut largest = 0.0f64;
        let mut open = vec![(point, self.points[point].mixes_rows)];
        while let Some((at, mixes)) = open.pop() {
            for &input in &self.points[at].inputs {
                match (&self.rows[input], &self.reach[input]) {
                    (Some(_), Some(reach)) if mixes => largest = largest.max(reach[row]),
                    (Some(rows), _) if rows[row].is_some() => {
                        largest = largest.max(rows[row].unwrap_or(0.0));
                    }
                    // This input was not compared: the search continues with its own inputs.
                    _ => open.push((input, mixes || self.points[input].mixes_rows)),
                }
            }
        }
        largest
    }

    /// The compared activations that `point` is computed from, and those between them that were not
    /// compared.
    fn sources(&self, point: usize) -> (Vec<usize>, Vec<usize>) {
        let (mut seen, mut unseen) = (Vec::new(), Vec::new());
        let mut open = vec![point];
        while let Some(at) = open.pop() {
            for &input in &self.points[at].inputs {
                let list = if self.rows[input].is_some() { &mut seen } else { &mut unseen };
                if !list.contains(&input) {
                    list.push(input);
                    if self.rows[input].is_none() {
                        open.push(input);
                    }
                }
            }
        }
        seen.sort_unstable();
        unseen.sort_unstable();
        (seen, unseen)
    }
}
