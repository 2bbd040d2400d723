//! Finds where two runs diverge: compares their traces point by point, each error against the
//! errors of the point's inputs.
//!
//! * [`compare`]: two traces to a [`ComparisonReport`].
//! * [`Tolerance`]: how far apart two runs may be, from how exactly each computes.
//! * [`dump`]: traces as safetensors files, our own or another program's.

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
    /// The points of its model.
    pub points: &'a Activations,
    /// Its values there.
    pub trace: &'a ActivationTrace,
}

/// How the two runs stand at a point.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PointVerdict {
    /// Every bit agrees.
    Same,
    /// Within the tolerance.
    Within,
    /// Beyond it, but no more than the errors of its inputs explain.
    Follows,
    /// Some numbers are not finite on both sides, which cannot be compared. The others agree.
    NotFinite,
    /// Beyond both: here is something wrong.
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

/// The comparison at one point.
#[derive(Clone, Debug, Serialize)]
pub struct PointReport {
    pub name: String,
    /// The layer; none outside of layers.
    pub layer: Option<usize>,
    /// The operation of the circuit that makes it.
    pub operation: &'static str,
    /// The tensors that it uses.
    pub tensors: Vec<String>,
    /// How far apart the values are.
    #[serde(flatten)]
    pub distance: Distance,
    /// The largest error of a row among the points that it is computed from.
    pub inputs_error: f64,
    /// Those points.
    pub inputs: Vec<String>,
    /// Activations on the way from them that one of the sides did not keep.
    pub unseen: Vec<String>,
    /// The tensors that those use.
    pub unseen_tensors: Vec<String>,
    /// Rows that chose other experts (routing only).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub other_experts: Option<usize>,
    /// What follows from all that.
    pub verdict: PointVerdict,
    /// The operations that made it, on either side, as their plans print them.
    pub made_by: [String; 2],
}

/// The comparison of two runs.
#[derive(Clone, Debug, Serialize)]
pub struct ComparisonReport {
    /// What was allowed.
    pub tolerance: Tolerance,
    /// The points that both sides have, in the order of the circuit.
    pub points: Vec<PointReport>,
    /// Index of the first that parts.
    pub parted: Option<usize>,
    /// Numbers that are NaN, or the same infinity, on both sides, and cannot be compared.
    pub not_finite: u64,
    /// Activations that only one side has, or neither: a plan need not keep every value.
    pub not_compared: Vec<String>,
}

/// Two runs that cannot be compared.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DiffError {
    #[error(
        "{point} has {a} numbers per row on side A and {b} on side B: these are models of different shapes"
    )]
    Width {
        point: String,
        /// Numbers of a row on side A.
        a: usize,
        b: usize,
    },
    #[error(
        "the two sides ran different tokens: {a} on side A and {b} on side B, the first difference at position {at}"
    )]
    Tokens {
        a: usize,
        b: usize,
        /// The first position at which they differ.
        at: usize,
    },
    #[error("the two sides have no value in common to compare; they have {a} and {b} values")]
    Nothing { a: usize, b: usize },
}

/// A row may choose other experts where the error of its router logits is more than this share of `1 / experts`. At the border of the
/// chosen, logits lie about `1 / experts` of their spread apart, and one in a thousand a thousand times nearer.
const TIE: f64 = 1.0 / 1024.0;

/// Compares B with A at every point of A's model that both have.
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
        return Err(DiffError::Nothing { a: count(a), b: count(b) });
    }
    Ok(report)
}

/// Elements of a row below which errors are relative to the size of all rows.
const NARROW_WIDTH: usize = 16;

/// The root mean square of the sizes of all rows.
fn root_mean_square(values: &TraceValues) -> f64 {
    let rows: Vec<&[f32]> = (0..values.have.len()).filter_map(|row| values.row(row)).collect();
    let squares =
        rows.iter().flat_map(|row| row.iter()).filter(|x| x.is_finite()).map(|x| f64::from(*x).powi(2));
    (squares.sum::<f64>() / rows.len().max(1) as f64).sqrt()
}

/// Decides about one point, row by row, and notes its errors for those that are computed from it.
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
    // differences of larger numbers carry the rounding of those, on both sides
    let noise = (left.noise + right.noise) * (left.width as f64).sqrt();
    let usual = if left.width < NARROW_WIDTH { root_mean_square(left) } else { 0.0 };
    for (row, error) in rows.iter_mut().enumerate() {
        let (Some(a), Some(b)) = (left.row(row), right.row(row)) else { continue };
        let (found, size) = row_error(a, b);
        // the few numbers of a narrow row may all be near zero
        let found = if size < usual { found * size / usual } else { found };
        *error = Some(found);
        let inputs = errors.of_inputs(index, row);
        inputs_error = inputs_error.max(inputs);
        let flipped = routing && chosen_otherwise(a, b);
        flips += usize::from(flipped);
        let tie = flipped && inputs * point.width as f64 > TIE;
        let level = tolerance.level + if size > 0.0 { noise / size } else { 0.0 };
        if found > level || found.is_nan() {
            verdict = if found <= tolerance.growth * inputs || tie {
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

/// Errors of rows, and what each point is computed from among those that were compared.
struct RowErrors<'a> {
    points: &'a [Activation],
    /// The error of each row, where the point was compared.
    rows: Vec<Option<Vec<Option<f64>>>>,
    /// The largest error up to each row.
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

    /// The largest error among what a row of `point` is computed from.
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
                    _ => open.push((input, mixes || self.points[input].mixes_rows)),
                }
            }
        }
        largest
    }

    /// The compared points that `point` is computed from, and those on the way that were not compared.
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
