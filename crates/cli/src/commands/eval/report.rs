//! `latent eval report`.

use super::results;
use crate::args::ReportArgs;
use crate::exit::UsageError;
use anyhow::Result;
use latent_evaluate::Evaluation;
use latent_formats::input_file;

/// Maximum bytes of a result file.
const MAX_RESULT_BYTES: u64 = 256 << 20;

pub(super) fn run(args: &ReportArgs) -> Result<()> {
    crate::target::check(&args.out, args.force)?;
    let mut evaluations: Vec<Evaluation> = Vec::with_capacity(args.results.len());
    for path in &args.results {
        let text = input_file::read_text(path, MAX_RESULT_BYTES)?;
        let evaluation = serde_json::from_str(&text).map_err(|error| {
            UsageError(format!("{}: not a result of `latent eval --json`: {error}", path.display()))
        })?;
        evaluations.push(evaluation);
    }
    results::write_page(&args.out, &evaluations)
}
