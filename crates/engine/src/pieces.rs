//! Large allocations of a device: the KV cache rows of a layer, and each value of a step. A GPU
//! limits the size of one buffer.

use latent_types::{Setting, format_bytes};
use std::fmt;

/// A piece of memory, and the maximum size of a buffer of the device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LargePiece {
    /// The contents.
    pub of: PieceKind,
    /// Size in bytes.
    pub bytes: u64,
    /// Maximum size of a buffer, in bytes.
    pub most: u64,
}

/// The contents of a piece of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PieceKind {
    /// Rows of one layer of the KV cache.
    Cache {
        /// Number of tokens.
        tokens: usize,
        /// Whether the KV cache has a type with a smaller row.
        smaller_cache: bool,
    },
    /// A value of a step.
    Step {
        /// Number of tokens.
        tokens: usize,
    },
}

impl LargePiece {
    /// Whether it fits into one buffer.
    pub fn is_small(&self) -> bool {
        self.bytes <= self.most
    }

    /// How many tokens fit into one buffer. Sizes are proportional to the number of tokens.
    pub fn fits(&self) -> usize {
        let (PieceKind::Cache { tokens, .. } | PieceKind::Step { tokens }) = self.of;
        // A buffer size times a number of tokens can exceed 64 bits.
        (tokens as u128 * u128::from(self.most) / u128::from(self.bytes.max(1))) as usize
    }
}

impl fmt::Display for LargePiece {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (what, tokens, setting) = match self.of {
            PieceKind::Cache { tokens, .. } => ("the KV cache of a layer", tokens, Setting::Context),
            PieceKind::Step { tokens } => ("a value of a step", tokens, Setting::BatchTokens),
        };
        let (bytes, most) = (format_bytes(self.bytes), format_bytes(self.most));
        write!(
            f,
            "{what} takes {bytes} for {tokens} tokens, but the device allows at most {most} per buffer: "
        )?;
        match self.fits() {
            0 => write!(f, "no {setting} fits")?,
            fits => write!(f, "at most {fits} tokens fit ({setting})")?,
        }
        if matches!(self.of, PieceKind::Cache { smaller_cache: true, .. }) {
            write!(f, "; {} takes half", Setting::Cache.to("f16"))?;
        }
        write!(f, "; {} has no such limit", Setting::Device.to("cpu"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_piece_says_how_many_tokens_fit() {
        // youtu-llm-2b: 576 elements of f16
        let of = PieceKind::Cache { tokens: 131_072, smaller_cache: false };
        let piece = LargePiece { of, bytes: 131_072 * 1152, most: 128 << 20 };
        assert_eq!(piece.fits(), 116_508);
        let text = piece.to_string();
        assert!(
            text.contains("131072 tokens") && text.contains("at most 116508 tokens fit (option `context`)"),
            "{text}"
        );
        assert!(!text.contains("f16"), "{text}");
        let step = LargePiece { of: PieceKind::Step { tokens: 4096 }, bytes: 4096 * 36_864, most: 128 << 20 };
        assert!(step.to_string().contains("at most 3640 tokens fit (option `max_batch_tokens`)"), "{step}");
        let none = LargePiece { of: PieceKind::Step { tokens: 1 }, bytes: 10, most: 9 };
        assert!(none.to_string().contains("no option `max_batch_tokens` fits"), "{none}");
    }
}
