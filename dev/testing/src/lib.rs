//! Writes random models of every shape and type for tests and measurements, with Latent's own
//! writers and encoders. The same seed gives the same model.
//!
//! Such a model is untrained, but has the sizes, formats and wiring of a real one.
//!
//! ```
//! let folder = tempfile::tempdir()?;
//! let path = folder.path().join("tiny.gguf");
//! latent_testing::ModelRecipe::new("tiny-v3", "Q4_K_M".parse()?).write_gguf(&path)?;
//! assert!(latent_formats::Checkpoint::open(&path)?.tensor("blk.1.ffn_gate_exps.weight").is_some());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

mod adapter;
mod error;
mod folder;
mod four_bit;
mod gguf;
mod kind;
mod random;
mod shapes;
mod type_rule;

pub use adapter::{RandomPair, random_pairs, write_gguf_adapter, write_peft_adapter};
pub use error::TestingError;
pub use four_bit::{FourBitLayout, FourBitRecipe, Fp8Scale};
pub use kind::RandomWeightTypes;
pub use shapes::shapes;
pub use type_rule::TypeRule;

use latent_graph::config::{KvForm, LayerKind, ModelConfig};
use latent_types::TensorType;
use std::path::PathBuf;

/// Whether tests cover every combination, which `LATENT_TEST_EXHAUSTIVE=1` requests. Otherwise they
/// run a sample.
pub fn exhaustive() -> bool {
    std::env::var_os("LATENT_TEST_EXHAUSTIVE").is_some()
}

/// The items of a sweep that a test runs: all if [`exhaustive`], otherwise one in `every`. A nested
/// sweep passes the number of its outer item as `turn`, so that each outer item gets a different
/// sample.
pub fn sample_of<I: IntoIterator>(items: I, turn: usize, every: usize) -> impl Iterator<Item = I::Item> {
    let every = if exhaustive() { 1 } else { every };
    let numbered = items.into_iter().enumerate();
    numbered.filter(move |(number, _)| (turn + number).is_multiple_of(every)).map(|(_, item)| item)
}

/// The multi-token prediction (MTP) layer of a random model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MtpLayer {
    #[default]
    None,
    /// A layer with its own embedding, head and head norm, like DeepSeek-V3's.
    Own,
    /// A layer that shares the model's embedding, head and head norm.
    Shared,
}

/// The recipe of a random model.
#[derive(Clone, Debug)]
pub struct ModelRecipe {
    /// Name of its shape: see [`shapes`].
    pub shape: String,
    pub kind: RandomWeightTypes,
    /// Number of layers, if it differs from the shape's.
    pub layers: Option<usize>,
    /// Write one `attn_kv_b` and no `*_mla` keys, like files from before llama.cpp split it.
    pub legacy: bool,
    /// Type of `attn_k_b` and `attn_v_b`, if it differs from `kind`.
    pub kv_b: Option<TensorType>,
    /// Types of single tensors. If several rules match, the last one wins. Vectors stay F32.
    pub types: Vec<TypeRule>,
    /// The same seed gives the same file.
    pub seed: u64,
    /// Number of shards of a GGUF model; one file without a number if none.
    pub shards: Option<usize>,
    /// Write no weights: only a GGUF header, or config.json.
    pub header_only: bool,
    /// Leave a hole instead of the weights of a GGUF file: the file has its full size, but the
    /// zeros take no space on disk.
    pub sparse: bool,
    pub mtp: MtpLayer,
}

/// The result of writing a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrittenModel {
    /// Total size of all files with tensors.
    pub bytes: u64,
    /// Number of tensors.
    pub tensors: usize,
    /// The file or folder to open.
    pub first: PathBuf,
}

impl ModelRecipe {
    /// A recipe for this shape and kind with seed 0 and default settings.
    pub fn new(shape: &str, kind: RandomWeightTypes) -> ModelRecipe {
        ModelRecipe {
            shape: shape.to_owned(),
            kind,
            layers: None,
            legacy: false,
            kv_b: None,
            types: Vec::new(),
            seed: 0,
            shards: None,
            header_only: false,
            sparse: false,
            mtp: MtpLayer::None,
        }
    }

    /// The model's config, with W_UK and W_UV stored in this form.
    fn config(&self, shape: &shapes::ModelSizes, form: KvForm) -> ModelConfig {
        let mut config = shape.config(self.layers, form);
        if self.mtp != MtpLayer::None {
            config.mtp_layers = 1;
            config.layer_kinds.push(if config.moe.is_some() { LayerKind::Moe } else { LayerKind::Dense });
        }
        config
    }

    fn shape(&self) -> Result<&'static shapes::ModelSizes, TestingError> {
        if let Some(layers) = self.layers.filter(|n| !(1..=512).contains(n)) {
            return Err(TestingError::Layers { layers });
        }
        shapes::named(&self.shape).ok_or_else(|| TestingError::UnknownShape { shape: self.shape.clone() })
    }
}
