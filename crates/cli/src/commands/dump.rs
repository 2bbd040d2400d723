//! `latent dump`: writes the activations of a run to a safetensors file.

use super::layers::layers;
use crate::args::DumpArgs;
use crate::{interrupt, model, output, target};
use anyhow::Result;
use latent_evaluate::compare::dump;

pub(super) fn run(args: &DumpArgs) -> Result<()> {
    let checkpoint = model::open_alone(&args.model)?;
    target::check(&args.out, args.model.engine.force)?;
    let mut engine_args = args.model.engine.clone();
    let limit = latent_graph::ModelConfig::before_loading(&checkpoint)?.context_length;
    model::check_length(args.tokens.len(), limit)?;
    engine_args.ctx_size.get_or_insert(args.tokens.len());
    let mut engine = model::load(&checkpoint, &engine_args, true)?;
    let points = engine.activations(&checkpoint)?;
    let layers = layers(args.layers.as_deref(), engine.config().layers)?;
    let trace = engine.trace(&points, layers, &args.tokens, &mut |_| !interrupt::asked())?;
    let count = dump::write(&trace, &points, &args.out)?;
    output::line(&format!("{}: {count} values of {} tokens", args.out.display(), args.tokens.len()))
}
