//! `latent quantize` and `latent imatrix`.

use super::limits::{tokens, up_to};
use super::model::ModelArgs;
use clap::Args;
use latent_convert::ConvertError;
use latent_convert::quantize::{Mix, TensorPattern};
use latent_types::TensorType;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

pub(crate) const QUANTIZE_HELP: &str = "Examples:
  latent quantize -m model-BF16.gguf Q4_K_M       writes model-Q4_K_M.gguf
  latent quantize model-BF16.gguf small.gguf Q4_K_M
  latent quantize -m model-BF16.gguf Q4_K_M --dry-run
  latent quantize -m model-BF16.gguf --target-size 16GB
  latent quantize -m model-BF16.gguf IQ3_XXS --imatrix imatrix.gguf
  latent quantize -m model-BF16.gguf Q4_0 --method gptq --hessians h.gguf
  latent quantize -m model-BF16.gguf BF16 --merge-lora adapter.gguf:0.5
  latent quantize -m model-BF16.gguf Q4_K_M --tensor-type attn_kv=Q8_0

After an interruption, the same command resumes from OUT.….part.
See docs/quantising.md.";

/// What `latent convert` takes as well.
#[derive(Args, Clone, Debug)]
pub(crate) struct TypeArgs {
    /// Importance matrix by which errors are weighted: a file of `latent imatrix` or llama-imatrix
    /// (GGUF or .dat)
    #[arg(long, value_name = "FILE")]
    pub(crate) imatrix: Option<PathBuf>,

    /// Type of the tensors whose names match the regular expression; repeatable, the first match
    /// counts
    #[arg(long, value_name = "REGEX=TYPE", value_parser = tensor_type)]
    pub(crate) tensor_type: Vec<(TensorPattern, TensorType)>,

    /// Type of the output matrix
    #[arg(long, value_name = "TYPE", value_parser = TensorType::from_name)]
    pub(crate) output_tensor_type: Option<TensorType>,

    /// Type of the token embedding
    #[arg(long, value_name = "TYPE", value_parser = TensorType::from_name)]
    pub(crate) token_embedding_type: Option<TensorType>,

    /// Use the base type for all matrices, without a mix
    #[arg(long)]
    pub(crate) pure: bool,

    /// Also quantize tensors that are already quantized; this loses quality again
    #[arg(long)]
    pub(crate) allow_requantize: bool,

    /// Choose types with the lowest errors for a file of at most this size (16GB, 900MB, 15.5GiB);
    /// errors are measured on rows of every tensor. --tensor-type has priority
    #[arg(long, value_name = "SIZE", value_parser = size, conflicts_with = "pure")]
    pub(crate) target_size: Option<u64>,

    /// Write nothing; print the types of the tensors, the size of the file, and the memory and
    /// speed to expect
    #[arg(long)]
    pub(crate) dry_run: bool,

    /// Number of threads [default: one per available core]
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) threads: Option<u16>,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct QuantizeArgs {
    /// A type (F16, BF16, Q8_0, Q6_K, …) or a mix of types (Q4_K_M, Q3_K_L, IQ3_XS, MXFP4_MOE, …),
    /// as in llama.cpp. The model and the output file may come first, and a number of threads last,
    /// as for llama-quantize
    #[arg(value_name = "[MODEL [OUT]] TYPE", num_args = 0..=4)]
    pub(crate) words: Vec<String>,

    /// A .gguf file (any shard of a set) or hf:OWNER/NAME[:QUANT] [env: LATENT_MODEL]
    // Without `env`: clap would treat LATENT_MODEL like --model, and then a positional MODEL would
    // be an error.
    #[arg(short, long)]
    pub(crate) model: Option<PathBuf>,

    /// Output file [default: next to the model, with TYPE in its name]
    #[arg(short, long, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) types: TypeArgs,

    /// Rounding: search (the scales with the lowest error per block) or gptq (later columns
    /// compensate for errors of earlier ones, by the Hessians of a text; Q4_0, Q4_K, MXFP4, NVFP4)
    #[arg(long, default_value = "search", value_name = "NAME")]
    pub(crate) method: QuantizeMethod,

    /// Hessians for --method gptq, a file of `latent imatrix --hessians`
    #[arg(long, value_name = "FILE")]
    pub(crate) hessians: Option<PathBuf>,

    /// What is added to the diagonal of a Hessian, as a fraction of its mean [default: 0.01]
    #[arg(long, value_name = "X", value_parser = damping, requires = "hessians", hide_short_help = true)]
    pub(crate) damping: Option<f64>,

    /// Round the columns of a block in the order of the Hessian's diagonal, the largest first
    #[arg(long, requires = "hessians", hide_short_help = true)]
    pub(crate) act_order: bool,

    /// Merge a LoRA adapter into the weights: a GGUF file or a folder of PEFT, with a scale
    /// [default: 1]; may be given several times
    #[arg(long, value_name = "FILE[:SCALE]", value_parser = super::model::lora, conflicts_with = "file")]
    pub(crate) merge_lora: Vec<super::model::LoraFile>,

    /// Find the smallest file whose mean KL divergence from the model on --file is at most this
    /// (nats), by writing and running several files
    #[arg(long, value_name = "X", value_parser = nearness, requires = "file", conflicts_with_all = ["pure", "target_size"])]
    pub(crate) target_kl: Option<f64>,

    /// Text for --target-kl; with --target-size, the errors of each kind of tensor are weighted by
    /// the KL divergence that they cause on this text (about ten trials)
    #[arg(long, value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,

    /// Tokens per chunk of the text; the second half of each chunk counts
    #[arg(long, default_value_t = 512, value_name = "N", value_parser = tokens(4), requires = "file", hide_short_help = true)]
    pub(crate) chunk_size: usize,

    /// Maximum number of chunks
    #[arg(long, default_value_t = 4, value_name = "N", value_parser = up_to(4096), requires = "file", hide_short_help = true)]
    pub(crate) chunks: usize,

    /// Replace an existing file
    #[arg(long)]
    pub(crate) force: bool,
}

/// How weights are rounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum QuantizeMethod {
    Search,
    Gptq,
}

/// The task of a command line of `latent quantize`.
#[derive(Debug, PartialEq)]
pub(crate) struct QuantizeTask {
    pub(crate) model: PathBuf,
    /// The output file; `None` if its name comes from the model.
    pub(crate) out: Option<PathBuf>,
    /// `None` if a target size or KL divergence chooses the types.
    pub(crate) mix: Option<Mix>,
    pub(crate) threads: Option<u16>,
}

impl QuantizeArgs {
    /// Combines words and flags. `environment` is the model of LATENT_MODEL.
    ///
    /// # Errors
    /// A sentence about what is missing, given twice or unknown.
    pub(crate) fn task(&self, environment: Option<PathBuf>) -> Result<QuantizeTask, String> {
        let mut words: Vec<&str> = self.words.iter().map(String::as_str).collect();
        let chosen = self.types.target_size.is_some() || self.target_kl.is_some();
        let mut threads = self.types.threads;
        // llama-quantize takes the number of threads as the last word, after the type.
        if let [.., before, last] = words[..]
            && let (Some(_), Ok(count)) = (mix(before), last.parse())
        {
            if threads.replace(count).is_some() {
                return Err(format!("the number of threads is given twice: {last} and --threads"));
            }
            words.pop();
        }
        let mix = words.last().and_then(|word| mix(word));
        match words.last() {
            _ if mix.is_some() => drop(words.pop()),
            // With --target-size or --target-kl a search chooses the types, so a mix is optional.
            _ if chosen => {}
            Some(last) if words.len() > 1 || self.model.is_some() || !is_model(last) => {
                return Err(ConvertError::UnknownMix((*last).to_owned()).to_string());
            }
            _ => {
                return Err(
                    "the TYPE to quantize to is missing: give it as the last argument, such as Q4_K_M".into(),
                );
            }
        }
        let (model, out) = match (words[..].split_first(), &self.model) {
            (None, _) => (None, None),
            (Some((out, [])), Some(_)) => (None, Some(out)),
            (Some((model, [])), None) => (Some(model), None),
            (Some((model, [out])), None) => (Some(model), Some(out)),
            (Some((first, _)), _) => {
                return Err(format!("unexpected argument {first:?}: the model is already given by --model"));
            }
        };
        if let (Some(out), Some(flag)) = (out, &self.out) {
            return Err(format!("the file to write is given twice: {out} and --out {}", flag.display()));
        }
        let model = self.model.clone().or_else(|| model.map(PathBuf::from)).or(environment);
        let model = model.ok_or("give the model: latent quantize MODEL TYPE")?;
        Ok(QuantizeTask { model, out: self.out.clone().or_else(|| out.map(PathBuf::from)), mix, threads })
    }
}

/// Parses a mix by name, or by llama.cpp's number of its file type.
fn mix(word: &str) -> Option<Mix> {
    let numbered = |number: u32| Mix::names().filter_map(Mix::from_name).find(|mix| mix.id() == number);
    Mix::from_name(word).or_else(|| word.parse().ok().and_then(numbered))
}

/// Whether a word looks like a model and not like a type.
fn is_model(word: &str) -> bool {
    word.starts_with("hf:") || word.contains(['/', '.']) || Path::new(word).exists()
}

pub(crate) const IMATRIX_HELP: &str = "Example:
  latent imatrix -m model-BF16.gguf -f calibration.txt -o imatrix.gguf
  latent quantize -m model-BF16.gguf IQ3_XXS --imatrix imatrix.gguf
  latent imatrix -m model-BF16.gguf -f calibration.txt --hessians hessians.gguf
  latent quantize -m model-BF16.gguf Q4_0 --method gptq --hessians hessians.gguf";

#[derive(Args, Debug)]
pub(crate) struct ImatrixArgs {
    /// The model, as with -m
    #[arg(value_name = "MODEL")]
    pub(crate) words: Vec<OsString>,

    #[command(flatten)]
    pub(crate) model: ModelArgs,

    /// A text that resembles the model's later use
    #[arg(short, long, value_name = "FILE")]
    pub(crate) file: PathBuf,

    /// Output file
    #[arg(short, long, value_name = "FILE", default_value = "imatrix.gguf")]
    pub(crate) out: PathBuf,

    /// Tokens per chunk
    #[arg(long, default_value_t = 512, value_name = "N", value_parser = tokens(2))]
    pub(crate) chunk_size: usize,

    /// Maximum number of chunks [default: the whole text]
    #[arg(long, value_name = "N", value_parser = up_to(1 << 20))]
    pub(crate) chunks: Option<usize>,

    /// Also write the Hessians for `latent quantize --method gptq`; the text is run once more
    /// for each part of them that fits into half of the free memory
    #[arg(long, value_name = "FILE")]
    pub(crate) hessians: Option<PathBuf>,

    /// Also record the output matrix
    #[arg(long)]
    pub(crate) process_output: bool,
}

fn size(text: &str) -> Result<u64, String> {
    let units = [("GiB", 30), ("MiB", 20), ("KiB", 10)];
    let binary =
        units.iter().find_map(|(unit, bits)| Some((text.strip_suffix(unit)?, f64::from(1u32 << bits))));
    // Longer units first: "GB" ends in "B".
    let decimal = || {
        let units = [
            ("GB", 1e9),
            ("MB", 1e6),
            ("kB", 1e3),
            ("KB", 1e3),
            ("B", 1.0),
            ("G", 1e9),
            ("M", 1e6),
            ("k", 1e3),
        ];
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

fn damping(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(part) if part > 0.0 && part <= 1000.0 => Ok(part),
        _ => Err("expected a number above 0 and at most 1000, such as 0.01".into()),
    }
}

fn tensor_type(text: &str) -> Result<(TensorPattern, TensorType), String> {
    let (pattern, ty) = text.rsplit_once('=').ok_or("expected REGEX=TYPE")?;
    let ty = TensorType::from_name(ty).map_err(|error| error.to_string())?;
    Ok((TensorPattern::new(pattern).map_err(|error| error.to_string())?, ty))
}

#[cfg(test)]
mod tests {
    use super::size;
    use crate::args::{Cli, Command};
    use std::path::PathBuf;

    #[test]
    fn sizes_have_units() {
        assert_eq!(size("16GB"), Ok(16_000_000_000));
        assert_eq!(size("1.5GiB"), Ok(3 << 29));
        assert_eq!(size("900 MB"), Ok(900_000_000));
        assert_eq!((size("16G"), size("1.5M")), (Ok(16_000_000_000), Ok(1_500_000)));
        assert_eq!(size("12B"), Ok(12));
        for bad in ["", "16", "GB", "-1GB", "1e99GB", "NaNGB", "0MB"] {
            assert!(size(bad).is_err(), "{bad}");
        }
    }

    fn task(words: &str, environment: Option<&str>) -> Result<String, String> {
        let words = std::iter::once("latent quantize").chain(Some(words));
        let words: Vec<_> = words.flat_map(str::split_whitespace).map(Into::into).collect();
        let Command::Quantize(args) = Cli::read(words).map_err(|error| error.to_string())?.command else {
            panic!("no quantize");
        };
        let task = args.task(environment.map(PathBuf::from))?;
        let out = task.out.map(|out| out.display().to_string());
        Ok(format!(
            "{} {out:?} {:?} {:?}",
            task.model.display(),
            task.mix.map(|mix| mix.name()),
            task.threads
        ))
    }

    #[test]
    fn the_model_and_the_target_may_come_before_the_type() {
        for (words, environment, expected) in [
            ("-m m.gguf Q4_K_M", None, "m.gguf None Some(\"Q4_K_M\") None"),
            ("-m m.gguf out.gguf q4_k_m", None, "m.gguf Some(\"out.gguf\") Some(\"Q4_K_M\") None"),
            ("m.gguf Q4_K_M", None, "m.gguf None Some(\"Q4_K_M\") None"),
            ("m.gguf Q4_K_M", Some("e.gguf"), "m.gguf None Some(\"Q4_K_M\") None"),
            ("m.gguf out.gguf Q8_0", None, "m.gguf Some(\"out.gguf\") Some(\"Q8_0\") None"),
            ("m.gguf out.gguf Q8_0 8", None, "m.gguf Some(\"out.gguf\") Some(\"Q8_0\") Some(8)"),
            ("m.gguf out.gguf 7 8", None, "m.gguf Some(\"out.gguf\") Some(\"Q8_0\") Some(8)"),
            ("m.gguf 7", None, "m.gguf None Some(\"Q8_0\") None"),
            ("m.gguf -o out.gguf F16 -t 2", None, "m.gguf Some(\"out.gguf\") Some(\"F16\") Some(2)"),
            ("Q4_K_M", Some("e.gguf"), "e.gguf None Some(\"Q4_K_M\") None"),
            ("m.gguf --target-size 1GB", None, "m.gguf None None None"),
            ("-m m.gguf --target-size 1GB", None, "m.gguf None None None"),
            ("m.gguf o.gguf --target-size 1GB", None, "m.gguf Some(\"o.gguf\") None None"),
        ] {
            assert_eq!(task(words, environment).as_deref(), Ok(expected), "{words}");
        }
        for (words, said) in [
            ("", "the TYPE to quantize to is missing"),
            ("m.gguf", "the TYPE to quantize to is missing"),
            ("-m m.gguf", "the TYPE to quantize to is missing"),
            ("m.gguf Q4_X", "Q4_X"),
            ("-m m.gguf Q4_X", "Q4_X"),
            ("Q4_X", "Q4_X"),
            ("Q4_K_M", "give the model"),
            ("m.gguf o.gguf Q4_K_M -o p.gguf", "twice"),
            ("m.gguf Q4_K_M 4 -t 2", "twice"),
            ("-m m.gguf a.gguf b.gguf Q4_K_M", "--model"),
            ("a.gguf b.gguf c.gguf Q4_K_M", "unexpected"),
        ] {
            let error = task(words, None).unwrap_err();
            assert!(error.contains(said), "{words}: {error}");
        }
    }
}
