//! Importance matrices: for each column of a tensor, the mean square of the activations that it is
//! multiplied by, per expert or head.

use crate::error::ConvertError;
use crate::quantize::weights::SourceTensor;
use latent_formats::gguf::{Header, MAGIC, Metadata, Writer, WriterValue};
use latent_formats::identity::{FNV_START, fnv};
use latent_formats::input_file;
use latent_types::TensorType;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Maximum file size.
// The largest models need some hundred megabytes: one value per column and expert.
const MAX_BYTES: u64 = 4 << 30;

/// Maximum length of a name in the older file format (`.dat`).
const MAX_NAME: usize = 4096;

/// Lower bound of an importance, relative to the mean of its matrix.
// A column with an importance of 0 could get any error.
const FLOOR: f32 = 1e-5;

/// Importances of a model.
#[derive(Clone, Debug, Default)]
pub struct Importances {
    path: PathBuf,
    entries: BTreeMap<String, Vec<f32>>,
    /// Names of the calibration files.
    pub datasets: Vec<String>,
    /// Number of chunks of text; 0 if unknown.
    pub chunks: u32,
}

impl Importances {
    /// Reads a file of llama.cpp: GGUF, or the `.dat` of older versions.
    ///
    /// # Errors
    /// The file cannot be read, is malformed, or has values that are negative or not finite.
    pub fn read(path: &Path) -> Result<Importances, ConvertError> {
        let bytes = input_file::read(path, MAX_BYTES)?;
        let read = if bytes.starts_with(MAGIC) { from_gguf(&bytes) } else { from_dat(&bytes) };
        let read = read.map_err(|problem| ConvertError::Importance { path: path.to_owned(), problem })?;
        read.of_file(path)
    }

    /// Sets the path and checks the values.
    pub(crate) fn of_file(mut self, path: &Path) -> Result<Importances, ConvertError> {
        self.path = path.to_owned();
        // Negated, so that NaN is refused too.
        if let Some((name, _)) =
            self.entries.iter().find(|(_, values)| values.iter().any(|v| !(v.is_finite() && *v >= 0.0)))
        {
            let problem = format!("{name} has values that are negative or not finite");
            return Err(ConvertError::Importance { path: path.to_owned(), problem });
        }
        Ok(self)
    }

    /// The file that they were read from.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Number of tensors with importances.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether no tensor has importances.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Whether a tensor has importances.
    pub fn has(&self, name: &str) -> bool {
        self.entries.contains_key(name)
    }

    /// Fingerprint of all names and values.
    pub(crate) fn fingerprint(&self) -> u64 {
        // The map is sorted by name, so equal contents have equal fingerprints.
        self.entries.iter().fold(FNV_START, |hash, (name, values)| {
            values.iter().fold(fnv(hash, name.as_bytes()), |hash, value| fnv(hash, &value.to_le_bytes()))
        })
    }

    /// Returns an error if the importances are of another model: fewer than half of their tensors
    /// are in it.
    pub(crate) fn check(&self, model: &str, tensors: &[SourceTensor]) -> Result<(), ConvertError> {
        let there = tensors.iter().filter(|tensor| self.has(&tensor.name)).count();
        if there * 2 >= self.entries.len() {
            return Ok(());
        }
        let problem = format!("only {there} of its {} tensors are in {model}", self.entries.len());
        Err(ConvertError::OtherModel { path: self.path.clone(), problem })
    }

    /// Records the importances in the model's metadata, with llama-quantize's keys.
    pub(crate) fn describe(&self, writer: &mut Writer) {
        let file = self.path.file_name().map(|name| name.to_string_lossy().into_owned());
        writer.set_key("quantize.imatrix.file", WriterValue::String(file.unwrap_or_default()));
        // The key has one text, so that further data sets are omitted.
        if let Some(first) = self.datasets.first() {
            writer.set_key("quantize.imatrix.dataset", WriterValue::String(first.clone()));
        }
        writer.set_key("quantize.imatrix.entries_count", WriterValue::U32(self.entries.len() as u32));
        if self.chunks > 0 {
            writer.set_key("quantize.imatrix.chunks_count", WriterValue::U32(self.chunks));
        }
    }

    /// The importances of a tensor with `matrices` matrices of `columns` columns, or `None` if the
    /// file has none for it.
    pub(crate) fn of(
        &self,
        name: &str,
        columns: usize,
        matrices: usize,
    ) -> Result<Option<&[f32]>, ConvertError> {
        match self.entries.get(name) {
            None => Ok(None),
            Some(values) if values.len() == columns * matrices => Ok(Some(values)),
            // llama.cpp collects none for the embedding, whose rows are looked up. Values of
            // another length under this name are ignored.
            Some(_) if name == "token_embd.weight" => Ok(None),
            Some(values) if values.len() == columns => Err(ConvertError::SharedImportance {
                path: self.path.clone(),
                tensor: name.to_owned(),
                matrices,
            }),
            Some(values) => {
                let problem = format!(
                    "it has {} importances for {name}, which has {matrices} matrices of {columns} columns",
                    values.len()
                );
                Err(ConvertError::OtherModel { path: self.path.clone(), problem })
            }
        }
    }
}

/// Scales the importances of a matrix to a mean of 1, with a minimum of [`FLOOR`]. All are 1 if
/// none is above 0.
pub(crate) fn normalized(values: &[f32]) -> Vec<f32> {
    // f64: the values of one matrix span many orders of magnitude.
    let mean = values.iter().map(|v| f64::from(*v)).sum::<f64>() / values.len().max(1) as f64;
    if mean <= 0.0 {
        return vec![1.0; values.len()];
    }
    values.iter().map(|v| ((f64::from(*v) / mean) as f32).max(FLOOR)).collect()
}

fn from_gguf(bytes: &[u8]) -> Result<Importances, String> {
    let header = Header::parse(bytes, bytes.len() as u64).map_err(|error| error.to_string())?;
    let values = |name: &str| {
        let tensor = header.tensors.iter().find(|tensor| tensor.name == name)?;
        let data = &bytes[tensor.start as usize..(tensor.start + tensor.bytes) as usize];
        (tensor.ty == TensorType::F32).then(|| numbers(data))
    };
    let names: Vec<&str> = header.tensors.iter().map(|tensor| tensor.name.as_str()).collect();
    from_tensors(&names, &header.metadata, &values)
}

/// Decodes the F32 values of a tensor.
pub(crate) fn numbers(data: &[u8]) -> Vec<f32> {
    data.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}

/// Reads sums and counts from the tensors of a GGUF file. `values` returns the values of a tensor
/// if it is F32.
pub(crate) fn from_tensors(
    names: &[&str],
    metadata: &Metadata,
    values: &dyn Fn(&str) -> Option<Vec<f32>>,
) -> Result<Importances, String> {
    let mut out = Importances::default();
    for tensor in names {
        let Some(name) = tensor.strip_suffix(".in_sum2") else { continue };
        let sums = values(tensor).ok_or_else(|| format!("{tensor} is not F32"))?;
        // One count per expert, and one sum per expert and column.
        let counts = values(&format!("{name}.counts"))
            .ok_or_else(|| format!("{name}.counts is missing, or not F32"))?;
        if counts.is_empty() || sums.is_empty() || sums.len() % counts.len() != 0 {
            return Err(format!("{name} has {} sums and {} counts", sums.len(), counts.len()));
        }
        let mut means = sums;
        let columns = means.len() / counts.len();
        for (means, count) in means.chunks_exact_mut(columns).zip(counts) {
            // An expert that was never chosen: weight all columns equally.
            means.iter_mut().for_each(|mean| *mean = if count > 0.0 { *mean / count } else { 1.0 });
        }
        out.entries.insert(name.to_owned(), means);
    }
    if out.entries.is_empty() {
        return Err("it has no tensor whose name ends in .in_sum2".into());
    }
    let datasets = metadata.strings("imatrix.datasets").map_err(|error| error.to_string())?;
    out.datasets = datasets.unwrap_or_default().into_iter().map(text).collect();
    let chunks = metadata.u64("imatrix.chunk_count").map_err(|error| error.to_string())?;
    out.chunks = chunks.and_then(|n| u32::try_from(n).ok()).unwrap_or(0);
    Ok(out)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Unread bytes of a `.dat` file.
struct DatCursor<'a>(&'a [u8]);

impl<'a> DatCursor<'a> {
    fn take(&mut self, len: usize, what: &str) -> Result<&'a [u8], String> {
        let (taken, rest) = self.0.split_at_checked(len).ok_or_else(|| format!("it ends within {what}"))?;
        self.0 = rest;
        Ok(taken)
    }

    fn count(&mut self, what: &str) -> Result<usize, String> {
        let b = self.take(4, what)?;
        let value = i32::from_le_bytes([b[0], b[1], b[2], b[3]]);
        usize::try_from(value).map_err(|_| format!("{what} is {value}"))
    }

    fn name(&mut self, what: &str) -> Result<String, String> {
        match self.count(what)? {
            len if len > MAX_NAME => Err(format!("{what} has {len} bytes")),
            len => self.take(len, what).map(text),
        }
    }
}

/// Reads the older format: entries of (name, calls, sums of the calls' means), then optionally
/// chunks and the data set's name. All numbers have four bytes.
fn from_dat(bytes: &[u8]) -> Result<Importances, String> {
    let mut rest = DatCursor(bytes);
    let mut out = Importances::default();
    let entries = rest.count("the number of tensors")?;
    for number in 0..entries {
        let name = rest.name(&format!("the name of tensor {number} of {entries}"))?;
        let calls = rest.count(&format!("the number of calls of {name}"))?;
        let what = format!("the importances of {name}");
        let values = rest.count(&what)?;
        // An i32 times four exceeds `usize` on 32-bit targets.
        let sums = rest.take(values.checked_mul(4).ok_or_else(|| format!("{what} are too many"))?, &what)?;
        // A count of 0 would make all means infinite or NaN.
        let calls = calls.max(1) as f32;
        let means =
            sums.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]) / calls).collect();
        if values == 0 || out.entries.insert(name, means).is_some() {
            return Err(format!("{what} are empty or occur twice"));
        }
    }
    if out.entries.is_empty() {
        return Err("it has no entries".into());
    }
    if !rest.0.is_empty() {
        out.chunks = rest.count("the number of chunks")? as u32;
        out.datasets.push(rest.name("the name of the data set")?);
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use latent_formats::gguf::{Writer, WriterValue};

    fn dat() -> Vec<u8> {
        let mut out = Vec::new();
        out.extend(1i32.to_le_bytes());
        out.extend(3i32.to_le_bytes());
        out.extend(b"abc");
        out.extend(2i32.to_le_bytes());
        out.extend(4i32.to_le_bytes());
        [2.0f32, 4.0, 0.0, 6.0].iter().for_each(|v| out.extend(v.to_le_bytes()));
        out.extend(5i32.to_le_bytes());
        out.extend(4i32.to_le_bytes());
        out.extend(b"wiki");
        out
    }

    #[test]
    fn older_files_hold_sums_over_calls() {
        let read = from_dat(&dat()).unwrap();
        assert_eq!(read.entries["abc"], [1.0, 2.0, 0.0, 3.0]);
        assert_eq!((read.chunks, &read.datasets[..]), (5, &["wiki".to_owned()][..]));
    }

    #[test]
    fn every_cut_of_an_older_file_is_an_error_and_none_panics() {
        let whole = dat();
        // The last twelve bytes are optional as a whole: chunks, length and name of the data set.
        for cut in (0..whole.len()).filter(|cut| *cut != whole.len() - 12) {
            assert!(from_dat(&whole[..cut]).is_err(), "{cut}");
        }
        assert!(from_dat(&whole[..whole.len() - 12]).is_ok());
    }

    #[test]
    fn sums_are_divided_by_the_counts_of_each_expert() {
        let mut writer = Writer::new();
        writer.key("general.type", WriterValue::String("imatrix".into()));
        writer.key("imatrix.chunk_count", WriterValue::U32(9));
        writer.tensor("x.weight.in_sum2", TensorType::F32, &[2, 2]).unwrap();
        writer.tensor("x.weight.counts", TensorType::F32, &[2, 1]).unwrap();
        let data: [&[f32]; 2] = [&[2.0, 4.0, 7.0, 7.0], &[2.0, 0.0]];
        let mut bytes = Vec::new();
        let write = |i: usize, out: &mut dyn std::io::Write| {
            data[i].iter().try_for_each(|v| out.write_all(&v.to_le_bytes()))
        };
        writer.write(&mut bytes, write).unwrap();
        let read = from_gguf(&bytes).unwrap();
        assert_eq!(read.entries["x.weight"], [1.0, 2.0, 1.0, 1.0]);
        assert_eq!(read.chunks, 9);
    }

    #[test]
    fn one_row_for_all_heads_is_named_as_such() {
        let mut importances = from_dat(&dat()).unwrap();
        importances.path = "old.dat".into();
        assert_eq!(importances.of("abc", 4, 1).unwrap(), Some(&[1.0, 2.0, 0.0, 3.0][..]));
        let error = importances.of("abc", 4, 5).unwrap_err().to_string();
        assert!(
            error.starts_with("old.dat: it has one row of importances for all 5 matrices of abc"),
            "{error}"
        );
        assert!(importances.of("abc", 3, 5).unwrap_err().to_string().contains("another model"));
    }

    #[test]
    fn importances_get_a_mean_of_one_and_a_floor() {
        assert_eq!(normalized(&[0.0, 2.0, 4.0, 2.0]), [FLOOR, 1.0, 2.0, 1.0]);
        assert_eq!(normalized(&[0.0, 0.0]), [1.0, 1.0]);
    }
}
