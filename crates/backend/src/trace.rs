//! Activation traces: the values of a run at points that have the same meaning in every plan.

use latent_graph::activations::{Activation, Activations};
use std::ops::Range;

/// Values of one run at each point, one row per token.
#[derive(Clone, Debug, Default)]
pub struct ActivationTrace {
    tokens: Vec<u32>,
    /// Position of the first row.
    first: usize,
    /// One entry per point. `None` if the point is not recorded.
    values: Vec<Option<TraceValues>>,
}

/// The values of one point.
#[derive(Clone, Debug, Default)]
pub struct TraceValues {
    /// Elements per row.
    pub width: usize,
    /// Rows × width.
    pub numbers: Vec<f32>,
    /// Whether each row is recorded. A plan may keep a value only for some rows.
    pub have: Vec<bool>,
    /// The operation that computed them, as a plan prints it.
    pub made_by: String,
    /// Maximum rounding error of a number, if the values are differences of larger ones.
    pub noise: f64,
}

impl TraceValues {
    /// Reserves `rows` rows without values.
    pub fn new(rows: usize, width: usize) -> TraceValues {
        TraceValues {
            width,
            numbers: vec![0.0; rows * width],
            have: vec![false; rows],
            ..TraceValues::default()
        }
    }

    /// The row, if it is recorded.
    pub fn row(&self, row: usize) -> Option<&[f32]> {
        let there = self.have.get(row).copied().unwrap_or(false);
        there.then(|| &self.numbers[row * self.width..(row + 1) * self.width])
    }

    /// Whether any row is recorded.
    pub fn any(&self) -> bool {
        self.have.contains(&true)
    }

    /// Whether every row is recorded.
    pub fn all(&self) -> bool {
        !self.have.contains(&false)
    }
}

impl ActivationTrace {
    /// Creates an empty trace of `tokens`: the activations of `layers`, those outside of layers,
    /// and residual stream and routing of every layer.
    pub fn new(points: &Activations, layers: Range<usize>, tokens: &[u32]) -> ActivationTrace {
        let values = points.list().iter().map(|point| {
            ActivationTrace::covers(point, &layers).then(|| TraceValues::new(tokens.len(), point.row_width()))
        });
        ActivationTrace { tokens: tokens.to_vec(), first: 0, values: values.collect() }
    }

    /// Bytes of [`ActivationTrace::new`] with the same arguments.
    pub fn bytes(points: &Activations, layers: &Range<usize>, tokens: usize) -> u64 {
        let covered = points.list().iter().filter(|point| ActivationTrace::covers(point, layers));
        let elements: usize = covered.map(Activation::row_width).sum();
        (elements as u64).saturating_mul(4).saturating_mul(tokens as u64)
    }

    fn covers(point: &Activation, layers: &Range<usize>) -> bool {
        // Residual stream and routing are always recorded: the first shows the error at the start
        // of a layer, the second explains jumps within it.
        let always = point.value == "h" || point.value == "router_logits" || point.op == "route";
        always || point.layer.is_none_or(|layer| layers.contains(&layer))
    }

    /// Creates a trace of `tokens` whose values are set later.
    pub fn empty(points: &Activations, tokens: Vec<u32>) -> ActivationTrace {
        ActivationTrace { tokens, first: 0, values: vec![None; points.list().len()] }
    }

    /// Creates an empty trace of only the routing of `tokens` from position `first`. Rows are
    /// counted from `first`.
    pub fn routing(points: &Activations, first: usize, tokens: &[u32]) -> ActivationTrace {
        let values = points
            .list()
            .iter()
            .map(|point| (point.op == "route").then(|| TraceValues::new(tokens.len(), point.row_width())));
        ActivationTrace { tokens: tokens.to_vec(), first, values: values.collect() }
    }

    /// The tokens of the run.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// The values of the point at `index`. `None` if the run did not record them.
    pub fn values(&self, index: usize) -> Option<&TraceValues> {
        self.values.get(index).and_then(Option::as_ref).filter(|values| values.any())
    }

    /// Whether the point is recorded.
    pub fn wants(&self, point: usize) -> bool {
        self.values.get(point).is_some_and(Option::is_some)
    }

    /// The row of a point at a position, for the backend to fill. Empty if the trace does not
    /// record it.
    pub fn row(&mut self, point: usize, position: usize, made_by: &str) -> &mut [f32] {
        let Some(values) = self.values.get_mut(point).and_then(Option::as_mut) else { return &mut [] };
        // A routing trace may begin after position 0. Earlier rows are not recorded.
        let Some(row) = position.checked_sub(self.first) else { return &mut [] };
        // Chunks of a prompt may use plans of other sizes; the first one names the operation.
        if values.made_by.is_empty() {
            made_by.clone_into(&mut values.made_by);
        }
        values.have[row] = true;
        &mut values.numbers[row * values.width..(row + 1) * values.width]
    }

    pub fn set(&mut self, point: usize, values: TraceValues) {
        self.values[point] = Some(values);
    }

    /// Recovers terms that plans fold into sums: `(sum − base) ÷ factor`, if both are recorded.
    pub fn derive_terms(&mut self, points: &Activations) {
        for (index, point) in points.list().iter().enumerate() {
            // A recorded value is better than a difference, which loses bits.
            let Some(term) = point.term.filter(|_| self.wants(index) && self.values(index).is_none()) else {
                continue;
            };
            if let (Some(sum), Some(base)) = (self.values(term.sum), self.values(term.base)) {
                let values = difference(sum, base, term.factor);
                self.set(index, values);
            }
        }
    }
}

fn difference(sum: &TraceValues, base: &TraceValues, factor: f64) -> TraceValues {
    let mut values = TraceValues::new(sum.have.len(), sum.width);
    let (mut squares, mut count) = (0.0, 0usize);
    for row in 0..sum.have.len() {
        let (Some(sum), Some(base)) = (sum.row(row), base.row(row)) else { continue };
        values.have[row] = true;
        for (out, (s, b)) in values.numbers[row * sum.len()..].iter_mut().zip(sum.iter().zip(base)) {
            // In f64: the difference of two f32 is not always an f32.
            let (s, b) = (f64::from(*s), f64::from(*b));
            *out = ((s - b) / factor) as f32;
            squares += s * s;
        }
        count += sum.len();
    }
    values.made_by.clone_from(&sum.made_by);
    // Each sum has a rounding error of about one ulp, which the difference keeps and the factor
    // divides.
    values.noise = f64::from(f32::EPSILON) / factor.abs() * (squares / count.max(1) as f64).sqrt();
    values
}
