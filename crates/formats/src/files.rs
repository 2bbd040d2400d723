//! The files of a checkpoint: names, identities, and the files of each tensor.

use crate::checkpoint::{Checkpoint, SAMPLE_BYTES, SAMPLED};
use crate::identity::{FNV_START, Identity, fnv};
use crate::map::FileBytes;
use crate::tensor::{TensorInfo, TensorLocation};
use std::sync::Arc;

/// Identifies a file of a model without reading all of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileIdentity {
    /// The name without the folder.
    pub name: String,
    pub bytes: u64,
    /// Hashes of the header, and of samples of the data.
    pub identity: Identity,
}

/// Minimum number of samples of a file.
const MIN_SAMPLES: usize = 16;

impl Checkpoint {
    /// Identities of the present files. They do not depend on which other files are present.
    pub fn file_identities(&self) -> Vec<FileIdentity> {
        // The number of samples follows from the size of the whole set, so that all ranks take the
        // same samples of a file.
        let samples = (SAMPLED / (self.files.len() + self.absent.files.len()).max(1)).max(MIN_SAMPLES);
        let of_file = |(bytes, (name, header)): (&Arc<FileBytes>, &(String, usize))| {
            let bytes = bytes.get();
            let (header, data) = bytes.split_at((*header).min(bytes.len()));
            FileIdentity {
                name: name.clone(),
                bytes: bytes.len() as u64,
                identity: Identity { header: fnv(FNV_START, header), sample: sample(data, samples) },
            }
        };
        self.files.iter().zip(&self.headers).map(of_file).collect()
    }

    /// Names of the present files in the order of the set.
    pub fn file_names(&self) -> impl Iterator<Item = &str> {
        self.headers.iter().map(|(name, _)| name.as_str())
    }

    /// Names of the present files of a tensor, or of the tensors that it is assembled from.
    pub fn files_of(&self, tensor: &str) -> Vec<&str> {
        let Some(info) = self.info(tensor) else { return Vec::new() };
        let mut files = self.places_in(info);
        files.sort_unstable();
        files.dedup();
        files.into_iter().map(|file| self.headers[file].0.as_str()).collect()
    }

    /// The file of a tensor; for a 4-bit weight the file of its quants. `None` if it is not present
    /// here.
    pub(crate) fn file_of(&self, info: &TensorInfo) -> Option<usize> {
        self.places_in(info).first().copied()
    }

    fn places_in(&self, info: &TensorInfo) -> Vec<usize> {
        match info.place {
            TensorLocation::File { file, .. } => vec![file],
            TensorLocation::FourBit(index) | TensorLocation::Factor(index) => {
                let weight = &self.four_bit[index];
                // Unused tensors count too: a rank has the weight only if it has all of them.
                let others = [&weight.global, &weight.stated_shape, &weight.unused];
                let all = weight.tensors().chain(others.into_iter().flatten());
                all.flat_map(|stored| self.places_in(stored)).collect()
            }
            TensorLocation::Cut(index) => self.places_in(&self.cuts[index].whole),
            TensorLocation::Derived(index) => self.places_in(&self.derived[index].from),
            TensorLocation::Absent => Vec::new(),
        }
    }
}

/// A hash of `samples` evenly spaced samples, including the first and the last bytes.
fn sample(data: &[u8], samples: usize) -> u64 {
    let last = data.len().saturating_sub(SAMPLE_BYTES);
    // u128, since the product of a file's size and `i` may exceed usize on a 32-bit platform.
    let at = |i: usize| (last as u128 * i as u128 / (samples - 1).max(1) as u128) as usize;
    (0..samples).fold(FNV_START, |hash, i| fnv(hash, &data[at(i)..data.len().min(at(i) + SAMPLE_BYTES)]))
}
