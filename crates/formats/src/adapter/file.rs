//! An opened adapter file.

use crate::attached::AdapterNaming;
use crate::builder::PlacedTensor;
use crate::error::{AdapterError, FormatError};
use crate::family_names::HF_PREFIXES;
use crate::identity::{FNV_START, fnv};
use crate::map::FileBytes;
use crate::tensor::{TensorInfo, TensorLocation};
use latent_types::TensorType;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The two matrices that adapt one tensor W of the base model: W + scale · factor · B · A.
#[derive(Clone, Debug, PartialEq)]
pub struct LowRankPair {
    /// The name of the tensor in the base model's file.
    pub target: String,
    /// A: `[rank, inputs]`.
    pub a: TensorInfo,
    /// B: `[outputs, rank]`.
    pub b: TensorInfo,
    /// alpha / rank, or alpha / √rank with `use_rslora`.
    pub factor: f64,
}

impl LowRankPair {
    /// The name of the tensor without the prefix of multimodal models.
    pub fn plain_target(&self) -> &str {
        // Reversed, because the first prefix is empty and fits every name.
        let plain = HF_PREFIXES.iter().rev().find_map(|prefix| self.target.strip_prefix(prefix));
        plain.unwrap_or(&self.target)
    }

    pub fn rank(&self) -> usize {
        self.b.shape.last().copied().unwrap_or(0)
    }
}

/// An opened adapter file.
pub struct AdapterFile {
    pub(crate) path: PathBuf,
    pub naming: AdapterNaming,
    /// The architecture of the base model, if the file states it.
    pub architecture: Option<String>,
    /// `adapter.lora.alpha`, or `lora_alpha`.
    pub alpha: f64,
    pub pairs: Vec<LowRankPair>,
    pub(crate) bytes: Arc<FileBytes>,
    /// Name and header length of its file with tensors.
    pub(crate) header: (String, usize),
    /// A hash of all bytes.
    pub(crate) hash: u64,
}

impl AdapterFile {
    /// The file or folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A hash of all bytes of the adapter.
    pub fn fingerprint(&self) -> u64 {
        self.hash
    }

    /// The bytes of one of its matrices.
    pub fn data(&self, info: &TensorInfo) -> &[u8] {
        match info.place {
            TensorLocation::File { start, .. } => {
                self.bytes.get().get(start..start.saturating_add(info.bytes)).unwrap_or_default()
            }
            _ => &[],
        }
    }

    /// Makes a pair of two matrices and checks their types and shapes.
    pub(super) fn pair(
        path: &Path,
        target: String,
        (a, b): (Option<TensorInfo>, Option<TensorInfo>),
        factor: impl Fn(usize) -> f64,
    ) -> Result<LowRankPair, FormatError> {
        let refuse = |error| Err(FormatError::adapter(path, error));
        let (a, b) = match (a, b) {
            (Some(a), Some(b)) => (a, b),
            (a, _) => {
                let missing = if a.is_some() { "B" } else { "A" };
                return refuse(AdapterError::Unpaired { target, missing });
            }
        };
        // The types that llama.cpp's and PEFT's tools write.
        for info in [&a, &b] {
            if !matches!(info.ty, TensorType::F32 | TensorType::F16 | TensorType::BF16 | TensorType::Q8_0) {
                return refuse(AdapterError::Type { tensor: info.name.clone(), ty: info.ty });
            }
        }
        let rank = b.shape.last().copied().unwrap_or(0);
        // Stacked experts have three dimensions. A rank of 0 would be a divisor of alpha.
        let fits = a.shape.len() == b.shape.len()
            && matches!(a.shape.len(), 2 | 3)
            && a.shape[a.shape.len() - 2] == rank
            && rank > 0
            && (a.shape.len() == 2 || a.shape[0] == b.shape[0]);
        if !fits {
            let (a, b) = (a.shape, b.shape);
            return refuse(AdapterError::Ranks { target, a, b });
        }
        Ok(LowRankPair { target, a, b, factor: factor(rank) })
    }
}

pub(super) fn hash_of(config: &[u8], bytes: &[u8]) -> u64 {
    fnv(fnv(FNV_START, config), bytes)
}

/// A tensor of an adapter. Adapters have one file.
pub(super) fn placed(tensor: PlacedTensor) -> TensorInfo {
    TensorInfo {
        name: tensor.name,
        ty: tensor.ty,
        shape: tensor.shape,
        bytes: tensor.bytes as usize,
        tile_rows: None,
        place: TensorLocation::File { file: 0, start: tensor.start as usize },
    }
}
