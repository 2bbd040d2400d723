//! A checkpoint with derived tensors, which are added to those of its files.

use crate::builder::by_name;
use crate::checkpoint::Checkpoint;
use crate::derived::{DerivedSource, DerivedTensor};
use crate::error::FormatError;
use crate::tensor::{TensorInfo, TensorLocation};
use std::collections::HashSet;
use std::sync::Arc;

impl Checkpoint {
    /// The same model with derived tensors. Each replaces a tensor of its name. No data are read.
    ///
    /// # Errors
    /// [`FormatError::Derived`] for a missing source, and for a shape that is not whole blocks of
    /// its type.
    pub fn with_derived(&self, derived: Vec<DerivedTensor>) -> Result<Checkpoint, FormatError> {
        let replaced: HashSet<&str> = derived.iter().map(|tensor| tensor.name.as_str()).collect();
        let kept = self.tensors.iter().filter(|info| !replaced.contains(info.name.as_str()));
        let mut tensors: Vec<TensorInfo> = kept.cloned().collect();
        // It borrows `derived`, which the loop consumes.
        drop(replaced);
        let mut sources = self.derived.to_vec();
        for DerivedTensor { name, ty, shape, from, rows } in derived {
            let refuse = |problem: &str| FormatError::Derived {
                path: self.path.clone(),
                tensor: from.clone(),
                problem: problem.into(),
            };
            let source = self.info(&from).ok_or_else(|| refuse("it is not in the file"))?;
            let count: usize = shape.iter().rev().skip(1).product();
            let row = shape.last().and_then(|columns| ty.row_bytes(*columns));
            let row = row.ok_or_else(|| refuse("its row length is not a multiple of the block size"))?;
            let place = TensorLocation::Derived(sources.len());
            tensors.push(TensorInfo { name, ty, shape, bytes: count * row, tile_rows: None, place });
            sources.push(DerivedSource { from: source.clone(), rows });
        }
        Ok(Checkpoint {
            path: self.path.clone(),
            source: Arc::clone(&self.source),
            files: self.files.clone(),
            headers: self.headers.clone(),
            by_name: by_name(&tensors),
            tensors,
            fingerprint: self.fingerprint,
            packed: self.packed.clone(),
            four_bit: Arc::clone(&self.four_bit),
            cuts: self.cuts.clone(),
            derived: Arc::new(sources),
            // The list of the first derivation is kept: later ones start from derived tensors.
            in_files: Some(self.in_files.clone().unwrap_or_else(|| Arc::new(self.tensors.clone()))),
            absent: Arc::clone(&self.absent),
            adapters: Arc::clone(&self.adapters),
            _in_use: Vec::new(),
        })
    }
}
