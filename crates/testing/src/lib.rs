//! Random models of every shape and type, seeded, written with Latent's own writers and encoders: for tests and measurements.
//!
//! Such a model knows nothing; its sizes, formats and wiring are those of a real one.
//!
//! ```
//! let folder = tempfile::tempdir()?;
//! let path = folder.path().join("tiny.gguf");
//! latent_testing::Recipe::new("tiny-v3", "Q4_K_M".parse()?).write_gguf(&path)?;
//! assert!(latent_formats::Checkpoint::open(&path)?.tensor("blk.1.ffn_gate_exps.weight").is_some());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

mod folder;
mod gguf;
mod kind;
mod random;
pub mod reference;
mod shapes;

pub use kind::Kind;
pub use shapes::shapes;

use latent_formats::OutputError;
use latent_graph::GraphError;
use latent_types::TensorType;
use std::path::PathBuf;

/// What a random model is made from.
#[derive(Clone, Debug)]
pub struct Recipe {
    /// Name of its shape: see [`shapes`].
    pub shape: String,
    /// How weights are stored.
    pub kind: Kind,
    /// Layers, where fewer than the shape's.
    pub layers: Option<usize>,
    /// One `attn_kv_b` and no `*_mla` keys, as old files have.
    pub legacy: bool,
    /// Type of `attn_k_b` and `attn_v_b`, where it differs.
    pub kv_b: Option<TensorType>,
    /// The same seed gives the same file.
    pub seed: u64,
    /// Files that a GGUF model is cut into.
    pub shards: Option<usize>,
    /// Only what comes before the weights: a GGUF header, or config.json.
    pub header_only: bool,
}

/// What was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    /// Bytes of all files with tensors.
    pub bytes: u64,
    /// Tensors.
    pub tensors: usize,
    /// The file (or folder) to open.
    pub first: PathBuf,
}

/// Why a model cannot be written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TestingError {
    /// The shape is not known.
    #[error("no shape is called {shape:?}; there are {}", shapes().collect::<Vec<_>>().join(", "))]
    UnknownShape {
        /// The name asked for.
        shape: String,
    },
    /// The type is not known or cannot be encoded.
    #[error("weights cannot be written as {kind:?}; types are {known}, Q4_K_M, Q4_0_M")]
    UnknownKind {
        /// The word.
        kind: String,
        /// What can be written.
        known: String,
    },
    /// The type has no place in safetensors.
    #[error("{kind} has no place in safetensors; a folder takes F32, F16, BF16 or F8_E4M3")]
    NoFolder {
        /// The type.
        kind: TensorType,
    },
    /// More layers than the format allows, or none.
    #[error("{layers} layers: expected 1 to 512")]
    Layers {
        /// Layers asked for.
        layers: usize,
    },
    /// The file cannot be written.
    #[error(transparent)]
    Output(#[from] OutputError),
    /// The circuit of the shape is wrong.
    #[error(transparent)]
    Graph(#[from] GraphError),
}

impl TestingError {
    fn unknown_kind(kind: &str) -> TestingError {
        let known = latent_quant::encodable().map(TensorType::name).collect::<Vec<_>>().join(", ");
        TestingError::UnknownKind { kind: kind.to_owned(), known }
    }
}

impl Recipe {
    /// A model of this shape and kind, all else as the shape has it, seed 0.
    pub fn new(shape: &str, kind: Kind) -> Recipe {
        Recipe {
            shape: shape.to_owned(),
            kind,
            layers: None,
            legacy: false,
            kv_b: None,
            seed: 0,
            shards: None,
            header_only: false,
        }
    }

    fn shape(&self) -> Result<&'static shapes::Shape, TestingError> {
        if let Some(layers) = self.layers.filter(|n| !(1..=512).contains(n)) {
            return Err(TestingError::Layers { layers });
        }
        shapes::named(&self.shape).ok_or_else(|| TestingError::UnknownShape { shape: self.shape.clone() })
    }
}
