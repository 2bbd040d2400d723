//! Search for tensor types that fit a file size. It spends bytes where they reduce the error most.

use crate::error::ConvertError;
use crate::quantize::assigned_tensor::AssignedTensor;
use crate::quantize::assignment::Assignment;
use crate::quantize::jobs::{QuantErrorSums, QuantizeWorker};
use crate::quantize::shape::columns_rows_matrices;
use latent_types::TensorType::{self, *};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

/// Candidate types. All of them run as tiles of weights.
const CANDIDATES: [TensorType; 11] = [Q2_K, Q3_K, Q4_0, IQ4_NL, IQ4_XS, Q4_K, Q5_0, Q5_1, Q5_K, Q6_K, Q8_0];

/// Candidate types that are tried only with importances.
const WITH_IMPORTANCES: [TensorType; 4] = [IQ2_XXS, IQ2_S, IQ3_XXS, IQ3_S];

/// Number of rows per tensor on which errors are measured.
const SAMPLED_ROWS: usize = 48;

/// Result of fitting a size.
#[derive(Clone, Debug, PartialEq)]
pub struct SizeFit {
    /// Bytes of the file.
    pub bytes: u64,
    /// Mean relative squared error over the tensors.
    pub error: f64,
    /// The same for the mix that the search started with.
    pub error_of_mix: f64,
    /// Expected KL divergence of the fit and of the mix, if errors were
    /// [weighted](TypeMeasurements::set_sensitivities) by their effect.
    pub expected_kl: Option<(f64, f64)>,
    /// Bytes of the mix's file.
    pub bytes_of_mix: u64,
}

/// A candidate type of a tensor, with its size and error.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct TypeChoice {
    pub ty: TensorType,
    pub bytes: u64,
    pub error: f64,
}

/// Sizes and errors of every type that each tensor may get.
pub struct TypeMeasurements {
    /// Indices of the tensors.
    pub(crate) tensors: Vec<usize>,
    /// The choices of each tensor on its convex hull.
    pub(crate) choices: Vec<Vec<TypeChoice>>,
    /// Weight of each tensor's error. `None` if all are equal.
    pub(crate) weights: Option<Vec<f64>>,
    /// The mix's choice for each tensor.
    of_mix: Vec<TypeChoice>,
    bytes_of_mix: u64,
    /// Bytes of the header, the other tensors and the padding.
    fixed: u64,
}

impl TypeMeasurements {
    /// Bytes of the smallest and of the largest file that the search can produce.
    pub fn range(&self) -> (u64, u64) {
        let sum = |of: fn(&[TypeChoice]) -> Option<&TypeChoice>| {
            self.fixed
                + self.choices.iter().filter_map(|hull| of(hull)).map(|choice| choice.bytes).sum::<u64>()
        };
        (sum(|hull| hull.first()), sum(|hull| hull.last()))
    }

    fn mean(&self, choices: &[TypeChoice]) -> f64 {
        choices.iter().map(|choice| choice.error).sum::<f64>() / self.tensors.len().max(1) as f64
    }

    /// Weighted sum of the errors.
    fn expected_kl(&self, choices: &[TypeChoice]) -> Option<f64> {
        let weights = self.weights.as_ref()?;
        Some(choices.iter().zip(weights).map(|(choice, weight)| choice.error * weight).sum())
    }
}

impl<'a> Assignment<'a> {
    /// Measures the errors of all candidate types on sampled rows of every tensor that no pattern
    /// names, weighted by importances. `progress` receives the finished and the total number of
    /// tensors, and returns whether to continue.
    pub fn measure(
        &self,
        threads: usize,
        progress: &(dyn Fn(usize, usize) -> bool + Sync),
    ) -> Result<TypeMeasurements, ConvertError> {
        let open = |i: &usize| self.tensors[*i].free && !self.tensors[*i].named;
        let tensors: Vec<usize> = (0..self.tensors.len()).filter(open).collect();
        let choices = self.all_choices(&tensors, threads, progress)?;
        // Upper bound: the padding depends on the types.
        let padding = self.alignment()? * self.tensors.len() as u64;
        let bytes_of_mix = self.bytes()?;
        let of_these: u64 = tensors.iter().map(|i| self.tensors[*i].bytes_to).sum();
        let of_mix = tensors.iter().zip(&choices).map(|(tensor, choices)| {
            let AssignedTensor { to, bytes_to, .. } = self.tensors[*tensor];
            // Types that are not smaller than the stored one were not measured; storing it loses
            // nothing.
            let kept = TypeChoice { ty: to, bytes: bytes_to, error: 0.0 };
            choices.iter().find(|choice| choice.ty == to).copied().unwrap_or(kept)
        });
        Ok(TypeMeasurements {
            fixed: bytes_of_mix - of_these + padding,
            of_mix: of_mix.collect(),
            tensors,
            choices: choices.into_iter().map(hull).collect(),
            weights: None,
            bytes_of_mix,
        })
    }

    /// Chooses types for a file of at most `target` bytes that minimize the weighted sum of the
    /// tensors' relative squared errors.
    pub fn fit(&mut self, measured: &TypeMeasurements, target: u64) -> Result<SizeFit, ConvertError> {
        let hulls = &measured.choices;
        let chosen = target
            .checked_sub(measured.fixed)
            .and_then(|room| choose(hulls, measured.weights.as_deref(), room));
        let chosen = chosen.ok_or(ConvertError::TooSmall { target, least: measured.range().0 })?;
        let chosen: Vec<TypeChoice> = hulls.iter().zip(chosen).map(|(hull, at)| hull[at]).collect();
        let types: Vec<(usize, TensorType)> =
            measured.tensors.iter().zip(&chosen).map(|(tensor, choice)| (*tensor, choice.ty)).collect();
        self.retype(&types)?;
        Ok(SizeFit {
            bytes: self.bytes()?,
            error: measured.mean(&chosen),
            error_of_mix: measured.mean(&measured.of_mix),
            expected_kl: measured.expected_kl(&chosen).zip(measured.expected_kl(&measured.of_mix)),
            bytes_of_mix: measured.bytes_of_mix,
        })
    }

    fn all_choices(
        &self,
        tensors: &[usize],
        threads: usize,
        progress: &(dyn Fn(usize, usize) -> bool + Sync),
    ) -> Result<Vec<Vec<TypeChoice>>, ConvertError> {
        let (next, done, stopped) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicBool::new(false));
        let found: Mutex<Vec<Result<Vec<TypeChoice>, ConvertError>>> =
            Mutex::new(tensors.iter().map(|_| Ok(Vec::new())).collect());
        let work = || {
            let mut worker = QuantizeWorker::default();
            loop {
                // Relaxed suffices: the counter guards no data, and the scope's end orders the
                // results.
                let at = next.fetch_add(1, Ordering::Relaxed);
                let Some(tensor) = tensors.get(at).filter(|_| !stopped.load(Ordering::Relaxed)) else {
                    return;
                };
                let choices = self.choices(*tensor, &mut worker);
                found.lock().unwrap_or_else(PoisonError::into_inner)[at] = choices;
                if !progress(done.fetch_add(1, Ordering::Relaxed) + 1, tensors.len()) {
                    stopped.store(true, Ordering::Relaxed);
                }
            }
        };
        thread::scope(|scope| {
            // From 1, because this thread works too.
            (1..threads.min(tensors.len()).min(latent_threads::MAX_THREADS))
                .for_each(|_| drop(scope.spawn(work)));
            work();
        });
        if stopped.into_inner() {
            return Err(ConvertError::Interrupted);
        }
        found.into_inner().unwrap_or_else(PoisonError::into_inner).into_iter().collect()
    }

    fn choices(
        &self,
        tensor: usize,
        worker: &mut QuantizeWorker<'a>,
    ) -> Result<Vec<TypeChoice>, ConvertError> {
        let assigned = &self.tensors[tensor];
        let (columns, rows, matrices) = columns_rows_matrices(&assigned.shape);
        let weighted = self.importances.is_some_and(|all| all.has(&assigned.name));
        let more = WITH_IMPORTANCES.iter().filter(|_| weighted);
        let mut types: Vec<TensorType> = CANDIDATES.iter().chain(more).copied().collect();
        // The mix's own type must be measured for the comparison with the mix.
        if !types.contains(&assigned.to) {
            types.push(assigned.to);
        }
        types.retain(|ty| {
            // The second condition compares bytes per weight without a division: a type that is not
            // smaller than the stored one gains nothing.
            columns.is_multiple_of(ty.block_len())
                && ty.block_bytes() * assigned.kept.block_len() < assigned.kept.block_bytes() * ty.block_len()
        });
        let all = rows * matrices;
        // Evenly spaced rows, so that all experts or heads of a tensor are sampled.
        let step = all.div_ceil(SAMPLED_ROWS).max(1);
        let mut sums = vec![QuantErrorSums::default(); types.len()];
        for row in (0..all).step_by(step) {
            let of_row = worker.errors(self, (tensor, row), &types)?;
            sums.iter_mut().zip(of_row).for_each(|(sums, of_row)| sums.add(of_row));
        }
        let kept = TypeChoice { ty: assigned.kept, bytes: assigned.bytes_kept, error: 0.0 };
        let measured = types.into_iter().zip(sums).map(|(ty, sums)| {
            let error = if sums.squares > 0.0 { sums.errors / sums.squares } else { 0.0 };
            TypeChoice { ty, bytes: (ty.row_bytes(columns).unwrap_or(0) * all) as u64, error }
        });
        Ok(std::iter::once(kept).chain(measured).collect())
    }
}

/// The choices on the lower convex hull of error over bytes, smallest first. No other choice is
/// optimal for any price per byte.
fn hull(mut choices: Vec<TypeChoice>) -> Vec<TypeChoice> {
    choices.sort_by(|a, b| a.bytes.cmp(&b.bytes).then(a.error.total_cmp(&b.error)));
    let mut hull: Vec<TypeChoice> = Vec::new();
    for choice in choices {
        // A choice that takes more bytes without a smaller error is never optimal.
        if hull.last().is_some_and(|last| choice.bytes == last.bytes || choice.error >= last.error) {
            continue;
        }
        // Along the hull, the gain per byte must decrease.
        while let [.., a, b] = hull[..] {
            if gain(&a, &b) > gain(&b, &choice) {
                break;
            }
            hull.pop();
        }
        hull.push(choice);
    }
    hull
}

/// Reduction of the error per additional byte.
fn gain(from: &TypeChoice, to: &TypeChoice) -> f64 {
    (from.error - to.error) / (to.bytes - from.bytes).max(1) as f64
}

/// Greedy solution of the multiple-choice knapsack: starts with the smallest choices and takes the
/// step with the largest error reduction per byte while it fits. `weights` has one weight per hull.
/// Returns an index per hull, or `None` if the smallest choices are too large.
fn choose(hulls: &[Vec<TypeChoice>], weights: Option<&[f64]>, room: u64) -> Option<Vec<usize>> {
    let least: u64 = hulls.iter().filter_map(|hull| hull.first()).map(|choice| choice.bytes).sum();
    let mut left = room.checked_sub(least)?;
    let mut steps: Vec<(f64, usize, usize, u64)> = Vec::new();
    for (tensor, hull) in hulls.iter().enumerate() {
        let weight = weights.map_or(1.0, |weights| weights[tensor]);
        for (at, pair) in hull.windows(2).enumerate() {
            let gained = weight * gain(&pair[0], &pair[1]);
            steps.push((gained, tensor, at + 1, pair[1].bytes - pair[0].bytes));
        }
    }
    // A hull's gains decrease, so its steps stay in order. Ties are broken by index, to be
    // deterministic.
    steps.sort_by(|a, b| b.0.total_cmp(&a.0).then((a.1, a.2).cmp(&(b.1, b.2))));
    let mut chosen = vec![0; hulls.len()];
    for (_, tensor, at, bytes) in steps {
        // A step that did not fit blocks the later steps of its hull; other tensors may still use
        // the space.
        if bytes <= left && chosen[tensor] + 1 == at {
            (chosen[tensor], left) = (at, left - bytes);
        }
    }
    Some(chosen)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choice(bytes: u64, error: f64) -> TypeChoice {
        TypeChoice { ty: F32, bytes, error }
    }

    #[test]
    fn choices_above_the_hull_are_removed() {
        let all = vec![
            choice(40, 0.0),
            choice(10, 1.0),
            choice(20, 0.9),
            choice(25, 0.2),
            choice(25, 0.3),
            choice(30, 0.25),
        ];
        assert_eq!(hull(all), [choice(10, 1.0), choice(25, 0.2), choice(40, 0.0)]);
    }

    #[test]
    fn bytes_are_spent_where_they_lower_the_error_most() {
        let hulls = [
            vec![choice(10, 1.0), choice(20, 0.5), choice(30, 0.4)],
            vec![choice(10, 3.0), choice(20, 1.0), choice(40, 0.0)],
        ];
        assert_eq!(choose(&hulls, None, 19), None);
        assert_eq!(choose(&hulls, None, 20), Some(vec![0, 0]));
        assert_eq!(choose(&hulls, None, 35), Some(vec![0, 1]));
        assert_eq!(choose(&hulls, None, 45), Some(vec![1, 1]));
        assert_eq!(choose(&hulls, None, 1000), Some(vec![2, 2]));
        assert_eq!(choose(&hulls, Some(&[10.0, 1.0]), 35), Some(vec![1, 0]));
    }
}
