//! The target type of each tensor.

use crate::error::ConvertError;
use crate::quantize::assigned_tensor::AssignedTensor;
use crate::quantize::gptq::Gptq;
use crate::quantize::importance::Importances;
use crate::quantize::mix::Mix;
use crate::quantize::rules::{self, MixRules};
use crate::quantize::shape::{ModelShape, TensorRole, columns_rows_matrices, layer_of};
use crate::quantize::weights::{SourceTensor, Weights};
use latent_formats::gguf::{DEFAULT_ALIGNMENT, Metadata, Writer, WriterValue, shard_name};
use latent_formats::{OutputError, cut, output_file};
use latent_types::TensorType;
use regex_automata::meta::Regex;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Keys of a shard.
// They describe the source file, not the written one.
const OF_SHARDS: [&str; 3] = ["split.no", "split.count", "split.tensors.count"];

/// The revision of the block formats that `general.quantization_version` names.
const QUANTIZATION_VERSION: u32 = 2;

/// Options of a quantization.
#[derive(Clone, Debug)]
pub struct Options {
    pub mix: Mix,
    /// Use the base type of the mix for every tensor that may be quantized.
    pub pure: bool,
    /// Types of tensors by name. The first matching pattern counts.
    pub tensor_types: Vec<(TensorPattern, TensorType)>,
    /// Type of the output matrix.
    pub output: Option<TensorType>,
    /// Type of the token embedding.
    pub embedding: Option<TensorType>,
    /// Whether quantized tensors may be quantized again.
    pub allow_requantize: bool,
}

impl Options {
    pub fn new(mix: Mix) -> Options {
        Options {
            mix,
            pure: false,
            tensor_types: Vec::new(),
            output: None,
            embedding: None,
            allow_requantize: false,
        }
    }
}

/// The types of all tensors, and the file or set of files to write.
pub struct Assignment<'a> {
    pub(crate) weights: &'a dyn Weights,
    pub(crate) importances: Option<&'a Importances>,
    pub(crate) gptq: Option<Gptq<'a>>,
    pub(crate) tensors: Vec<AssignedTensor>,
    pub(crate) files: Vec<NewFile>,
    mix: Mix,
    allow_requantize: bool,
    /// Maximum bytes of tensors per file. `None`: a single file.
    split: Option<u64>,
}

pub(crate) struct NewFile {
    pub writer: Writer,
    /// Indices of its tensors.
    pub tensors: Range<usize>,
}

impl<'a> Assignment<'a> {
    /// Chooses a type for every tensor, and checks everything that can be checked before the
    /// weights are read.
    ///
    /// # Errors
    /// The model cannot be written, the importances are of another model, or a type does not fit or
    /// is not allowed.
    pub fn new(
        weights: &'a dyn Weights,
        options: &Options,
        importances: Option<&'a Importances>,
    ) -> Result<Assignment<'a>, ConvertError> {
        let metadata = weights.metadata()?;
        let sources = weights.tensors();
        if sources.is_empty() {
            let problem = "it has no tensors to quantize; pass a file with the model's weights".into();
            return Err(ConvertError::Source { file: weights.display_name(), problem });
        }
        if let Some(importances) = importances {
            importances.check(&weights.display_name(), &sources)?;
        }
        for ty in
            options.tensor_types.iter().map(|(_, ty)| *ty).chain(options.output).chain(options.embedding)
        {
            // Some types of safetensors folders, such as FP8, have no number in GGUF.
            if !latent_quant::can_quantize(ty) || ty.ggml_id().is_none() {
                return Err(ConvertError::NotWritable(ty));
            }
        }
        let shape = ModelShape::read(metadata, &sources)?;
        let tensors = choose(sources, options, &shape, importances.is_some())?;
        let mut assignment = Assignment {
            weights,
            importances,
            gptq: None,
            files: Vec::new(),
            tensors,
            mix: options.mix,
            allow_requantize: options.allow_requantize,
            split: None,
        };
        assignment.finish()?;
        Ok(assignment)
    }

    /// Splits the model into files of at most `most` bytes of tensors. A larger tensor gets its own
    /// file.
    pub fn split(&mut self, most: u64) -> Result<(), ConvertError> {
        self.split = Some(most);
        self.finish()
    }

    /// The files of a target: the target itself, or the files of a set
    /// (`NAME-00001-of-0000N.gguf`).
    pub fn targets(&self, target: &Path) -> Vec<PathBuf> {
        let count = self.files.len();
        if count == 1 {
            return vec![target.to_owned()];
        }
        let stem = target.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
        (0..count).map(|number| target.with_file_name(shard_name(&stem, number, count))).collect()
    }

    /// The tensors in the order of the file.
    pub fn tensors(&self) -> &[AssignedTensor] {
        &self.tensors
    }

    /// The mix that the assignment started with.
    pub fn mix(&self) -> Mix {
        self.mix
    }

    /// Bytes of the written files.
    pub fn bytes(&self) -> Result<u64, ConvertError> {
        let of_file = |file: usize| {
            let tensors = self.files[file].writer.offsets().map_err(|error| self.unwritable(error))?.1;
            Ok(self.header(file)?.len() as u64 + tensors)
        };
        (0..self.files.len()).map(of_file).sum()
    }

    /// The header of the file at an index.
    pub(crate) fn header(&self, file: usize) -> Result<Vec<u8>, ConvertError> {
        let mut header = Vec::new();
        self.files[file].writer.write_header(&mut header).map_err(|error| self.unwritable(error))?;
        Ok(header)
    }

    /// Writes only the header of the first file, which [`Outline`](latent_formats::Outline) can
    /// read.
    pub fn write_header(&self, path: &Path) -> Result<(), ConvertError> {
        let header = self.header(0)?;
        Ok(output_file::write(path, &header)?)
    }

    /// Changes the types of tensors.
    pub fn retype(&mut self, types: &[(usize, TensorType)]) -> Result<(), ConvertError> {
        for (index, to) in types {
            // The type was chosen for this tensor, so it is not a fallback of another one.
            (self.tensors[*index].to, self.tensors[*index].meant) = (*to, None);
        }
        self.finish()
    }

    /// Alignment of the tensors' first bytes.
    pub(crate) fn alignment(&self) -> Result<u64, ConvertError> {
        Ok(self.weights.metadata()?.u64("general.alignment")?.unwrap_or(u64::from(DEFAULT_ALIGNMENT)))
    }

    pub(crate) fn unwritable(&self, error: std::io::Error) -> ConvertError {
        OutputError::Io { path: self.weights.path().to_owned(), error }.into()
    }

    /// Checks the types and counts bytes, and declares the files.
    fn finish(&mut self) -> Result<(), ConvertError> {
        for tensor in &mut self.tensors {
            tensor.bytes_to = check(tensor, self.mix, self.importances, self.allow_requantize)?;
        }
        self.declare()
    }

    /// Declares the files.
    pub(crate) fn declare(&mut self) -> Result<(), ConvertError> {
        let bytes: Vec<u64> = self.tensors.iter().map(|tensor| tensor.bytes_to).collect();
        let parts = cut(&bytes, self.split.unwrap_or(u64::MAX))?;
        // Only the first shard has the model's keys, as llama-gguf-split writes them.
        let mut first = Some(self.keys(self.weights.metadata()?));
        let count = parts.len();
        let mut files = Vec::with_capacity(count);
        for (number, tensors) in parts.into_iter().enumerate() {
            let mut writer = first.take().unwrap_or_default();
            if count > 1 {
                // The integer types are those of llama-gguf-split.
                // The cast is exact: `cut` allows at most 4096 files.
                writer.key("split.no", WriterValue::U16(number as u16));
                writer.key("split.count", WriterValue::U16(count as u16));
                writer.key("split.tensors.count", WriterValue::I32(bytes.len() as i32));
            }
            for tensor in &self.tensors[tensors.clone()] {
                let declared = writer.tensor(&tensor.name, tensor.to, &tensor.shape);
                declared.map_err(|error| self.unwritable(error))?;
            }
            files.push(NewFile { writer, tensors });
        }
        self.files = files;
        Ok(())
    }

    /// The keys of the first file.
    fn keys(&self, metadata: &Metadata) -> Writer {
        let mut writer = Writer::new();
        for (key, bytes) in metadata.encoded().filter(|(key, _)| !OF_SHARDS.contains(key)) {
            // Copied as bytes: unknown keys and types survive.
            writer.key(key, WriterValue::Encoded(bytes.to_vec()));
        }
        // Replaces the values that were copied above.
        writer.set_key("general.quantization_version", WriterValue::U32(QUANTIZATION_VERSION));
        writer.set_key("general.file_type", WriterValue::U32(self.mix.id()));
        if let Some(importances) = self.importances {
            importances.describe(&mut writer);
        }
        if let Some(gptq) = &self.gptq {
            gptq.describe(&mut writer);
        }
        writer
    }
}

fn choose(
    sources: Vec<SourceTensor>,
    options: &Options,
    shape: &ModelShape,
    has_importance: bool,
) -> Result<Vec<AssignedTensor>, ConvertError> {
    let base = options.mix.base();
    let wide: Vec<bool> = sources.iter().map(|source| source.wide).collect();
    let mut tensors: Vec<AssignedTensor> = sources.into_iter().map(unassigned).collect();
    // Some rules count the tensors before (MixRules), in llama-quantize's order: tensors without a
    // layer first, then by layer and name.
    let mut order: Vec<usize> = (0..tensors.len()).collect();
    order.sort_by(|a, b| {
        let key = |i: &usize| (layer_of(&tensors[*i].name), &tensors[*i].name);
        key(a).cmp(&key(b))
    });
    let values =
        tensors.iter().filter(|tensor| TensorRole::of(&tensor.name) == TensorRole::Value).count() as u64;
    let mut rules = MixRules::new(options.mix, shape, has_importance, options.output, values);
    for index in order {
        let tensor = &mut tensors[index];
        if !tensor.free {
            continue;
        }
        let (columns, _, matrices) = columns_rows_matrices(&tensor.shape);
        let named = options.tensor_types.iter().find(|(pattern, _)| pattern.is_found_in(&tensor.name));
        let role = TensorRole::of(&tensor.name);
        let by_role = match role {
            TensorRole::Embedding => options.embedding,
            TensorRole::Output => options.output,
            _ => None,
        };
        // An explicit type is never replaced by a fallback: report that it does not fit.
        if let Some(ty) = by_role.or(named.map(|(_, ty)| *ty)) {
            if !columns.is_multiple_of(ty.block_len()) {
                return Err(ConvertError::Width { tensor: tensor.name.clone(), columns, ty });
            }
            (tensor.to, tensor.named) = (ty, true);
            continue;
        }
        // In an F16 or BF16 file these stay F32 (`stays_f32`).
        if wide[index] && !base.is_quantized() {
            continue;
        }
        let meant = if options.pure || !base.is_quantized() {
            base
        } else {
            rules.choose(&tensor.name, columns, matrices)
        };
        let fallback = rules::fallback(meant, columns);
        tensor.to = fallback.unwrap_or(meant);
        tensor.meant = fallback.map(|_| meant);
    }
    Ok(tensors)
}

/// Bytes of a tensor in a type whose block size divides its rows.
fn bytes_of(shape: &[usize], ty: TensorType) -> u64 {
    let (columns, rows, matrices) = columns_rows_matrices(shape);
    // Saturating, since shapes come from files.
    let rows = (rows as u64).saturating_mul(matrices as u64);
    rows.saturating_mul(ty.row_bytes(columns).unwrap_or(0) as u64)
}

/// A tensor without a chosen type: it keeps its own.
fn unassigned(source: SourceTensor) -> AssignedTensor {
    let SourceTensor { name, shape, ty, kept, wide: _ } = source;
    let bytes = bytes_of(&shape, kept);
    AssignedTensor {
        free: rules::may_be_quantized(&name, &shape),
        name,
        shape,
        from: ty,
        to: kept,
        kept,
        meant: None,
        bytes_kept: bytes,
        bytes_to: bytes,
        named: false,
    }
}

/// Checks that the tensor can get its chosen type and returns its bytes.
fn check(
    tensor: &AssignedTensor,
    mix: Mix,
    importances: Option<&Importances>,
    allow_requantize: bool,
) -> Result<u64, ConvertError> {
    let (from, to, name) = (tensor.from, tensor.to, || tensor.name.clone());
    // Copied bytes need neither a decoder nor importances.
    if from == to {
        return Ok(bytes_of(&tensor.shape, to));
    }
    let (columns, _, matrices) = columns_rows_matrices(&tensor.shape);
    if to.row_bytes(columns).is_none() {
        return Err(ConvertError::Width { tensor: name(), columns, ty: to });
    }
    if !latent_quant::can_decode(from) {
        return Err(ConvertError::NotDecodable { tensor: name(), ty: from });
    }
    // Quantizing twice adds both errors.
    if from.is_quantized() && to != tensor.kept && !allow_requantize {
        return Err(ConvertError::Requantize { tensor: name(), from, to });
    }
    let of = importances.map(|all| all.of(&tensor.name, columns, matrices)).transpose()?.flatten();
    if of.is_none() && rules::needs_importance(&tensor.name, to, mix) {
        return Err(ConvertError::NeedsImportance { tensor: name(), ty: to });
    }
    Ok(bytes_of(&tensor.shape, to))
}

/// A regular expression, searched anywhere in a tensor's name.
#[derive(Clone, Debug)]
pub struct TensorPattern(Regex);

impl TensorPattern {
    /// Compiles a pattern.
    pub fn new(pattern: &str) -> Result<TensorPattern, ConvertError> {
        let problem = |error: &dyn std::fmt::Display| ConvertError::Pattern {
            pattern: pattern.to_owned(),
            problem: error.to_string(),
        };
        Regex::new(pattern).map(TensorPattern).map_err(|error| match error.syntax_error() {
            Some(syntax) => problem(syntax),
            None => problem(&error),
        })
    }

    pub(crate) fn is_found_in(&self, name: &str) -> bool {
        self.0.is_match(name)
    }
}
