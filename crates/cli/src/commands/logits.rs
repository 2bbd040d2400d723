//! `latent logits`: the logits of given tokens, as text, as JSON, or as the base file of llama.cpp's perplexity tool.

use crate::args::LogitsArgs;
use crate::exit::{Found, Usage};
use crate::{interrupt, model, output, progress};
use anyhow::Result;
use latent_engine::cache::Sequence;
use latent_engine::{Engine, LogitsRequest};
use latent_formats::{Checkpoint, OutputFile, Source};
use std::io::Write;
use std::path::Path;

pub(super) fn run(args: &LogitsArgs) -> Result<()> {
    let checkpoint = model::open(args.model.model.as_deref())?;
    let rows = rows(&args.rows, args.tokens.len())?;
    if let Some(path) = &args.kl_divergence_base {
        OutputFile::check(path)?;
    }
    let mut engine = model::load(&checkpoint, &args.model.engine, args.json)?;
    if let Some(path) = &args.kl_divergence_base {
        let bos = bos_of(&checkpoint)?;
        return kl_base(&mut engine, &args.tokens, args.kl_chunk, bos, path);
    }
    let mut found: Vec<Vec<f32>> = Vec::with_capacity(rows.len());
    let mut sequence = Sequence::default();
    let chunk = engine.chunk_for(args.tokens.len());
    let bar = progress::bar(!args.json, "prefill");
    bar.set_length(args.tokens.len() as u64);
    let result = engine.prefill(
        &mut sequence,
        &args.tokens,
        chunk,
        LogitsRequest::Rows(&rows),
        &mut |_, logits| found.push(logits.to_vec()),
        &mut |done| {
            bar.set_position(done as u64);
            !interrupt::asked()
        },
    );
    bar.finish_and_clear();
    result?;
    let bad: usize = found.iter().map(|logits| not_finite(logits)).sum();
    if args.json {
        output::line(&serde_json::to_string(&serde_json::json!({
            "vocab_size": engine.config().vocab_size,
            "rows": rows,
            "not_finite": bad,
            "logits": found,
        }))?)?;
    } else {
        print(&rows, &found)?;
    }
    if bad > 0 {
        let all: usize = found.iter().map(Vec::len).sum();
        let how = if args.json { ", which JSON gives as null" } else { "" };
        return Err(Found(format!(
            "{bad} of {all} logits are NaN or infinite{how}: `latent verify --weights` says which weights are not finite, \
             `latent diff` where the values begin to be"
        ))
        .into());
    }
    Ok(())
}

/// Number of logits that are NaN or infinite.
fn not_finite(logits: &[f32]) -> usize {
    logits.iter().filter(|logit| !logit.is_finite()).count()
}

fn print(rows: &[usize], found: &[Vec<f32>]) -> Result<()> {
    for (row, logits) in rows.iter().zip(found) {
        let best = logits.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1).then(b.0.cmp(&a.0)));
        let best = best.map_or(0, |(token, _)| token);
        output::line(&format!("row {row}: likeliest token {best}"))?;
        let numbers: Vec<String> = logits.iter().map(ToString::to_string).collect();
        output::line(&numbers.join(" "))?;
    }
    Ok(())
}

/// `all`, `last`, or a list.
fn rows(word: &str, count: usize) -> Result<Vec<usize>> {
    let wrong = |problem: String| -> anyhow::Error { Usage(format!("--rows {word}: {problem}")).into() };
    let mut rows = match word {
        "all" => (0..count).collect(),
        "last" => vec![count - 1],
        list => {
            let number = |s: &str| {
                s.trim().parse().map_err(|_| wrong(format!("{s:?} is no row number; give all, last or 0,5")))
            };
            list.split(',').map(number).collect::<Result<Vec<usize>>>()?
        }
    };
    rows.sort_unstable();
    rows.dedup();
    match rows.iter().find(|&&row| row >= count) {
        Some(row) => {
            Err(wrong(format!("there is no row {row}; the {count} tokens have rows 0 to {}", count - 1)))
        }
        None => Ok(rows),
    }
}

/// The BOS token, if a GGUF file asks for it.
fn bos_of(checkpoint: &Checkpoint) -> Result<Option<u32>> {
    let Source::Gguf(source) = checkpoint.source() else { return Ok(None) };
    let adds = source.metadata.bool("tokenizer.ggml.add_bos_token")?.unwrap_or(true);
    let bos = source.metadata.u64("tokenizer.ggml.bos_token_id")?;
    Ok(bos.filter(|_| adds).and_then(|bos| u32::try_from(bos).ok()))
}

/// Logits further below the largest are clamped.
const RANGE: f32 = 16.0;

/// The file that `llama-perplexity --kl-divergence-base` writes: tokens in chunks, and for the second half of each chunk the
/// log-probabilities of all tokens, quantized to 16 bits with a scale and a minimum. As in that tool, the first token of each chunk
/// is replaced by BOS if the model has one.
fn kl_base(engine: &mut Engine, tokens: &[u32], chunk: usize, bos: Option<u32>, path: &Path) -> Result<()> {
    let chunks = tokens.len().checked_div(chunk).unwrap_or(0);
    if chunks == 0 || chunk < 4 {
        let problem = format!(
            "--kl-divergence-base needs at least one chunk of --kl-chunk tokens (4 or more); there are {}",
            tokens.len()
        );
        return Err(Usage(problem).into());
    }
    let vocab = engine.config().vocab_size;
    let mut out = OutputFile::create(path)?;
    let failed = |out: &OutputFile, error| anyhow::Error::from(out.failed(error));
    let mut header = b"_logits_".to_vec();
    for number in [chunk, vocab, chunks] {
        header.extend(u32::try_from(number)?.to_le_bytes());
    }
    for token in &tokens[..chunks * chunk] {
        header.extend(token.to_le_bytes());
    }
    out.write_all(&header).map_err(|error| failed(&out, error))?;
    let mut bad = 0;
    let scored: Vec<usize> = (chunk / 2..chunk - 1).collect();
    for part in tokens.chunks_exact(chunk) {
        let mut part = part.to_vec();
        if let Some(bos) = bos {
            part[0] = bos;
        }
        let mut sequence = Sequence::default();
        let mut written = Ok(());
        let chunk = engine.chunk_for(part.len());
        engine.prefill(
            &mut sequence,
            &part,
            chunk,
            LogitsRequest::Rows(&scored),
            &mut |_, logits| {
                if written.is_ok() {
                    bad += not_finite(logits);
                    written = out.write_all(&log_probabilities(logits));
                }
            },
            &mut |_| !interrupt::asked(),
        )?;
        written.map_err(|error| failed(&out, error))?;
        if bad > 0 {
            let problem = "there are logits that are NaN or infinite, which have no place in such a file: nothing was written";
            return Err(Found(format!("{}: {problem}", path.display())).into());
        }
        engine.release(sequence);
    }
    out.finish()?;
    Ok(())
}

/// Scale, minimum, and one 16-bit quant per token, padded to an even count.
fn log_probabilities(logits: &[f32]) -> Vec<u8> {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let min = logits.iter().copied().fold(f32::INFINITY, f32::min).max(max - RANGE);
    let sum: f64 = logits.iter().map(|l| f64::from((l - max).exp())).sum();
    let minimum = min - max - sum.ln() as f32;
    let scale = (max - min) / 65535.0;
    let mut bytes = Vec::with_capacity(8 + 2 * logits.len().next_multiple_of(2));
    bytes.extend_from_slice(&scale.to_le_bytes());
    bytes.extend_from_slice(&minimum.to_le_bytes());
    let inverse = if scale > 0.0 { 1.0 / scale } else { 0.0 };
    for logit in logits {
        let code = if *logit > min { (inverse * (logit - min)).round_ties_even() as u16 } else { 0 };
        bytes.extend_from_slice(&code.to_le_bytes());
    }
    bytes.resize(8 + 2 * logits.len().next_multiple_of(2), 0);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_read_and_checked() {
        assert_eq!(rows("all", 3).unwrap(), [0, 1, 2]);
        assert_eq!(rows("last", 3).unwrap(), [2]);
        assert_eq!(rows("2,0,2", 3).unwrap(), [0, 2]);
        assert!(rows("3", 3).unwrap_err().to_string().contains("rows 0 to 2"));
        assert!(rows("x", 3).is_err());
    }

    #[test]
    fn log_probabilities_come_back_within_half_a_step() {
        let logits: Vec<f32> = (0..7).map(|i| (i as f32 * 1.7).sin() * 5.0).collect();
        let bytes = log_probabilities(&logits);
        assert_eq!(bytes.len(), 8 + 16);
        let float = |at: usize| f32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let sum: f64 = logits.iter().map(|l| f64::from(*l).exp()).sum();
        for (i, logit) in logits.iter().enumerate() {
            let code = u16::from_le_bytes([bytes[8 + 2 * i], bytes[9 + 2 * i]]);
            let found = float(0) * f32::from(code) + float(4);
            assert!((f64::from(found) - (f64::from(*logit) - sum.ln())).abs() < 2e-4);
        }
    }
}
