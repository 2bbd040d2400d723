//! `latent quantize` and `latent imatrix`.

use super::limits::{tokens, up_to};
use super::model::ModelArgs;
use clap::Args;
use latent_quantize::{Mix, Pattern};
use latent_types::TensorType;
use std::path::PathBuf;

pub(crate) const QUANTIZE_HELP: &str = "Examples:
  latent quantize -m model-BF16.gguf Q4_K_M               writes model-Q4_K_M.gguf
  latent quantize -m model-BF16.gguf Q4_K_M --dry-run     size, memory and speed, without writing
  latent quantize -m model-BF16.gguf --target-size 16GB   the best file of this size
  latent quantize -m model-BF16.gguf IQ3_XXS --imatrix imatrix.gguf
  latent quantize -m model-BF16.gguf Q4_K_M --tensor-type attn_kv=Q8_0 --tensor-type ffn_down=Q6_K

An interrupted run leaves OUT.….part; the same command goes on with it. docs/quantising.md has more.";

/// What `latent convert` takes as well.
#[derive(Args, Debug)]
pub(crate) struct TypeArgs {
    /// Importances of columns, which errors are weighted by: a file of `latent imatrix` or of llama-imatrix (GGUF or .dat)
    #[arg(long, value_name = "FILE")]
    pub(crate) imatrix: Option<PathBuf>,

    /// The type of tensors in whose names the regular expression is found; may be given several times, the first that is found counts
    #[arg(long, value_name = "REGEX=TYPE", value_parser = tensor_type)]
    pub(crate) tensor_type: Vec<(Pattern, TensorType)>,

    /// The type of the output matrix
    #[arg(long, value_name = "TYPE", value_parser = TensorType::from_name)]
    pub(crate) output_tensor_type: Option<TensorType>,

    /// The type of the token embedding
    #[arg(long, value_name = "TYPE", value_parser = TensorType::from_name)]
    pub(crate) token_embedding_type: Option<TensorType>,

    /// The type's own type for all matrices, without a mix
    #[arg(long)]
    pub(crate) pure: bool,

    /// Quantize tensors that are quantized already, which loses quality once more
    #[arg(long)]
    pub(crate) allow_requantize: bool,

    /// Choose types with which the file has at most this size (16GB, 900MB, 15.5GiB) and the lowest errors, measured on rows of every tensor; tensors that
    /// --tensor-type names keep their types
    #[arg(long, value_name = "SIZE", value_parser = size, conflicts_with = "pure")]
    pub(crate) target_size: Option<u64>,

    /// Write nothing: say which types tensors would get, the file's size, the memory that it takes to run and how fast it can be
    #[arg(long)]
    pub(crate) dry_run: bool,

    /// Threads [default: one for each core that this process may use]
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) threads: Option<u16>,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct QuantizeArgs {
    /// A .gguf file (any shard of a set) or hf:OWNER/NAME[:QUANT]
    #[arg(short, long, env = "LATENT_MODEL")]
    pub(crate) model: PathBuf,

    /// A type (F16, BF16, Q8_0, Q6_K, …) or a mix of types (Q4_K_M, Q3_K_L, IQ3_XS, MXFP4_MOE, …), as llama.cpp has them
    #[arg(value_name = "TYPE", value_parser = mix, required_unless_present_any = ["target_size", "target_kl"])]
    pub(crate) mix: Option<Mix>,

    /// The file to write [default: beside the model, TYPE in place of the name of a type at the end of its name]
    #[arg(short, long, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) types: TypeArgs,

    /// Choose types for the smallest file whose next tokens have at most this mean KL divergence (nats) from the model's on --file: several files are written and
    /// run until it is found
    #[arg(long, value_name = "X", value_parser = nearness, requires = "file", conflicts_with_all = ["pure", "target_size"])]
    pub(crate) target_kl: Option<f64>,

    /// The text for --target-kl; with --target-size, errors count by what those of each kind of tensor do to the model's next tokens on this text, which some
    /// ten trials measure
    #[arg(long, value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,

    /// Tokens of the text that are run together, and of which the second half counts
    #[arg(long, default_value_t = 512, value_name = "N", value_parser = tokens(4))]
    pub(crate) chunk_size: usize,

    /// Most chunks of the text
    #[arg(long, default_value_t = 4, value_name = "N", value_parser = up_to(4096))]
    pub(crate) chunks: usize,

    /// Replace an existing file
    #[arg(long)]
    pub(crate) force: bool,
}

pub(crate) const IMATRIX_HELP: &str = "Example:
  latent imatrix -m model-BF16.gguf -f calibration.txt -o imatrix.gguf
  latent quantize -m model-BF16.gguf IQ3_XXS --imatrix imatrix.gguf";

#[derive(Args, Debug)]
pub(crate) struct ImatrixArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,

    /// A text of the kind that the model is to be good at
    #[arg(short, long, value_name = "FILE")]
    pub(crate) file: PathBuf,

    /// The file to write
    #[arg(short, long, value_name = "FILE", default_value = "imatrix.gguf")]
    pub(crate) out: PathBuf,

    /// Tokens that are run together
    #[arg(long, default_value_t = 512, value_name = "N", value_parser = tokens(2))]
    pub(crate) chunk_size: usize,

    /// Most chunks that are run [default: all of the text]
    #[arg(long, value_name = "N", value_parser = up_to(1 << 20))]
    pub(crate) chunks: Option<usize>,

    /// Importances of the output matrix too
    #[arg(long)]
    pub(crate) process_output: bool,
}

fn mix(name: &str) -> Result<Mix, String> {
    Mix::from_name(name)
        .ok_or_else(|| latent_quantize::QuantizeError::UnknownMix(name.to_owned()).to_string())
}

fn size(text: &str) -> Result<u64, String> {
    let units = [("GiB", 30), ("MiB", 20), ("KiB", 10)];
    let binary =
        units.iter().find_map(|(unit, bits)| Some((text.strip_suffix(unit)?, f64::from(1u32 << bits))));
    let decimal = || {
        let units = [("GB", 1e9), ("MB", 1e6), ("kB", 1e3), ("KB", 1e3), ("B", 1.0)];
        units.iter().find_map(|(unit, factor)| Some((text.strip_suffix(unit)?, *factor)))
    };
    let (number, factor) = binary.or_else(decimal).ok_or("expected a size such as 16GB, 900MB or 15.5GiB")?;
    match number.trim().parse::<f64>() {
        Ok(number) if number > 0.0 && number * factor < 1e16 => Ok((number * factor) as u64),
        _ => Err("expected a size such as 16GB, 900MB or 15.5GiB".into()),
    }
}

fn nearness(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(kl) if kl > 0.0 && kl.is_finite() => Ok(kl),
        _ => Err("expected a number of nats above 0, such as 0.02".into()),
    }
}

fn tensor_type(text: &str) -> Result<(Pattern, TensorType), String> {
    let (pattern, ty) = text.rsplit_once('=').ok_or("expected REGEX=TYPE")?;
    let ty = TensorType::from_name(ty).map_err(|error| error.to_string())?;
    Ok((Pattern::new(pattern).map_err(|error| error.to_string())?, ty))
}

#[cfg(test)]
mod tests {
    use super::size;

    #[test]
    fn sizes_have_units() {
        assert_eq!(size("16GB"), Ok(16_000_000_000));
        assert_eq!(size("1.5GiB"), Ok(3 << 29));
        assert_eq!(size("900 MB"), Ok(900_000_000));
        assert_eq!(size("12B"), Ok(12));
        for bad in ["", "16", "GB", "-1GB", "1e99GB", "NaNGB", "0MB"] {
            assert!(size(bad).is_err(), "{bad}");
        }
    }
}
