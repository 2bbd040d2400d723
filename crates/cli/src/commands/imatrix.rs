//! `latent imatrix`: importances of a model's columns, from the activations of a text.

use super::chunks::chunks;
use crate::args::ImatrixArgs;
use crate::exit::ReportedProblems;
use crate::progress::LateBar;
use crate::{interrupt, model, output, target};
use anyhow::{Result, bail};
use latent_convert::quantize::{Calibration, CollectedSums, write_importances};
use latent_engine::Draft;
use latent_formats::CheckpointSource;
use latent_graph::passes::MlaChoice;
use latent_types::format_bytes;

/// The output matrix, whose importances llama.cpp leaves out unless it is asked for them.
const OUTPUT: &str = "output.weight";

/// Every layer for multi-token prediction has a tensor of this name.
const MTP: &str = ".nextn.eh_proj.weight";

pub(super) fn run(args: &ImatrixArgs) -> Result<()> {
    let checkpoint = model::open_alone(&args.model)?;
    target::check(&args.out, args.model.engine.force)?;
    if !matches!(checkpoint.source(), CheckpointSource::Gguf(_)) {
        bail!(
            "{}: importances go by the names of tensors in GGUF files: convert it first, for instance to BF16",
            checkpoint.display_name()
        );
    }
    let chunks = chunks(&checkpoint, &args.file, args.chunk_size, args.chunks)?;
    let mut engine_args = args.model.engine.clone();
    let limit = latent_graph::ModelConfig::before_loading(&checkpoint)?.context_length;
    model::check_length(args.chunk_size, limit)?;
    engine_args.ctx_size = Some(args.chunk_size);
    // so that W_UK and W_UV have inputs of their own
    engine_args.mla = MlaChoice::Absorbed;
    // the key may stand in a file whose converter left the layer out
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
    output::line(&format!(
        "{}: {} tensors, {} chunks of {} tokens, {}",
        args.out.display(),
        collected.len(),
        texts.len(),
        args.chunk_size,
        format_bytes(bytes)
    ))
}

/// Warns of experts that no token chose: nothing is known of their columns.
fn unseen(collected: &[CollectedSums]) {
    let all = || collected.iter().filter(|one| one.counts.len() > 1);
    let never: usize = all().map(|one| one.counts.iter().filter(|count| **count == 0).count()).sum();
    if never > 0 {
        let of: usize = all().map(|one| one.counts.len()).sum();
        output::note(&format!(
            "warning: {never} of {of} matrices of experts met no token, so that all of their columns count alike: more text helps"
        ));
    }
}
