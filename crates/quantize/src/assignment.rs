//! What becomes of each tensor.

use crate::error::QuantizeError;
use crate::importance::Importances;
use crate::mix::Mix;
use crate::pattern::Pattern;
use crate::rules::{self, Rules};
use crate::shape::{ModelShape, Role, columns_rows_matrices, layer_of};
use latent_formats::gguf::{DEFAULT_ALIGNMENT, Metadata, Writer, WriterValue};
use latent_formats::{Checkpoint, OutputError, Source};
use latent_types::TensorType;
use std::path::Path;

/// Keys of a set of shards, which the written file is not.
const OF_SHARDS: [&str; 3] = ["split.no", "split.count", "split.tensors.count"];

/// The revision of the block formats that `general.quantization_version` names.
const QUANTIZATION_VERSION: u32 = 2;

/// What is asked for.
#[derive(Clone, Debug)]
pub struct Options {
    /// The mix.
    pub mix: Mix,
    /// The type of the mix for every tensor that may be quantized.
    pub pure: bool,
    /// Types of tensors by their names; the first pattern that is found counts.
    pub tensor_types: Vec<(Pattern, TensorType)>,
    /// The type of the output matrix.
    pub output: Option<TensorType>,
    /// The type of the token embedding.
    pub embedding: Option<TensorType>,
    /// Whether tensors that are quantized already may be quantized again.
    pub allow_requantize: bool,
}

impl Options {
    /// A mix as it is.
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

/// A tensor and what it becomes.
#[derive(Clone, Debug)]
pub struct AssignedTensor {
    /// Its name.
    pub name: String,
    /// Its shape, outermost dimension first.
    pub shape: Vec<usize>,
    /// Its type in the model.
    pub from: TensorType,
    /// Its type in the written file.
    pub to: TensorType,
    /// The type that the mix meant for it, where its rows are no whole blocks of that.
    pub meant: Option<TensorType>,
    /// Bytes in the model.
    pub bytes_from: u64,
    /// Bytes in the written file.
    pub bytes_to: u64,
    /// Whether the mix chose from types for it, so that it is no norm, bias or router.
    pub free: bool,
    /// Whether its type was asked for by name.
    pub named: bool,
}

/// A file that is to be written.
pub struct Assignment<'a> {
    pub(crate) checkpoint: &'a Checkpoint,
    pub(crate) importances: Option<&'a Importances>,
    pub(crate) tensors: Vec<AssignedTensor>,
    pub(crate) writer: Writer,
    mix: Mix,
    allow_requantize: bool,
}

impl<'a> Assignment<'a> {
    /// Chooses a type for every tensor, and checks all that can be known before the weights are read.
    ///
    /// # Errors
    /// A model that is no GGUF file; importances of another model; a type that does not fit, or is not allowed.
    pub fn new(
        checkpoint: &'a Checkpoint,
        options: &Options,
        importances: Option<&'a Importances>,
    ) -> Result<Assignment<'a>, QuantizeError> {
        let metadata = metadata(checkpoint)?;
        if let Some(importances) = importances {
            importances.check(checkpoint)?;
        }
        for ty in
            options.tensor_types.iter().map(|(_, ty)| *ty).chain(options.output).chain(options.embedding)
        {
            if !latent_quant::can_quantize(ty) || ty.ggml_id().is_none() {
                return Err(QuantizeError::NotWritable(ty));
            }
        }
        let shape = ModelShape::read(metadata, checkpoint.tensors())?;
        let tensors = choose(checkpoint, options, &shape, importances.is_some())?;
        let mut assignment = Assignment {
            checkpoint,
            importances,
            writer: Writer::new(),
            tensors,
            mix: options.mix,
            allow_requantize: options.allow_requantize,
        };
        assignment.finish(metadata)?;
        Ok(assignment)
    }

    /// The tensors in the order of the file.
    pub fn tensors(&self) -> &[AssignedTensor] {
        &self.tensors
    }

    /// The mix that it began with.
    pub fn mix(&self) -> Mix {
        self.mix
    }

    /// Bytes of the written file.
    ///
    /// # Errors
    /// As for [`write_header`](Self::write_header).
    pub fn bytes(&self) -> Result<u64, QuantizeError> {
        let header = self.header()?.len() as u64;
        Ok(header + self.writer.offsets().map_err(|error| self.unwritable(error))?.1)
    }

    /// The header of the written file.
    pub(crate) fn header(&self) -> Result<Vec<u8>, QuantizeError> {
        let mut header = Vec::new();
        self.writer.write_header(&mut header).map_err(|error| self.unwritable(error))?;
        Ok(header)
    }

    /// Writes the header alone, which [`Outline`](latent_formats::Outline) reads: what the file would be.
    ///
    /// # Errors
    /// Of the system.
    pub fn write_header(&self, path: &Path) -> Result<(), QuantizeError> {
        let header = self.header()?;
        std::fs::write(path, header).map_err(|error| OutputError::Io { path: path.to_owned(), error }.into())
    }

    /// Gives tensors other types.
    ///
    /// # Errors
    /// As for [`new`](Self::new).
    pub fn retype(&mut self, types: &[(usize, TensorType)]) -> Result<(), QuantizeError> {
        let metadata = metadata(self.checkpoint)?;
        for (index, to) in types {
            (self.tensors[*index].to, self.tensors[*index].meant) = (*to, None);
        }
        self.finish(metadata)
    }

    /// What the first byte of every tensor is a multiple of.
    pub(crate) fn alignment(&self) -> Result<u64, QuantizeError> {
        Ok(metadata(self.checkpoint)?.u64("general.alignment")?.unwrap_or(u64::from(DEFAULT_ALIGNMENT)))
    }

    pub(crate) fn unwritable(&self, error: std::io::Error) -> QuantizeError {
        OutputError::Io { path: self.checkpoint.path().to_owned(), error }.into()
    }

    /// Checks the types, counts bytes and declares the file.
    fn finish(&mut self, metadata: &Metadata) -> Result<(), QuantizeError> {
        for tensor in &mut self.tensors {
            tensor.bytes_to = check(tensor, self.mix, self.importances, self.allow_requantize)?;
        }
        let mut writer = Writer::new();
        for (key, bytes) in metadata.encoded().filter(|(key, _)| !OF_SHARDS.contains(key)) {
            writer.key(key, WriterValue::Encoded(bytes.to_vec()));
        }
        writer.set_key("general.quantization_version", WriterValue::U32(QUANTIZATION_VERSION));
        writer.set_key("general.file_type", WriterValue::U32(self.mix.id()));
        if let Some(importances) = self.importances {
            importances.describe(&mut writer);
        }
        for tensor in &self.tensors {
            writer.tensor(&tensor.name, tensor.to, &tensor.shape).map_err(|error| self.unwritable(error))?;
        }
        self.writer = writer;
        Ok(())
    }
}

fn metadata(checkpoint: &Checkpoint) -> Result<&Metadata, QuantizeError> {
    let refused = |problem: &str| {
        Err(QuantizeError::Source { file: checkpoint.display_name(), problem: problem.to_owned() })
    };
    if checkpoint.packed_from().is_some() {
        return refused("it is a packed file, which holds tiles; quantize the file that it was packed from");
    }
    match checkpoint.source() {
        Source::Gguf(source) => Ok(&source.metadata),
        Source::HuggingFace(_) => {
            refused("it is a folder of safetensors; only GGUF files are quantized: convert it first")
        }
    }
}

fn choose(
    checkpoint: &Checkpoint,
    options: &Options,
    shape: &ModelShape,
    has_importance: bool,
) -> Result<Vec<AssignedTensor>, QuantizeError> {
    let infos = checkpoint.tensors();
    let mut tensors: Vec<AssignedTensor> = infos
        .iter()
        .map(|info| AssignedTensor {
            name: info.name.clone(),
            shape: info.shape.clone(),
            from: info.ty,
            to: info.ty,
            meant: None,
            bytes_from: info.bytes as u64,
            bytes_to: info.bytes as u64,
            free: rules::may_be_quantized(&info.name, &info.shape),
            named: false,
        })
        .collect();
    // rules count in this order: by layer, those of no layer first, then by name
    let mut order: Vec<usize> = (0..tensors.len()).collect();
    order.sort_by(|a, b| {
        let key = |i: &usize| (layer_of(&infos[*i].name), &infos[*i].name);
        key(a).cmp(&key(b))
    });
    let values = infos.iter().filter(|info| Role::of(&info.name) == Role::Value).count() as u64;
    let mut rules = Rules::new(options.mix, shape, has_importance, options.output, values);
    for index in order {
        let tensor = &mut tensors[index];
        if !tensor.free {
            continue;
        }
        let (columns, _, matrices) = columns_rows_matrices(&tensor.shape);
        let named = options.tensor_types.iter().find(|(pattern, _)| pattern.is_found_in(&tensor.name));
        let role = Role::of(&tensor.name);
        let by_role = match role {
            Role::Embedding => options.embedding,
            Role::Output => options.output,
            _ => None,
        };
        if let Some(ty) = by_role.or(named.map(|(_, ty)| *ty)) {
            if !columns.is_multiple_of(ty.block_len()) {
                return Err(QuantizeError::Width { tensor: tensor.name.clone(), columns, ty });
            }
            (tensor.to, tensor.named) = (ty, true);
            continue;
        }
        let base = options.mix.base();
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

/// Whether the tensor can become what was chosen; its bytes then.
fn check(
    tensor: &AssignedTensor,
    mix: Mix,
    importances: Option<&Importances>,
    allow_requantize: bool,
) -> Result<u64, QuantizeError> {
    let (from, to, name) = (tensor.from, tensor.to, || tensor.name.clone());
    if from == to {
        return Ok(tensor.bytes_from);
    }
    let (columns, rows, matrices) = columns_rows_matrices(&tensor.shape);
    let Some(row) = to.row_bytes(columns) else {
        return Err(QuantizeError::Width { tensor: name(), columns, ty: to });
    };
    if !latent_quant::can_decode(from) {
        return Err(QuantizeError::NotReadable { tensor: name(), ty: from });
    }
    if from.is_quantized() && !allow_requantize {
        return Err(QuantizeError::Requantize { tensor: name(), from, to });
    }
    let of = importances.map(|all| all.of(&tensor.name, columns, matrices)).transpose()?.flatten();
    if of.is_none() && rules::needs_importance(&tensor.name, to, mix) {
        return Err(QuantizeError::NeedsImportance { tensor: name(), ty: to });
    }
    Ok((row as u64).saturating_mul(rows as u64).saturating_mul(matrices as u64))
}
