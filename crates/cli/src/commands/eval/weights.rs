//! `latent eval weights`.

use super::failure::failed;
use super::results::{self, evaluation, unmeasured};
use crate::args::WeightsArgs;
use crate::{interrupt, model, progress};
use anyhow::Result;
use latent_evaluate::{EvaluatedModel, EvaluationResult, WeightErrors, WeightGroup};
use latent_threads::Topology;

pub(super) fn run(args: &WeightsArgs) -> Result<()> {
    results::check(&args.result, args.force)?;
    let checkpoint = model::open(args.model.as_deref())?;
    let base = model::open(Some(&args.base_model))?;
    let threads = args.threads.map_or_else(
        || latent_threads::threads_for(&Topology::detect(), latent_threads::parallelism()),
        usize::from,
    );
    let bar = progress::bar(!args.result.json, "comparing");
    let found = latent_evaluate::weight_errors(&checkpoint, &base, threads, &|done, all| {
        bar.set_length(all as u64);
        bar.set_position(done as u64);
        !interrupt::asked()
    });
    bar.finish_and_clear();
    let found = found.map_err(failed)?;
    let lines = lines(&found);
    let model = EvaluatedModel { base: base.display_name(), ..unmeasured(&checkpoint) };
    results::show(&args.result, &evaluation(model, None, EvaluationResult::Weights(found)), &lines)
}

fn lines(found: &WeightErrors) -> Vec<String> {
    let mut lines = vec![format!("relative error {:.5} of {} weights", found.relative, found.elements)];
    for (what, groups) in [("type", &found.types), ("tensors", &found.roles)] {
        lines.push(format!("{what:<28}{:>9}{:>8}{:>12}", "error", "bits", "tensors"));
        lines.extend(groups.iter().map(line));
    }
    if !found.skipped.is_empty() {
        lines.push(format!("{} tensors are in one file only, or have another shape", found.skipped.len()));
    }
    lines
}

fn line(group: &WeightGroup) -> String {
    format!("{:<28}{:>9.5}{:>8.2}{:>12}", group.name, group.relative, group.bits, group.tensors)
}
