//! Compares a device's logits with those of the reference backend.

use anyhow::Result;
use latent_backend::Backend;
use latent_engine::cache::Sequence;
use latent_engine::{Engine, EngineOptions, LogitsRequest};
use latent_formats::Checkpoint;
use serde_json::{Value, json};
use std::sync::Arc;

/// Number of last tokens that run one by one, as in decoding. They use the decode plan.
const DECODED_TOKENS: usize = 8;

/// The input of every device.
#[derive(Clone, Copy)]
pub(super) struct CheckInput<'a> {
    pub(super) checkpoint: &'a Arc<Checkpoint>,
    pub(super) tokens: &'a [u32],
}

/// Logits after every token. Most tokens run in one step, the last ones one by one.
pub(super) fn run(
    input: CheckInput<'_>,
    backend: &dyn Backend,
    options: &EngineOptions,
) -> Result<Vec<Vec<f32>>> {
    let mut engine = Engine::load(backend, input.checkpoint, options, &mut |_, _| {})?;
    let mut sequence = Sequence::default();
    let mut rows = Vec::new();
    let (prompt, decoded) = input.tokens.split_at(input.tokens.len().saturating_sub(DECODED_TOKENS));
    for tokens in std::iter::once(prompt).chain(decoded.chunks(1)).filter(|tokens| !tokens.is_empty()) {
        engine.prefill(
            &mut sequence,
            tokens,
            tokens.len(),
            LogitsRequest::All,
            &mut |_, logits| rows.push(logits.to_vec()),
            &mut |_| true,
        )?;
    }
    Ok(rows)
}

/// The outcome of one device in one precision.
pub(super) struct LogitsCheck {
    /// Device, instruction set and precision.
    name: String,
    /// Number of tokens.
    pub(super) rows: usize,
    /// Maximum mean error.
    bound: f64,
    /// Mean relative square error per row and number of rows with the same likeliest token, or why
    /// it could not run.
    outcome: Result<(f64, usize), String>,
}

impl LogitsCheck {
    pub(super) fn new(
        name: String,
        bound: f64,
        reference: &[Vec<f32>],
        got: Result<Vec<Vec<f32>>>,
    ) -> LogitsCheck {
        let outcome = got.map_err(|error| format!("{error:#}")).and_then(|got| compared(reference, &got));
        LogitsCheck { name, rows: reference.len(), bound, outcome }
    }

    /// Whether the error is within the bound.
    pub(super) fn passed(&self) -> bool {
        // NaN compares false, so it fails.
        matches!(self.outcome, Ok((error, _)) if error <= self.bound)
    }

    pub(super) fn line(&self) -> String {
        let verdict = if self.passed() { "ok" } else { "FAILED" };
        let outcome = match &self.outcome {
            Ok((error, same)) => format!(
                "error {error:.1e} (at most {:.0e}), same likeliest token {same} of {}",
                self.bound, self.rows
            ),
            Err(problem) => problem.clone(),
        };
        format!("  {verdict:<6}  {:<22}  {outcome}", self.name)
    }

    pub(super) fn json(&self) -> Value {
        let (error, same, problem) = match &self.outcome {
            Ok((error, same)) => (Some(*error), Some(*same), None),
            Err(problem) => (None, None, Some(problem)),
        };
        json!({
            "name": self.name,
            "passed": self.passed(),
            "rows": self.rows,
            "error": error,
            "bound": self.bound,
            "same_token": same,
            "problem": problem,
        })
    }
}

/// The mean over rows of Σ(a − b)² / Σa², and the number of rows with the same largest logit.
fn compared(reference: &[Vec<f32>], got: &[Vec<f32>]) -> Result<(f64, usize), String> {
    if got.len() != reference.len() || reference.iter().zip(got).any(|(a, b)| a.len() != b.len()) {
        let (rows, expected) = (got.len(), reference.len());
        return Err(format!("found {rows} rows of logits, expected {expected}"));
    }
    // In f64, so that errors of 1e-13 can be measured.
    let square = |value: f32| f64::from(value) * f64::from(value);
    let error = |(a, b): (&Vec<f32>, &Vec<f32>)| {
        let difference: f64 = a.iter().zip(b).map(|(a, b)| (f64::from(*a) - f64::from(*b)).powi(2)).sum();
        difference / a.iter().copied().map(square).sum::<f64>()
    };
    let sum: f64 = reference.iter().zip(got).map(error).sum();
    let largest = |row: &[f32]| row.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).map(|(at, _)| at);
    let same = reference.iter().zip(got).filter(|(a, b)| largest(a) == largest(b)).count();
    Ok((sum / reference.len() as f64, same))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(got: Result<Vec<Vec<f32>>>) -> LogitsCheck {
        let reference = [vec![1.0, 2.0, -3.0], vec![0.5, -0.25, 0.0]];
        LogitsCheck::new("gpu:0, exact".into(), 1e-9, &reference, got)
    }

    #[test]
    fn equal_logits_pass_and_others_fail() {
        let good = check(Ok(vec![vec![1.0, 2.0, -3.0], vec![0.5, -0.25, 0.0]]));
        assert!(good.passed() && good.line().contains("ok  ") && good.line().contains("2 of 2"));
        for bad in [
            vec![vec![1.0, 2.0, -3.0], vec![0.5, -0.25, 0.01]],
            vec![vec![1.0, f32::NAN, -3.0], vec![0.5, -0.25, 0.0]],
            vec![vec![1.0, f32::INFINITY, -3.0], vec![0.5, -0.25, 0.0]],
            vec![vec![1.0, 2.0, -3.0]],
            vec![vec![1.0, 2.0], vec![0.5, -0.25, 0.0]],
            vec![],
        ] {
            let check = check(Ok(bad));
            assert!(!check.passed() && check.line().contains("FAILED"), "{}", check.line());
            assert_eq!(check.json()["passed"], false);
        }
        let broken = check(Err(anyhow::anyhow!("the device was lost")));
        assert!(!broken.passed() && broken.line().contains("the device was lost"));
    }
}
