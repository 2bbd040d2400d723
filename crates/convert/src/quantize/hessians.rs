//! Hessians for GPTQ: Σ x·xᵀ over the inputs x of each weight, per expert or head. They are stored
//! in a GGUF file that also contains the importances.
//!
//! A tensor `NAME.hessian` has a lower triangle per matrix, row by row. Weights with the same input
//! share one tensor: the keys `hessian.weights` and `hessian.sources` list the weights and, for
//! each, the NAME.

use crate::error::ConvertError;
use crate::quantize::collected::{Calibration, CollectedSums};
use crate::quantize::importance::{Importances, from_tensors, numbers};
use crate::quantize::weights::SourceTensor;
use latent_formats::gguf::{Writer, WriterValue};
use latent_formats::identity::Identity;
use latent_formats::{Checkpoint, CheckpointSource, OutputError, OutputFile};
use latent_quant::gptq::triangle_len;
use latent_types::TensorType;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// A file of Hessians, which are read on demand.
pub struct Hessians {
    path: PathBuf,
    file: Checkpoint,
    entries: BTreeMap<String, HessianEntry>,
    importances: Importances,
}

/// Location of a weight's Hessians.
pub(crate) struct HessianEntry {
    /// The weight under whose name they are stored: the first one with this input.
    pub source: String,
    pub columns: usize,
    /// Number of input rows of each matrix.
    pub counts: Vec<f32>,
}

impl Hessians {
    /// Opens a file of [`write_hessians`] and checks everything except the values.
    ///
    /// # Errors
    /// The file cannot be read, has no Hessians, or its tensors are inconsistent.
    pub fn open(path: &Path) -> Result<Hessians, ConvertError> {
        let file = Checkpoint::open(path)?;
        let refused = |problem: String| ConvertError::Hessian { path: path.to_owned(), problem };
        let CheckpointSource::Gguf(source) = file.source() else {
            return Err(refused("it is a folder; pass the file that `latent imatrix` wrote".into()));
        };
        let names = |key: &str| -> Result<Vec<String>, ConvertError> {
            let names = source.metadata.strings(key)?.unwrap_or_default();
            Ok(names.into_iter().map(|name| String::from_utf8_lossy(name).into_owned()).collect())
        };
        let (weights, sources) = (names("hessian.weights")?, names("hessian.sources")?);
        if weights.is_empty() {
            let importances = file.tensors().iter().any(|tensor| tensor.name.ends_with(".in_sum2"));
            let found = if importances { "importances, but no Hessians" } else { "no Hessians" };
            return Err(refused(format!(
                "it holds {found}: `latent imatrix` with {} writes them",
                latent_types::Setting::Hessians
            )));
        }
        if weights.len() != sources.len() {
            let (weights, sources) = (weights.len(), sources.len());
            return Err(refused(format!("it has {weights} names of weights, but {sources} Hessians")));
        }
        let values = |name: &str| {
            let tensor = file.tensor(name).filter(|tensor| tensor.info.ty == TensorType::F32)?;
            Some(numbers(tensor.data))
        };
        let all: Vec<&str> = file.tensors().iter().map(|tensor| tensor.name.as_str()).collect();
        let importances = from_tensors(&all, &source.metadata, &values).map_err(refused)?;
        let importances = importances.of_file(path)?;
        let mut entries = BTreeMap::new();
        for (weight, source) in weights.into_iter().zip(sources) {
            let entry = entry(&file, &weight, source).map_err(refused)?;
            if entries.insert(weight.clone(), entry).is_some() {
                return Err(refused(format!("{weight} occurs twice")));
            }
        }
        Ok(Hessians { path: path.to_owned(), file, entries, importances })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The importances of the columns: the diagonal divided by the number of rows.
    pub fn importances(&self) -> &Importances {
        &self.importances
    }

    /// Identity of the file, for fingerprints.
    pub(crate) fn identity(&self) -> Identity {
        self.file.identity()
    }

    pub(crate) fn entry(&self, weight: &str) -> Option<&HessianEntry> {
        self.entries.get(weight)
    }

    /// Returns an error if the Hessians are of another model: fewer than half of their weights are
    /// in it.
    pub(crate) fn check(&self, model: &str, tensors: &[SourceTensor]) -> Result<(), ConvertError> {
        let there = tensors.iter().filter(|tensor| self.entries.contains_key(&tensor.name)).count();
        if there * 2 >= self.entries.len() {
            return Ok(());
        }
        let problem = format!("only {there} of its {} weights are in {model}", self.entries.len());
        Err(self.other_model(problem))
    }

    pub(crate) fn other_model(&self, problem: String) -> ConvertError {
        ConvertError::OtherModel { path: self.path.clone(), problem }
    }

    /// Reads the lower triangle of a matrix of a weight.
    pub(crate) fn triangle(&self, entry: &HessianEntry, matrix: usize) -> Vec<f32> {
        let values = triangle_len(entry.columns).unwrap_or(0);
        let name = format!("{}.hessian", entry.source);
        // `open` has checked that the tensor has this size, so the defaults below are never used.
        let data = self.file.tensor(&name).map_or(&[][..], |tensor| tensor.data);
        let bytes = data.get(matrix * values * 4..(matrix + 1) * values * 4).unwrap_or_default();
        let triangle = numbers(bytes);
        // Read once per matrix: a triangle of 7168 columns has 103 MB.
        self.file.drop_pages(&name, matrix * values * 4..(matrix + 1) * values * 4);
        triangle
    }
}

fn entry(file: &Checkpoint, weight: &str, source: String) -> Result<HessianEntry, String> {
    let find = |name: String| file.info(&name).ok_or(format!("{name} is missing"));
    let hessian = find(format!("{source}.hessian"))?;
    let counts = file.tensor(&format!("{source}.counts"));
    let counts = counts.ok_or_else(|| format!("{source}.counts is missing"))?;
    let sums = find(format!("{weight}.in_sum2"))?;
    let columns = sums.shape.last().copied().unwrap_or(0);
    // The counts have one element per expert or head.
    let matrices = counts.info.shape.iter().product::<usize>();
    if hessian.ty != TensorType::F32 || counts.info.ty != TensorType::F32 || sums.ty != TensorType::F32 {
        return Err(format!("the tensors of {weight} are not F32"));
    }
    let wanted = triangle_len(columns).and_then(|values| values.checked_mul(matrices));
    let found = hessian.shape.iter().product::<usize>();
    if wanted != Some(found) || found == 0 {
        return Err(format!(
            "{}.hessian has {found} values for {matrices} matrices of {columns} columns",
            source
        ));
    }
    Ok(HessianEntry { source, columns, counts: numbers(counts.data) })
}

/// Weights with the same input, whose Hessians are stored once.
#[derive(Clone, Debug)]
pub struct HessianGroup {
    /// The weights. The first one names the tensor.
    pub weights: Vec<String>,
    pub matrices: usize,
    pub columns: usize,
}

impl HessianGroup {
    /// Groups weights whose sums of squares are bit-equal.
    pub fn of(collected: &[CollectedSums]) -> Vec<HessianGroup> {
        // A weight without input rows has no matrices to divide the columns by.
        let mut sorted: Vec<&CollectedSums> = collected.iter().filter(|one| !one.counts.is_empty()).collect();
        // Sorted, so that groups and their first weights do not depend on the order of collection.
        sorted.sort_by(|a, b| a.tensor.cmp(&b.tensor));
        let mut groups: Vec<(&CollectedSums, HessianGroup)> = Vec::new();
        for one in sorted {
            // Only weights with the same input have bit-equal sums.
            let same = groups.iter_mut().find(|(of, _)| of.counts == one.counts && of.sums == one.sums);
            match same {
                Some((_, group)) => group.weights.push(one.tensor.clone()),
                None => {
                    let matrices = one.counts.len();
                    let (weights, columns) = (vec![one.tensor.clone()], one.sums.len() / matrices);
                    groups.push((one, HessianGroup { weights, matrices, columns }));
                }
            }
        }
        groups.into_iter().map(|(_, group)| group).collect()
    }

    /// Bytes of one matrix's Hessian.
    pub fn matrix_bytes(&self) -> u64 {
        triangle_len(self.columns).unwrap_or(usize::MAX) as u64 * 4
    }

    /// Bytes of all matrices' Hessians.
    pub fn bytes(&self) -> u64 {
        self.matrix_bytes().saturating_mul(self.matrices as u64)
    }
}

/// Writes a file for [`Hessians::open`] and [`Importances::read`]. Returns its size in bytes.
/// `next` produces the triangles of all groups' matrices in order.
///
/// # Errors
/// The target cannot be written, or `next` fails.
pub fn write_hessians(
    path: &Path,
    collected: &[CollectedSums],
    groups: &[HessianGroup],
    calibration: &Calibration,
    next: &mut dyn FnMut() -> std::io::Result<Vec<f32>>,
) -> Result<u64, ConvertError> {
    let mut file = OutputFile::create(path)?;
    let failed = |error| ConvertError::Output(OutputError::Io { path: path.to_owned(), error });
    let mut sorted: Vec<&CollectedSums> = collected.iter().collect();
    sorted.sort_by(|a, b| a.tensor.cmp(&b.tensor));
    let mut writer = calibration.writer("hessian");
    let names = |of: &dyn Fn(&HessianGroup, &String) -> String| {
        let names = groups.iter().flat_map(|group| group.weights.iter().map(move |name| of(group, name)));
        WriterValue::Strings(names.map(String::into_bytes).collect())
    };
    writer.key("hessian.weights", names(&|_, name| name.clone()));
    writer.key("hessian.sources", names(&|group, _| group.weights[0].clone()));
    let declared = declare(&mut writer, &sorted, groups);
    declared.map_err(failed)?;
    let written = writer.write(&mut file, |index, out| {
        // Tensors are written in the order of `declare`: two for each of the sums, then the
        // Hessians.
        let Some(group) = index.checked_sub(2 * sorted.len()) else {
            return sorted[index / 2].write(index % 2 == 1, out);
        };
        for _ in 0..groups[group].matrices {
            let bytes: Vec<u8> = next()?.iter().flat_map(|value| value.to_le_bytes()).collect();
            out.write_all(&bytes)?;
        }
        Ok(())
    });
    written.map_err(failed)?;
    Ok(file.finish()?)
}

fn declare(writer: &mut Writer, sorted: &[&CollectedSums], groups: &[HessianGroup]) -> std::io::Result<()> {
    for one in sorted {
        one.declare(writer)?;
    }
    for group in groups {
        let values = triangle_len(group.columns).unwrap_or(usize::MAX);
        let name = format!("{}.hessian", group.weights[0]);
        writer.tensor(name, TensorType::F32, &[group.matrices, values])?;
    }
    Ok(())
}
