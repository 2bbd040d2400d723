//! KL divergence of quantization types. Trial files are written next to the target, run over a
//! text, and removed.

use super::chunks::chunks;
use crate::args::QuantizeArgs;
use crate::exit::UsageError;
use crate::progress::LateBar;
use crate::{interrupt, output};
use anyhow::{Context, Result};
use latent_convert::quantize::{Assignment, SizeFit, TypeMeasurements, write};
use latent_engine::cache::Sequence;
use latent_engine::{Engine, EngineError, EngineOptions, LogitsRequest};
use latent_formats::{Checkpoint, output_file};
use latent_types::format_bytes;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Maximum number of trial files.
const MAX_TRIALS: usize = 7;

/// Sizes within this ratio count as equal.
const MIN_SIZE_RATIO: f64 = 1.01;

/// Log-probabilities of the original model, with which trials are compared.
pub(super) struct Trials {
    model: Vec<Vec<f32>>,
    chunks: Vec<Vec<u32>>,
    threads: usize,
    /// The folder of trial files.
    folder: PathBuf,
}

impl Trials {
    pub(super) fn new(
        checkpoint: &Arc<Checkpoint>,
        text: &Path,
        out: &Path,
        args: &QuantizeArgs,
    ) -> Result<Trials> {
        // Next to the target: /tmp may be a RAM disk without room for a model.
        let folder = out.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let mut trials = Trials {
            model: Vec::new(),
            chunks: chunks(checkpoint, text, args.chunk_size, Some(args.chunks))?,
            threads: args.types.threads(),
            folder: folder.to_owned(),
        };
        trials.model = trials.logits(checkpoint)?;
        Ok(trials)
    }

    /// Mean KL divergence, in nats, of the file that an assignment would write.
    fn divergence(&self, assignment: &Assignment<'_>) -> Result<f64> {
        // The folder is removed when this function returns, so only one trial file exists at a
        // time.
        let place = output_file::temporary_folder(&self.folder);
        let place = place.with_context(|| self.folder.display().to_string())?;
        let path = place.path().join("trial.gguf");
        write(assignment, &path, self.threads, &mut |_, _| !interrupt::asked())?;
        let trial = Arc::new(Checkpoint::open(&path)?);
        Ok(kl(&self.model, &self.logits(&trial)?))
    }

    /// Weights the errors of each group of tensors by their measured effect on the next tokens.
    pub(super) fn measure_sensitivities(
        &self,
        assignment: &mut Assignment<'_>,
        measured: &mut TypeMeasurements,
    ) -> Result<()> {
        let groups = assignment.groups(measured);
        let mut bar = LateBar::new(true, "comparing", groups.len());
        let mut divergences = Vec::with_capacity(groups.len());
        for group in groups {
            assignment.try_group(measured, &group)?;
            divergences.push((group, self.divergence(assignment)?));
            bar.set(divergences.len() as u64, divergences.capacity() as u64);
        }
        bar.finish();
        measured.set_sensitivities(&divergences);
        Ok(())
    }

    /// Assigns the types of the smallest trial within `target`. Returns its cost and its mean KL
    /// divergence in nats.
    pub(super) fn nearest(
        &self,
        assignment: &mut Assignment<'_>,
        measured: &TypeMeasurements,
        target: f64,
    ) -> Result<(SizeFit, f64)> {
        let (least, most) = measured.range();
        let bar = LateBar::new(true, "searching", MAX_TRIALS);
        let mut done = 0;
        let mut trial = |size: u64| -> Result<(SizeFit, f64)> {
            let fit = assignment.fit(measured, size)?;
            let kl = self.divergence(assignment)?;
            done += 1;
            bar.set(done, MAX_TRIALS as u64);
            output::note(&format!("{}: KL divergence {kl:.5} nats", format_bytes(fit.bytes)));
            Ok((fit, kl))
        };
        // The largest file bounds what is possible: if it misses the target, so do all others.
        let mut best = trial(most)?;
        if best.1 > target {
            let (kl, bytes) = (best.1, format_bytes(best.0.bytes));
            let problem =
                format!("--target-kl {target} cannot be reached: the largest file ({bytes}) has {kl:.5}");
            return Err(UsageError(problem).into());
        }
        let (mut low, mut high) = (least as f64, most as f64);
        for _ in 1..MAX_TRIALS {
            if high / low < MIN_SIZE_RATIO {
                break;
            }
            // Bisection of the logarithm: sizes differ by factors.
            let size = (low * high).sqrt();
            let tried = trial(size as u64)?;
            if tried.1 <= target {
                (high, best) = (size, tried);
            } else {
                low = size;
            }
        }
        // The last trial may have been one above the target, so the best size is assigned again.
        Ok((assignment.fit(measured, high as u64)?, best.1))
    }

    /// Log-probabilities of the second half of each chunk: its tokens have at least half a chunk of
    /// context, as in llama-perplexity.
    fn logits(&self, checkpoint: &Arc<Checkpoint>) -> Result<Vec<Vec<f32>>> {
        let context = self.chunks.first().map_or(1, Vec::len);
        let options = EngineOptions {
            context: Some(context),
            placement: Some(latent_threads::Placement::anywhere(self.threads)),
            ..EngineOptions::default()
        };
        let mut engine = Engine::load(&*latent_backends::cpu(), checkpoint, &options, &mut |_, _| {})?;
        let mut all = Vec::new();
        for tokens in &self.chunks {
            let rows: Vec<usize> = (tokens.len() / 2..tokens.len()).collect();
            let chunk = engine.chunk_for(tokens.len());
            let mut sequence = Sequence::default();
            let mut sink = |_: usize, logits: &[f32]| all.push(log_softmax(logits));
            let wanted = LogitsRequest::Rows(&rows);
            engine.prefill(&mut sequence, tokens, chunk, wanted, &mut sink, &mut |_| !interrupt::asked())?;
        }
        if interrupt::asked() { Err(EngineError::Stopped.into()) } else { Ok(all) }
    }
}

fn log_softmax(logits: &[f32]) -> Vec<f32> {
    let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    // A sum of 128k f32 terms would lose digits that a KL divergence of 1e-4 needs.
    let sum: f64 = logits.iter().map(|logit| f64::from(logit - most).exp()).sum();
    logits.iter().map(|logit| (f64::from(logit - most) - sum.ln()) as f32).collect()
}

/// Mean over rows of Σ p · (ln p − ln q), in nats.
fn kl(model: &[Vec<f32>], other: &[Vec<f32>]) -> f64 {
    let of_row = |(p, q): (&Vec<f32>, &Vec<f32>)| -> f64 {
        let terms = p.iter().zip(q).map(|(p, q)| f64::from(*p).exp() * (f64::from(*p) - f64::from(*q)));
        terms.sum()
    };
    model.iter().zip(other).map(of_row).sum::<f64>() / model.len().max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kl_divergence_follows_its_definition() {
        let p = log_softmax(&[1.0, 2.0, 3.0]);
        assert!((p.iter().map(|p| f64::from(*p).exp()).sum::<f64>() - 1.0).abs() < 1e-6);
        let p = [p];
        assert!(kl(&p, &p).abs() < 1e-12);
        let (p, q) = ([0.5f64, 0.5], [0.25f64, 0.75]);
        let logs = |p: [f64; 2]| vec![p.map(|p| p.ln() as f32).to_vec()];
        let expected = 0.5 * 2f64.ln() + 0.5 * (2.0f64 / 3.0).ln();
        assert!((kl(&logs(p), &logs(q)) - expected).abs() < 1e-6);
    }
}
