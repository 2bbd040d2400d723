//! Writes importances in llama.cpp's GGUF form: per tensor, sums of squares and the number of rows
//! summed.

use crate::error::ConvertError;
use latent_formats::gguf::{Writer, WriterValue};
use latent_formats::{OutputError, OutputFile};
use latent_types::TensorType;
use std::io::Write;
use std::path::Path;

/// Sums of squares of a tensor's inputs.
#[derive(Clone, Debug)]
pub struct CollectedSums {
    /// The tensor's name.
    pub tensor: String,
    /// Number of input rows of each matrix.
    pub counts: Vec<u64>,
    /// Sums of squares: matrices × columns.
    pub sums: Vec<f64>,
}

/// The text that was run to collect importances.
#[derive(Clone, Debug)]
pub struct Calibration {
    /// The file of text.
    pub dataset: String,
    /// Number of chunks.
    pub chunks: u32,
    /// Tokens per chunk.
    pub chunk_size: u32,
}

/// Writes a file for [`Importances::read`](crate::quantize::Importances::read) and llama-quantize.
/// Returns its size in bytes.
pub fn write_importances(
    path: &Path,
    collected: &[CollectedSums],
    calibration: &Calibration,
) -> Result<u64, ConvertError> {
    let mut sorted: Vec<&CollectedSums> = collected.iter().collect();
    // Sorted by name, so that equal sums give equal files.
    sorted.sort_by(|a, b| a.tensor.cmp(&b.tensor));
    let mut file = OutputFile::create(path)?;
    match write(&mut file, &sorted, calibration) {
        Ok(()) => Ok(file.finish()?),
        Err(error) => Err(OutputError::Io { path: path.to_owned(), error }.into()),
    }
}

fn write(
    file: &mut OutputFile,
    collected: &[&CollectedSums],
    calibration: &Calibration,
) -> std::io::Result<()> {
    let mut writer = calibration.writer("imatrix");
    for one in collected {
        one.declare(&mut writer)?;
    }
    // Each entry has two tensors, sums and counts, as `declare` adds them.
    writer.write(file, |index, out| collected[index / 2].write(index % 2 == 1, out))
}

impl Calibration {
    /// Writer of a file with this `general.type` and the keys of llama.cpp's importances.
    pub(crate) fn writer(&self, ty: &str) -> Writer {
        let mut writer = Writer::new();
        writer.key("general.type", WriterValue::String(ty.into()));
        writer.key("imatrix.datasets", WriterValue::Strings(vec![self.dataset.clone().into_bytes()]));
        writer.key("imatrix.chunk_count", WriterValue::U32(self.chunks));
        writer.key("imatrix.chunk_size", WriterValue::U32(self.chunk_size));
        writer
    }
}

impl CollectedSums {
    /// Declares the two tensors: sums and counts.
    pub(crate) fn declare(&self, writer: &mut Writer) -> std::io::Result<()> {
        let matrices = self.counts.len();
        let columns = self.sums.len() / matrices.max(1);
        writer.tensor(format!("{}.in_sum2", self.tensor), TensorType::F32, &[matrices, columns])?;
        // llama.cpp stores counts as F32, with one row per matrix.
        writer.tensor(format!("{}.counts", self.tensor), TensorType::F32, &[matrices, 1])?;
        Ok(())
    }

    /// Writes one of the two tensors.
    pub(crate) fn write(&self, counts: bool, out: &mut dyn Write) -> std::io::Result<()> {
        let mut put = |value: f32| out.write_all(&value.to_le_bytes());
        if counts {
            self.counts.iter().try_for_each(|count| put(*count as f32))
        } else {
            self.sums.iter().try_for_each(|sum| put(*sum as f32))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quantize::importance::Importances;

    #[test]
    fn written_sums_are_read_as_means() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("imatrix.gguf");
        let one = |tensor: &str, counts: &[u64], sums: &[f64]| CollectedSums {
            tensor: tensor.into(),
            counts: counts.into(),
            sums: sums.into(),
        };
        let collected = [one("b.weight", &[4], &[8.0, 2.0]), one("a.weight", &[2, 0], &[1.0, 3.0, 0.0, 0.0])];
        let calibration = Calibration { dataset: "text".into(), chunks: 7, chunk_size: 512 };
        let bytes = write_importances(&path, &collected, &calibration).unwrap();
        assert_eq!(bytes, std::fs::metadata(&path).unwrap().len());
        let read = Importances::read(&path).unwrap();
        assert_eq!((read.len(), read.chunks, &read.datasets[..]), (2, 7, &["text".to_owned()][..]));
        assert_eq!(read.of("b.weight", 2, 1).unwrap(), Some(&[2.0, 0.5][..]));
        assert_eq!(read.of("a.weight", 2, 2).unwrap(), Some(&[0.5, 1.5, 1.0, 1.0][..]));
    }
}
