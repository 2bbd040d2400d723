//! `latent make-model`: writes a random model of a known shape.

use crate::args::MakeModelArgs;
use crate::exit::UsageError;
use crate::{output, target};
use anyhow::Result;
use latent_testing::{ModelRecipe, MtpLayer};
use latent_types::TensorType;
use latent_types::format_bytes;

pub(super) fn run(args: &MakeModelArgs) -> Result<()> {
    if args.list {
        return latent_testing::shapes().try_for_each(output::line);
    }
    let (Some(shape), Some(kind), Some(out)) = (&args.shape, &args.kind, &args.out) else {
        return Err(UsageError("give SHAPE TYPE OUT, or --list".into()).into());
    };
    let kv_b = args.kvb.as_deref().map(TensorType::from_name).transpose()?;
    let recipe = ModelRecipe {
        layers: args.layers,
        legacy: args.legacy,
        kv_b,
        types: args.tensor_type.clone(),
        seed: args.seed,
        shards: args.shards,
        header_only: args.header_only,
        sparse: args.sparse,
        mtp: if args.mtp { MtpLayer::Own } else { MtpLayer::None },
        ..ModelRecipe::new(shape, kind.parse()?)
    };
    let as_file = out.extension().is_some_and(|end| end == "gguf");
    let of_files =
        [("--sparse", args.sparse), ("--legacy", args.legacy), ("--shards", args.shards.is_some())];
    if let Some((flag, _)) = of_files.iter().find(|(_, given)| *given && !as_file) {
        return Err(
            UsageError(format!("{flag} requires a .gguf file, but {} is not one", out.display())).into()
        );
    }
    for file in if as_file { recipe.gguf_files(out)? } else { recipe.folder_files(out) } {
        // A missing folder is created, so its files need no check.
        if file.parent().is_none_or(|folder| folder.as_os_str().is_empty() || folder.exists()) {
            target::check(&file, args.force)?;
        }
    }
    let written = if as_file { recipe.write_gguf(out)? } else { recipe.write_folder(out)? };
    output::line(&format!(
        "{}: {} tensors, {}",
        written.first.display(),
        written.tensors,
        format_bytes(written.bytes)
    ))
}
