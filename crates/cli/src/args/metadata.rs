//! Overrides of metadata: `--override-kv` and flags for positions.

use super::limits::DEVELOPER;
use clap::Args;
use latent_formats::MetadataOverride;
use latent_formats::gguf::Value;

/// Flags that change metadata of a GGUF file, with llama.cpp's names and meanings.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct MetadataArgs {
    /// Replace a metadata value, such as deepseek2.context_length=int:65536; types: int, float,
    /// bool, str; repeatable
    #[arg(long, value_name = "KEY=TYPE:VALUE", help_heading = DEVELOPER)]
    pub(crate) override_kv: Vec<MetadataOverride>,

    /// Scaling of positions: none, linear or yarn [default: from the model, as for the next flags]
    #[arg(long, value_name = "HOW", value_parser = ["none", "linear", "yarn"], help_heading = DEVELOPER)]
    pub(crate) rope_scaling: Option<String>,

    /// Factor by which scaling extends the context
    #[arg(long, value_name = "FACTOR", value_parser = factor, help_heading = DEVELOPER, conflicts_with = "rope_freq_scale")]
    pub(crate) rope_scale: Option<f64>,

    /// Base of the RoPE frequencies (0: the model's)
    #[arg(long, value_name = "BASE", value_parser = number, help_heading = DEVELOPER)]
    pub(crate) rope_freq_base: Option<f64>,

    /// Factor for the RoPE frequencies: 0.25 is --rope-scale 4
    #[arg(long, value_name = "FACTOR", value_parser = number, help_heading = DEVELOPER)]
    pub(crate) rope_freq_scale: Option<f64>,

    /// YaRN: context size of the original training, in tokens (0: the model's)
    #[arg(long, value_name = "TOKENS", value_parser = super::limits::tokens(0), help_heading = DEVELOPER)]
    pub(crate) yarn_orig_ctx: Option<usize>,

    /// YaRN: factor for cosine and sine (-1: the model's)
    #[arg(long, value_name = "FACTOR", allow_negative_numbers = true, value_parser = number, help_heading = DEVELOPER)]
    pub(crate) yarn_attn_factor: Option<f64>,

    /// YaRN: share of the original frequency in pairs with many rotations, from 0 to 1 (-1: the
    /// model's)
    #[arg(long, value_name = "X", allow_negative_numbers = true, value_parser = share, help_heading = DEVELOPER)]
    pub(crate) yarn_ext_factor: Option<f64>,

    /// YaRN: pairs of elements with more rotations than this are not scaled (-1: the model's)
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = number, help_heading = DEVELOPER)]
    pub(crate) yarn_beta_fast: Option<f64>,

    /// YaRN: pairs of elements with fewer rotations than this are fully scaled (-1: the model's)
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = number, help_heading = DEVELOPER)]
    pub(crate) yarn_beta_slow: Option<f64>,
}

fn number(word: &str) -> Result<f64, String> {
    word.parse().ok().filter(|number: &f64| number.is_finite()).ok_or_else(|| "expected a number".into())
}

fn share(word: &str) -> Result<f64, String> {
    let share = number(word)?;
    if share <= 1.0 { Ok(share) } else { Err("expected a number from 0 to 1, or -1".into()) }
}

fn factor(word: &str) -> Result<f64, String> {
    let factor = number(word)?;
    if factor >= 1.0 { Ok(factor) } else { Err("expected a number of at least 1".into()) }
}

impl MetadataArgs {
    /// The overrides for an architecture. Later ones take precedence.
    pub(crate) fn overrides(&self, architecture: &str) -> Vec<MetadataOverride> {
        // llama.cpp's scripts pass 0 or -1 for "the model's value", so these are not overrides.
        let real = |value: Option<f64>| value.filter(|value| *value > 0.0).map(Value::Float);
        // --rope-freq-scale is the reciprocal of the metadata key's factor.
        let scale = self.rope_freq_scale.filter(|scale| *scale > 0.0).map(|scale| 1.0 / scale);
        let original = self.yarn_orig_ctx.filter(|tokens| *tokens > 0);
        let flags = [
            ("freq_base", real(self.rope_freq_base)),
            ("scaling.type", self.rope_scaling.clone().map(Value::String)),
            ("scaling.factor", real(self.rope_scale.or(scale))),
            ("scaling.original_context_length", original.map(|tokens| Value::Unsigned(tokens as u64))),
            ("scaling.attn_factor", real(self.yarn_attn_factor)),
            ("scaling.yarn_ext_factor", self.yarn_ext_factor.filter(|share| *share >= 0.0).map(Value::Float)),
            ("scaling.yarn_beta_fast", real(self.yarn_beta_fast)),
            ("scaling.yarn_beta_slow", real(self.yarn_beta_slow)),
        ];
        let flags = flags.into_iter().filter_map(|(name, value)| {
            Some(MetadataOverride { key: format!("{architecture}.rope.{name}"), value: value? })
        });
        flags.chain(self.override_kv.iter().cloned()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct MetadataFlags {
        #[command(flatten)]
        metadata: MetadataArgs,
    }

    #[test]
    fn flags_are_keys_of_the_architecture() {
        let keys = |line: &str| {
            let words = ["latent"].into_iter().chain(line.split_whitespace());
            let all = MetadataFlags::parse_from(words).metadata.overrides("a");
            let shown = all.iter().map(|one| format!("{}={}", one.key, one.value.describe()));
            shown.collect::<Vec<_>>().join(" ")
        };
        assert_eq!(keys("--rope-freq-scale 0.25"), "a.rope.scaling.factor=4");
        assert_eq!(
            keys(
                "--rope-scaling yarn --rope-scale 2 --yarn-orig-ctx 4k --override-kv a.rope.freq_base=float:5"
            ),
            "a.rope.scaling.type=\"yarn\" a.rope.scaling.factor=2 a.rope.scaling.original_context_length=4096 a.rope.freq_base=5"
        );
        // llama.cpp's values for "the model's own".
        assert_eq!(
            keys(
                "--rope-freq-base 0 --yarn-attn-factor -1 --yarn-ext-factor -1 --yarn-beta-fast -1 --yarn-orig-ctx 0"
            ),
            ""
        );
        assert_eq!(keys("--yarn-ext-factor 0"), "a.rope.scaling.yarn_ext_factor=0");
    }
}
