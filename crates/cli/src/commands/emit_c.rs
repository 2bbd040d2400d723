//! `latent graph --emit-c`: writes the plan of a model as a C library.

use super::stage::PrintedStage;
use crate::args::{GraphArgs, MAX_STEP_ROWS};
use crate::exit::UsageError;
use crate::{model, output, target};
use anyhow::Result;
use latent_emit_c::{CLibrary, EmitRequest, MAX_EMITTED_ROWS};
use latent_engine::SparseAttention;
use latent_formats::{CompleteFile, OutputFile, OutputFolder};
use latent_graph::ModelConfig;
use latent_types::CacheType;
use std::io::Write;
use std::path::Path;

/// Default of `--rows`, the maximum tokens of a step.
const DEFAULT_ROWS: usize = 16;

pub(super) fn run(args: &GraphArgs, stage: PrintedStage, path: Option<&Path>, folder: &Path) -> Result<()> {
    check(args, stage)?;
    let engine = &args.model.engine;
    // An existing folder is checked before the model is read, which takes long.
    if folder.exists() {
        for name in CLibrary::file_names() {
            target::check(&folder.join(name), engine.force)?;
        }
    }
    let checkpoint = model::open(path)?;
    let config = ModelConfig::from_checkpoint(&checkpoint)?;
    let config = match engine.sparse_attention {
        SparseAttention::On => config,
        SparseAttention::Off => config.without_indexer(),
    };
    let circuit = model::circuit_for(engine.circuit.as_deref(), &config)?;
    let request = EmitRequest {
        checkpoint: &checkpoint,
        config: &config,
        circuit: &circuit,
        mla: engine.mla,
        form: engine.form(),
        without: &engine.without,
        rows: args.rows.unwrap_or(DEFAULT_ROWS),
    };
    let library = CLibrary::emit(&request)?;
    write(&library, folder)?;
    let bytes: usize = library.files.iter().map(|file| file.text.len()).sum();
    output::note(&format!(
        "{}: {} files, {}; `make -C {}` builds them",
        folder.display(),
        library.files.len(),
        latent_types::format_bytes(bytes as u64),
        folder.display()
    ));
    Ok(())
}

/// Refuses what has no meaning for the C library.
fn check(args: &GraphArgs, stage: PrintedStage) -> Result<()> {
    let engine = &args.model.engine;
    let usage = |problem: String| Err(UsageError(problem).into());
    if stage != PrintedStage::Plan {
        return usage(format!("--emit-c writes the plan, not the {}: omit that argument", stage.name()));
    }
    if !engine.lora.is_empty() {
        return usage(
            "--emit-c does not support --lora: merge the adapter first (latent quantize --merge-lora)".into(),
        );
    }
    if engine.tuned.is_some() {
        return usage("--emit-c does not support --tuned: the C library has one kernel per operation".into());
    }
    if engine.draft.has_mtp() {
        return usage("--emit-c does not support --draft mtp: the C library has no MTP layers".into());
    }
    if let Some(cache) = engine.cache_type.filter(|cache| *cache != CacheType::F32) {
        return usage(format!(
            "--cache-type {cache}: the C library supports only an f32 cache: omit the flag"
        ));
    }
    let most = MAX_EMITTED_ROWS.min(MAX_STEP_ROWS as usize);
    match args.rows {
        Some(rows) if rows > most => usage(format!(
            "--rows {rows}: a step of the C library has at most {most} rows; longer prompts take several \
             steps"
        )),
        _ => Ok(()),
    }
}

/// Writes all files, or none.
fn write(library: &CLibrary, folder: &Path) -> Result<()> {
    // A library of which one file is missing or old would compile and fail later. The complete
    // files are renamed together at the end, and the folder is removed after an error.
    let made = OutputFolder::create(folder)?;
    let mut complete = Vec::new();
    for file in &library.files {
        let mut out = OutputFile::create(&folder.join(file.name))?;
        out.write_all(file.text.as_bytes()).map_err(|error| out.failed(error))?;
        complete.push(out.complete()?);
    }
    CompleteFile::publish_all(complete)?;
    made.keep();
    Ok(())
}
