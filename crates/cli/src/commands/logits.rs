//! `latent logits`: prints the logits of given tokens as text or JSON, or writes the base file of
//! llama.cpp's perplexity tool.

use super::eval::{bos, failed};
use crate::args::LogitsArgs;
use crate::exit::{ReportedProblems, UsageError};
use crate::{interrupt, model, output, progress, target};
use anyhow::{Context, Result};
use latent_engine::cache::Sequence;
use latent_engine::{Engine, LogitsRequest};
use latent_evaluate::{EvalError, LogitsWriter, TokenChunks};
use serde::Serializer;
use serde_json::json;
use std::io::{self, Write};
use std::path::Path;

pub(super) fn run(args: &LogitsArgs) -> Result<()> {
    let checkpoint = model::open_shared(&args.model)?;
    let rows = rows(&args.rows, args.tokens.len())?;
    if let Some(path) = &args.kl_divergence_base {
        target::check(path, args.model.engine.force)?;
    }
    let mut engine = model::load(&checkpoint, &args.model.engine, args.json)?;
    if let Some(path) = &args.kl_divergence_base {
        let bos = bos(&checkpoint)?;
        return kl_base(&mut engine, &args.tokens, args.kl_chunk, bos, path);
    }
    let (mut found, mut bad, mut all) = (Vec::new(), 0, 0);
    let mut json = args.json.then(|| JsonRows::begin(engine.config().vocab_size, &rows)).transpose()?;
    let mut written = Ok(());
    let mut sequence = Sequence::default();
    let chunk = engine.chunk_for(args.tokens.len());
    let bar = progress::bar(!args.json, "prefill");
    bar.set_length(args.tokens.len() as u64);
    let result = engine.prefill(
        &mut sequence,
        &args.tokens,
        chunk,
        LogitsRequest::Rows(&rows),
        &mut |_, logits| {
            bad += not_finite(logits);
            all += logits.len();
            match &mut json {
                None => found.push(logits.to_vec()),
                // Rows are written as they are computed: all logits of a long text (128k entries
                // per row) would not fit into memory. The callback returns nothing, so an error is
                // kept for later.
                Some(json) if written.is_ok() => written = json.row(logits),
                Some(_) => {}
            }
        },
        &mut |done| {
            bar.set_position(done as u64);
            !interrupt::asked()
        },
    );
    bar.finish_and_clear();
    result?;
    written.context("standard output")?;
    match json {
        Some(json) => json.end(bad).context("standard output")?,
        None => print(&rows, &found)?,
    }
    if bad > 0 {
        let how = if args.json { ", which JSON gives as null" } else { "" };
        return Err(ReportedProblems(format!(
            "{bad} of {all} logits are NaN or infinite{how}: `latent verify --weights` shows which weights \
             are not finite, `latent diff` where the first such values occur"
        ))
        .into());
    }
    Ok(())
}

/// A stream of JSON rows.
struct JsonRows {
    out: Box<dyn Write>,
    begun: bool,
}

impl JsonRows {
    fn begin(vocab_size: usize, rows: &[usize]) -> io::Result<Self> {
        let mut out: Box<dyn Write> = Box::new(output::json_writer());
        write!(out, "{{\"vocab_size\":{vocab_size},\"rows\":{},\"logits\":[", json!(rows))?;
        Ok(JsonRows { out, begun: false })
    }

    fn row(&mut self, logits: &[f32]) -> io::Result<()> {
        if std::mem::replace(&mut self.begun, true) {
            self.out.write_all(b",")?;
        }
        let mut list = serde_json::Serializer::new(&mut self.out);
        Ok((&mut list).collect_seq(logits.iter().map(|logit| f64::from(*logit)))?)
    }

    fn end(mut self, not_finite: usize) -> io::Result<()> {
        writeln!(self.out, "],\"not_finite\":{not_finite}}}")?;
        self.out.flush()
    }
}

fn not_finite(logits: &[f32]) -> usize {
    logits.iter().filter(|logit| !logit.is_finite()).count()
}

fn print(rows: &[usize], found: &[Vec<f32>]) -> Result<()> {
    for (row, logits) in rows.iter().zip(found) {
        // Of equal logits the smallest token ID wins, as in greedy sampling.
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
    let wrong = |problem: String| -> anyhow::Error { UsageError(format!("--rows {word}: {problem}")).into() };
    let mut rows = match word {
        "all" => (0..count).collect(),
        "last" => vec![count - 1],
        list => {
            let number = |s: &str| {
                s.trim().parse().map_err(|_| {
                    wrong(format!("invalid row number {s:?}: expected all, last, or numbers such as 0,5"))
                })
            };
            list.split(',').map(number).collect::<Result<Vec<usize>>>()?
        }
    };
    // Logits arrive step by step, hence in ascending order. `print` pairs them with these rows.
    rows.sort_unstable();
    rows.dedup();
    match rows.iter().find(|&&row| row >= count) {
        Some(row) => {
            Err(wrong(format!("row {row} is out of range: the {count} tokens have rows 0 to {}", count - 1)))
        }
        None => Ok(rows),
    }
}

/// Writes the file of `llama-perplexity --kl-divergence-base`. As in that tool, BOS replaces the
/// first token of each chunk if the model has one.
fn kl_base(engine: &mut Engine, tokens: &[u32], chunk: usize, bos: Option<u32>, path: &Path) -> Result<()> {
    let chunks = TokenChunks::cut(tokens.to_vec(), chunk, None).map_err(|_| {
        UsageError(format!(
            "--kl-divergence-base needs at least one chunk of --kl-chunk tokens (4 or more), found {}",
            tokens.len()
        ))
    })?;
    let mut writer = LogitsWriter::create(path, &chunks, engine.config().vocab_size).map_err(failed)?;
    let ran =
        latent_evaluate::perplexity(engine, &chunks, bos, Some(&mut writer), &mut |_| !interrupt::asked());
    ran.map_err(|error| match error {
        EvalError::NotFinite { .. } => {
            ReportedProblems(format!("{}: {error}; nothing was written", path.display())).into()
        }
        other => failed(other),
    })?;
    writer.finish().map_err(failed)
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
}
