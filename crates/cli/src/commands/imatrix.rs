//! `latent imatrix`: importances of weight columns, from activations of a text.

use super::chunks::chunks;
use crate::args::ImatrixArgs;
use crate::exit::ReportedProblems;
use crate::progress::LateBar;
use crate::{interrupt, model, output, target};
use anyhow::{Result, bail};
use latent_backend::InputSelection;
use latent_convert::quantize::{Calibration, CollectedSums, HessianGroup, write_hessians, write_importances};
use latent_engine::{Draft, Engine, memory};
use latent_formats::CheckpointSource;
use latent_graph::passes::MlaChoice;
use latent_types::format_bytes;
use std::collections::VecDeque;
use std::ops::Range;
use std::path::Path;

/// The output matrix. llama.cpp omits its importances by default (`--process-output`).
const OUTPUT: &str = "output.weight";

/// A tensor that every MTP layer has.
const MTP: &str = ".nextn.eh_proj.weight";

pub(super) fn run(args: &ImatrixArgs) -> Result<()> {
    let checkpoint = model::open_alone(&args.model)?;
    target::check(&args.out, args.model.engine.force)?;
    if let Some(path) = &args.hessians {
        target::check(path, args.model.engine.force)?;
    }
    if !matches!(checkpoint.source(), CheckpointSource::Gguf(_)) {
        bail!(
            "{}: importances need the tensor names of GGUF files: convert it first, for example to BF16",
            checkpoint.display_name()
        );
    }
    let chunks = chunks(&checkpoint, &args.file, args.chunk_size, args.chunks)?;
    let mut engine_args = args.model.engine.clone();
    let limit = latent_graph::ModelConfig::before_loading(&checkpoint)?.context_length;
    model::check_length(args.chunk_size, limit)?;
    engine_args.ctx_size = Some(args.chunk_size);
    // In absorbed MLA, W_UK and W_UV are separate products with inputs of their own. The naive form
    // multiplies kv_b as a whole.
    engine_args.mla = MlaChoice::Absorbed;
    // The metadata key of MTP layers is also in files whose converter dropped the layer, so a
    // tensor decides.
    if checkpoint.tensors().iter().any(|tensor| tensor.name.ends_with(MTP)) {
        engine_args.draft = Draft::Mtp;
    }
    let mut engine = model::load(&checkpoint, &engine_args, false)?;
    let mut bar = LateBar::new(true, "collecting", chunks.len());
    let texts: Vec<&[u32]> = chunks.iter().map(Vec::as_slice).collect();
    let sums = engine.input_squares(&texts, &mut |done| {
        bar.set(done as u64, texts.len() as u64);
        !interrupt::asked()
    });
    bar.finish();
    let matrix = |name: &str| checkpoint.tensor(name).is_some_and(|tensor| tensor.info.shape.len() > 1);
    let collected: Vec<CollectedSums> = sums?
        .into_iter()
        .filter(|(name, _)| matrix(name) && (args.process_output || name != OUTPUT))
        .map(|(tensor, squares)| CollectedSums { tensor, counts: squares.counts, sums: squares.sums })
        .collect();
    // NaN importances would make every later quantization with this file useless.
    if let Some(bad) = collected.iter().find(|one| one.sums.iter().any(|sum| !sum.is_finite())) {
        let problem =
            format!("the inputs of {} become NaN or infinite: `latent diff` shows where", bad.tensor);
        return Err(ReportedProblems(problem).into());
    }
    let calibration = Calibration {
        dataset: args.file.file_name().unwrap_or_default().to_string_lossy().into_owned(),
        chunks: texts.len() as u32,
        chunk_size: args.chunk_size as u32,
    };
    let bytes = write_importances(&args.out, &collected, &calibration)?;
    unseen(&collected);
    if let Some(path) = &args.hessians {
        collect_hessians(&mut engine, &texts, &collected, &calibration, path)?;
    }
    output::line(&format!(
        "{}: {} tensors, {} chunks of {} tokens, {}",
        args.out.display(),
        collected.len(),
        texts.len(),
        args.chunk_size,
        format_bytes(bytes)
    ))
}

/// Runs the text once for each part of the Hessians that fits into memory, and writes them.
fn collect_hessians(
    engine: &mut Engine,
    texts: &[&[u32]],
    collected: &[CollectedSums],
    calibration: &Calibration,
    path: &Path,
) -> Result<()> {
    let groups = HessianGroup::of(collected);
    // Half of the free memory: the file's pages and the engine's buffers need room, too.
    let free = memory::available().map_or(u64::MAX, |free| free.bytes / 2);
    let parts = parts(&groups, free)?;
    let total: u64 = groups.iter().map(HessianGroup::bytes).sum();
    let most = parts.iter().map(|part| part_bytes(part, &groups)).max().unwrap_or(0);
    output::note(&format!(
        "{}: {} of Hessians; {} runs of the text with up to {} of memory",
        path.display(),
        format_bytes(total),
        parts.len(),
        format_bytes(most)
    ));
    let steps = parts.len() * texts.len();
    let mut bar = LateBar::new(true, "multiplying", steps);
    let mut parts = parts.into_iter().enumerate();
    let mut ready: VecDeque<Vec<f32>> = VecDeque::new();
    let mut stopped = None;
    let mut next = || {
        while ready.is_empty() {
            let Some((number, part)) = parts.next() else { break };
            let selections: Vec<InputSelection> = part
                .into_iter()
                .map(|(group, matrices)| InputSelection {
                    tensor: groups[group].weights[0].clone(),
                    matrices,
                })
                .collect();
            let products = engine.input_products(texts, &selections, &mut |done| {
                bar.set((number * texts.len() + done) as u64, steps as u64);
                !interrupt::asked()
            });
            match products {
                Ok(products) => ready.extend(products.into_iter().flat_map(|one| one.triangles)),
                Err(error) => {
                    let message = error.to_string();
                    stopped = Some(error);
                    // `write_hessians` passes on only I/O errors. The original error is kept in
                    // `stopped` and returned below.
                    return Err(std::io::Error::other(message));
                }
            }
        }
        ready.pop_front().ok_or_else(|| std::io::Error::other("a weight has no inputs"))
    };
    let written = write_hessians(path, collected, &groups, calibration, &mut next);
    bar.finish();
    if let Some(error) = stopped {
        return Err(error.into());
    }
    written?;
    Ok(())
}

/// The matrices that one run of the text computes, by group.
type HessianRun = Vec<(usize, Range<usize>)>;

fn part_bytes(part: &HessianRun, groups: &[HessianGroup]) -> u64 {
    part.iter().map(|(group, matrices)| groups[*group].matrix_bytes() * matrices.len() as u64).sum()
}

/// All matrices in order, divided into runs of at most `most` bytes.
fn parts(groups: &[HessianGroup], most: u64) -> Result<Vec<HessianRun>> {
    let mut parts: Vec<HessianRun> = vec![Vec::new()];
    let mut left = most;
    for (number, group) in groups.iter().enumerate() {
        let bytes = group.matrix_bytes();
        if bytes > most {
            bail!(
                "the Hessian of {} takes {}, more than half of the free memory ({})",
                group.weights[0],
                format_bytes(bytes),
                format_bytes(most)
            );
        }
        let mut first = 0;
        while first < group.matrices {
            let count = ((left / bytes.max(1)) as usize).min(group.matrices - first);
            if count == 0 {
                parts.push(Vec::new());
                left = most;
                continue;
            }
            if let Some(part) = parts.last_mut() {
                part.push((number, first..first + count));
            }
            left -= bytes * count as u64;
            first += count;
        }
    }
    Ok(parts)
}

/// Warns about experts that no token chose: their importances are unknown.
fn unseen(collected: &[CollectedSums]) {
    let all = || collected.iter().filter(|one| one.counts.len() > 1);
    let never: usize = all().map(|one| one.counts.iter().filter(|count| **count == 0).count()).sum();
    if never > 0 {
        let of: usize = all().map(|one| one.counts.len()).sum();
        output::note(&format!(
            "warning: {never} of {of} expert matrices were not used by any token, so their columns have \
             equal importance: use more text"
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_fit_into_memory_and_hold_all_matrices_in_order() {
        let group =
            |name: &str, matrices, columns| HessianGroup { weights: vec![name.into()], matrices, columns };
        // 40 and 12 bytes per matrix
        let groups = [group("a", 3, 4), group("b", 2, 2), group("c", 1, 4)];
        let runs = parts(&groups, 100).unwrap();
        assert_eq!(runs, [vec![(0, 0..2),], vec![(0, 2..3), (1, 0..2)], vec![(2, 0..1)]]);
        assert!(runs.iter().all(|run| part_bytes(run, &groups) <= 100));
        assert_eq!(parts(&groups, 1000).unwrap().len(), 1);
        let refused = parts(&groups, 39).unwrap_err().to_string();
        assert!(refused.contains("the Hessian of a takes 40"), "{refused}");
    }
}
