//! Splits the tensors of a model into files.

use crate::limits::MAX_SHARDS;
use std::ops::Range;

/// The model would have more than [`MAX_SHARDS`] files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{count} files exceed the limit of {MAX_SHARDS} per model; increase the maximum file size")]
pub struct TooManyFiles {
    /// Number of files.
    pub count: usize,
}

/// The range of tensors of each file. `bytes` are the sizes of the tensors. A file has at most
/// `most` bytes; a larger tensor is alone in its file. A model without tensors has one file.
pub fn cut(bytes: &[u64], most: u64) -> Result<Vec<Range<usize>>, TooManyFiles> {
    let mut files = Vec::new();
    let (mut first, mut filled) = (0, 0u64);
    for (index, bytes) in bytes.iter().enumerate() {
        // With `filled > 0`, a tensor above the limit does not leave an empty file before it.
        if filled > 0 && filled.saturating_add(*bytes) > most {
            files.push(first..index);
            (first, filled) = (index, 0);
        }
        filled = filled.saturating_add(*bytes);
    }
    files.push(first..bytes.len());
    if files.len() > MAX_SHARDS { Err(TooManyFiles { count: files.len() }) } else { Ok(files) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_filled_up_to_the_limit() {
        let cut_at = |most| -> Vec<usize> {
            cut(&[8, 8, 20, 4, 4], most).unwrap().into_iter().map(|file| file.len()).collect()
        };
        assert_eq!(cut_at(u64::MAX), [5]);
        assert_eq!(cut_at(16), [2, 1, 2]);
        assert_eq!(cut_at(1), [1; 5]);
        assert_eq!(cut(&[], 1).unwrap().len(), 1);
        let error = cut(&vec![4; MAX_SHARDS + 1], 1).unwrap_err().to_string();
        assert!(error.contains("4097 files"), "{error}");
    }
}
