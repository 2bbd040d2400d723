//! A checkpoint with files that are missing on this rank, completed by descriptions from other
//! ranks.

use crate::absent::MissingFiles;
use crate::builder::by_name;
use crate::checkpoint::{Checkpoint, CheckpointSource};
use crate::error::FormatError;
use crate::identity::{FNV_START, fnv};
use crate::outline::TensorHead;
use crate::tensor::{TensorInfo, TensorLocation};
use std::collections::HashSet;
use std::sync::Arc;

/// The tensors of one file, without their data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileTensors {
    /// The file's name.
    pub file: String,
    pub tensors: Vec<TensorHead>,
}

impl Checkpoint {
    /// Whether all files are present.
    pub fn is_whole(&self) -> bool {
        self.absent.files.is_empty()
    }

    /// Names of the missing files.
    pub fn absent_files(&self) -> &[String] {
        &self.absent.files
    }

    /// The error for a rank that needs a tensor of a missing file, if the index lists the tensor or
    /// its companions.
    pub fn needs(&self, tensor: &str) -> Option<FormatError> {
        let files = vec![self.absent.file_of(tensor)?.to_owned()];
        Some(FormatError::Absent { path: self.path.clone(), files, tensor: tensor.to_owned(), tensors: 1 })
    }

    /// Missing files that no other rank has either, and the number of tensors that no rank has, if
    /// the set records the number of its tensors.
    pub fn files_of_nobody(&self) -> (&[String], Option<u64>) {
        (&self.absent.nowhere, self.absent.tensors)
    }

    /// Rejects a checkpoint with missing files, for a process that needs all of them.
    pub fn check_whole(&self) -> Result<(), FormatError> {
        let Some(first) = self.absent.files.first() else { return Ok(()) };
        let problem = format!(
            "{first} is missing: only ranks that share a model can load it without the files of other ranks"
        );
        Err(FormatError::Set { path: self.path.clone(), problem })
    }

    /// A hash that is equal on all ranks with files of one set: names of the files, and
    /// config.json.
    pub fn set_identity(&self) -> u64 {
        // Names of missing files count too, so the hash does not depend on the files of a rank.
        let here = self.headers.iter().map(|(name, _)| name);
        let mut names: Vec<&str> = here.chain(&self.absent.files).map(String::as_str).collect();
        names.sort_unstable();
        let config = match self.source() {
            CheckpointSource::Gguf(_) => String::new(),
            CheckpointSource::HuggingFace(source) => {
                serde_json::to_string(&source.config).unwrap_or_default()
            }
        };
        // A zero after each name, so that `ab`, `c` and `a`, `bc` differ.
        let hash = |hash, text: &str| fnv(fnv(hash, text.as_bytes()), &[0]);
        names.into_iter().fold(hash(FNV_START, &config), hash)
    }

    /// The tensors of each file. A 4-bit weight belongs to the file of its quants.
    pub fn tensors_by_file(&self) -> Vec<FileTensors> {
        let mut files: Vec<FileTensors> = self
            .headers
            .iter()
            .map(|(file, _)| FileTensors { file: file.clone(), tensors: Vec::new() })
            .collect();
        for info in &self.tensors {
            if let Some(file) = self.file_of(info) {
                files[file].tensors.push(TensorHead {
                    name: info.name.clone(),
                    ty: info.ty,
                    shape: info.shape.clone(),
                    bytes: info.bytes as u64,
                });
            }
        }
        files
    }

    /// The same model with the tensors of missing files, which `others` describes: names, types and
    /// shapes, but no data. So every rank plans the same model. The result has `fingerprint`,
    /// because the own one depends on the present files. A complete model is returned unchanged.
    pub fn with_tensors_of(&self, others: &[FileTensors], fingerprint: u64) -> Checkpoint {
        let mut tensors = self.tensors.clone();
        let mut absent = MissingFiles::clone(&self.absent);
        if !self.is_whole() {
            let known: HashSet<&str> = self.tensors.iter().map(|info| info.name.as_str()).collect();
            let mut added = HashSet::new();
            // Several ranks may describe the same file. The first description counts.
            for FileTensors { file, tensors: heads } in others {
                let place = absent.files.iter().position(|name| name == file);
                for head in heads.iter().filter(|head| !known.contains(head.name.as_str())) {
                    if !added.insert(head.name.as_str()) {
                        continue;
                    }
                    if let Some(place) = place {
                        absent.places.insert(head.name.clone(), place);
                    }
                    tensors.push(without_data(head));
                }
            }
            // What no rank describes cannot be planned.
            absent.nowhere = absent.files.clone();
            absent.nowhere.retain(|name| others.iter().all(|other| other.file != *name));
            absent.tensors = absent.tensors.map(|count| count.saturating_sub(added.len() as u64));
        }
        Checkpoint {
            path: self.path.clone(),
            source: Arc::clone(&self.source),
            files: self.files.clone(),
            headers: self.headers.clone(),
            by_name: by_name(&tensors),
            tensors,
            fingerprint: if self.is_whole() { self.fingerprint } else { fingerprint },
            packed: self.packed.clone(),
            four_bit: Arc::clone(&self.four_bit),
            cuts: Vec::new(),
            derived: Arc::clone(&self.derived),
            in_files: self.in_files.clone(),
            absent: Arc::new(absent),
            adapters: Arc::default(),
            _in_use: Vec::new(),
        }
    }
}

fn without_data(head: &TensorHead) -> TensorInfo {
    TensorInfo {
        name: head.name.clone(),
        ty: head.ty,
        shape: head.shape.clone(),
        // A tensor of another rank may exceed the address space of a 32-bit machine.
        bytes: usize::try_from(head.bytes).unwrap_or(usize::MAX),
        tile_rows: None,
        place: TensorLocation::Absent,
    }
}
