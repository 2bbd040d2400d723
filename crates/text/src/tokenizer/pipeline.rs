//! The steps of a byte-pair tokenizer: normalize, split into pieces, merge each piece.
//!
//! The tokens of a piece are appended before the next piece is split off. So memory holds only the
//! normalized text, one piece and the tokens.

use super::bpe::{Bpe, Workspace};
use super::normalize::{Normalizer, normalize};
use super::split::{PreTokenizer, cut};
use crate::error::TextError;

/// The steps of a byte-pair tokenizer.
pub(super) struct BpePipeline {
    pub(super) normalizers: Vec<Normalizer>,
    pub(super) pre_tokenizers: Vec<PreTokenizer>,
    pub(super) bpe: Bpe,
}

impl BpePipeline {
    /// Passes the tokens of a text to `push`; `begins`: it is the beginning of the whole text.
    pub(super) fn encode(
        &self,
        text: &str,
        begins: bool,
        push: &mut dyn FnMut(u32) -> Result<(), TextError>,
    ) -> Result<(), TextError> {
        let text = normalize(&self.normalizers, text)?;
        let mut workspace = Workspace::default();
        cut(&self.pre_tokenizers, &text, begins, &mut |piece, _| self.bpe.encode(piece, &mut workspace, push))
    }

    /// Maximum number of bytes of text that become one byte before merging; `None` if text can be
    /// dropped.
    pub(super) fn shrinks(&self) -> Option<usize> {
        // In the byte-level alphabet all text consists of 256 known characters.
        let mapped = self.normalizers.iter().any(|n| matches!(n, Normalizer::ByteLevel))
            || self.pre_tokenizers.iter().any(|p| matches!(p, PreTokenizer::ByteLevel { .. }));
        if self.bpe.loses_text(mapped) || self.pre_tokenizers.iter().any(PreTokenizer::removes) {
            return None;
        }
        self.normalizers.iter().try_fold(1usize, |product, step| product.checked_mul(step.shrinks()?))
    }
}
