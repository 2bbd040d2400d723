//! A trace: the values that a run passes through, at the points that mean the same in every plan.

use crate::error::EngineError;
use crate::memory;
use latent_graph::activations::{Activation, Activations};
use std::ops::Range;

/// Values of one run at each point, a row a token.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    tokens: Vec<u32>,
    /// One for each point; none where it is not wanted.
    values: Vec<Option<Values>>,
}

/// The values of one point.
#[derive(Clone, Debug, Default)]
pub struct Values {
    /// Numbers of a row.
    pub width: usize,
    /// Rows × width.
    pub numbers: Vec<f32>,
    /// Which rows there are: a plan may keep a value for some and not for others.
    pub have: Vec<bool>,
    /// The operation that made them, as a plan prints it.
    pub made_by: String,
    /// What rounding alone may have done to a number, where the values are differences of larger ones.
    pub noise: f64,
}

impl Values {
    /// `rows` rows that are still to come.
    pub fn new(rows: usize, width: usize) -> Values {
        Values { width, numbers: vec![0.0; rows * width], have: vec![false; rows], ..Values::default() }
    }

    /// The row, if it is there.
    pub fn row(&self, row: usize) -> Option<&[f32]> {
        let there = self.have.get(row).copied().unwrap_or(false);
        there.then(|| &self.numbers[row * self.width..(row + 1) * self.width])
    }

    /// Whether any row is there.
    pub fn any(&self) -> bool {
        self.have.contains(&true)
    }

    /// Whether every row is there.
    pub fn all(&self) -> bool {
        !self.have.contains(&false)
    }
}

impl Trace {
    /// A trace of `tokens` at the points of `layers`, those outside of layers, and the residual stream and routing of
    /// every layer; still empty.
    ///
    /// # Errors
    /// When it would not fit into memory.
    pub fn new(points: &Activations, layers: Range<usize>, tokens: &[u32]) -> Result<Trace, EngineError> {
        // the residual stream says with which error a layer begins, and routing why it may leap in another
        let always = |p: &Activation| p.value == "h" || p.value == "router_logits" || p.op == "route";
        let wanted = |p: &Activation| p.layer.is_none_or(|layer| layers.contains(&layer)) || always(p);
        let numbers: usize = points.list().iter().filter(|p| wanted(p)).map(Activation::row_width).sum();
        let bytes = (numbers as u64).saturating_mul(4).saturating_mul(tokens.len() as u64);
        if let Some(available) = memory::available()
            && bytes > available.bytes / 2
        {
            return Err(EngineError::Options(format!(
                "copying these values takes {}, more than half of the {} of memory that is free: give fewer tokens, or fewer \
                 layers with --layers A..B",
                memory::readable(bytes),
                memory::readable(available.bytes)
            )));
        }
        let values =
            points.list().iter().map(|p| wanted(p).then(|| Values::new(tokens.len(), p.row_width())));
        Ok(Trace { tokens: tokens.to_vec(), values: values.collect() })
    }

    /// A trace of `tokens` without values, to be set.
    pub(crate) fn empty(points: &Activations, tokens: Vec<u32>) -> Trace {
        Trace { tokens, values: vec![None; points.list().len()] }
    }

    /// The tokens that were run.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// The values of the point at `index`; none where the run did not keep them.
    pub fn values(&self, index: usize) -> Option<&Values> {
        self.values.get(index).and_then(Option::as_ref).filter(|values| values.any())
    }

    /// Whether the point is to be copied.
    pub(crate) fn wants(&self, point: usize) -> bool {
        self.values.get(point).is_some_and(Option::is_some)
    }

    /// The row of a point, to be filled.
    pub(crate) fn row(&mut self, point: usize, row: usize, made_by: &str) -> &mut [f32] {
        let Some(values) = self.values.get_mut(point).and_then(Option::as_mut) else { return &mut [] };
        if values.made_by.is_empty() {
            made_by.clone_into(&mut values.made_by);
        }
        values.have[row] = true;
        &mut values.numbers[row * values.width..(row + 1) * values.width]
    }

    /// Sets the values of a point.
    pub(crate) fn set(&mut self, point: usize, values: Values) {
        self.values[point] = Some(values);
    }

    /// Gets terms back that plans fold into sums: `(sum − base) ÷ factor`, where both are there.
    pub(crate) fn derive_terms(&mut self, points: &Activations) {
        for (index, point) in points.list().iter().enumerate() {
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

fn difference(sum: &Values, base: &Values, factor: f64) -> Values {
    let mut values = Values::new(sum.have.len(), sum.width);
    let (mut squares, mut count) = (0.0, 0usize);
    for row in 0..sum.have.len() {
        let (Some(sum), Some(base)) = (sum.row(row), base.row(row)) else { continue };
        values.have[row] = true;
        for (out, (s, b)) in values.numbers[row * sum.len()..].iter_mut().zip(sum.iter().zip(base)) {
            let (s, b) = (f64::from(*s), f64::from(*b));
            *out = ((s - b) / factor) as f32;
            squares += s * s;
        }
        count += sum.len();
    }
    values.made_by.clone_from(&sum.made_by);
    values.noise = f64::from(f32::EPSILON) / factor.abs() * (squares / count.max(1) as f64).sqrt();
    values
}
