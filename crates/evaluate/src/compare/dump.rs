//! Traces as safetensors files: a tensor of rows per activation, and the tokens.
//!
//! `tokens` is a vector of integers. An activation is a matrix `[tokens, width]` or `[tokens,
//! heads, width]` in F32 (F16, BF16 and F64 are read, too; leading dimensions of 1 are ignored).
//! `docs/debugging.md` describes the activations.

use latent_backend::{ActivationTrace, TraceValues};
use latent_engine::memory;
use latent_formats::safetensors::{SafetensorsError, Writer, list};
use latent_formats::{InputError, OutputError, OutputFile, input_file, limits};
use latent_graph::activations::Activations;
use latent_types::{Setting, TensorType};
use std::path::{Path, PathBuf};

/// Name of the tensor with the token IDs.
pub const TOKENS: &str = "tokens";

/// Errors of writing or reading a dump.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DumpError {
    #[error(transparent)]
    Input(#[from] InputError),
    #[error(transparent)]
    Output(#[from] OutputError),
    #[error("{}: not a dump of activations: {error}", path.display())]
    Safetensors { path: PathBuf, error: SafetensorsError },
    /// A tensor with a name, shape or type that no activation has.
    #[error("{}: tensor {tensor}: {problem}", path.display())]
    Tensor { path: PathBuf, tensor: String, problem: String },
    #[error(
        "{}: it has no tensor `tokens`: pass the token IDs of the dump with {}",
        path.display(),
        Setting::Tokens
    )]
    NoTokens { path: PathBuf },
    /// The dump has other tokens than those given.
    #[error("{}: its {found} tokens differ from the {given} of {tokens}: omit {tokens}", path.display(), tokens = Setting::Tokens)]
    OtherTokens { path: PathBuf, found: usize, given: usize },
}

/// Writes a trace; returns the number of activations. Activations with only some of their rows are
/// omitted.
pub fn write(trace: &ActivationTrace, points: &Activations, path: &Path) -> Result<usize, DumpError> {
    // Activations reveal the prompt, so only the owner can read the file.
    let mut out = OutputFile::create_private(path)?;
    let rows = trace.tokens().len();
    let mut writer = Writer::new();
    writer.tensor(TOKENS, TensorType::I32, &[rows]).map_err(|error| out.failed(error))?;
    let mut saved = Vec::new();
    for (index, point) in points.list().iter().enumerate() {
        if let Some(values) = trace.values(index).filter(|values| values.all()) {
            let shape = [rows, point.heads, point.width];
            let shape = if point.heads == 1 { vec![rows, point.width] } else { shape.to_vec() };
            writer.tensor(point.name.clone(), TensorType::F32, &shape).map_err(|error| out.failed(error))?;
            saved.push(values);
        }
    }
    let written = writer.write(&mut out, |tensor, out| match tensor.checked_sub(1) {
        None => trace.tokens().iter().try_for_each(|token| out.write_all(&token.to_le_bytes())),
        Some(i) => saved[i].numbers.iter().try_for_each(|number| out.write_all(&number.to_le_bytes())),
    });
    written.map_err(|error| out.failed(error))?;
    out.finish()?;
    Ok(saved.len())
}

/// Reads a dump of a model with these activations. Its tokens must equal `tokens`. Without
/// `tokens`, the dump must contain its own.
pub fn read(path: &Path, points: &Activations, tokens: Option<&[u32]>) -> Result<ActivationTrace, DumpError> {
    // The file and the decoded values are in memory together.
    let free = memory::available().map_or(u64::MAX, |available| available.bytes / 2);
    let bytes = input_file::read(path, limits::MAX_DUMP_BYTES.min(free))?;
    let tensors = list(&bytes).map_err(|error| DumpError::Safetensors { path: path.to_owned(), error })?;
    let wrong = |tensor: &str, problem: String| DumpError::Tensor {
        path: path.to_owned(),
        tensor: tensor.to_owned(),
        problem,
    };
    let own = tensors.iter().find(|(name, ..)| name == TOKENS);
    let own = own.map(|(name, ty, _, range)| ids(*ty, &bytes[range.clone()]).map_err(|p| wrong(name, p)));
    let tokens = match (own.transpose()?, tokens) {
        (Some(own), Some(given)) if own != given => {
            let (found, given) = (own.len(), given.len());
            return Err(DumpError::OtherTokens { path: path.to_owned(), found, given });
        }
        (Some(own), _) => own,
        (None, Some(given)) => given.to_vec(),
        (None, None) => return Err(DumpError::NoTokens { path: path.to_owned() }),
    };
    let rows = tokens.len();
    let mut trace = ActivationTrace::empty(points, tokens);
    for (name, ty, shape, range) in tensors.iter().filter(|(name, ..)| name != TOKENS) {
        let Some(index) = points.find(name) else { return Err(wrong(name, points.unknown(name))) };
        let point = &points.list()[index];
        if !matches!(ty, TensorType::F32 | TensorType::F16 | TensorType::BF16 | TensorType::F64) {
            return Err(wrong(name, format!("it is stored as {ty}, expected F32 (or F16, BF16, F64)")));
        }
        // PyTorch hooks dump `[1, tokens, width]`: leading dimensions of 1 (the batch) are skipped.
        // With a single token its dimension is 1, too, and already skipped.
        let inner = &shape[shape.iter().position(|&n| n != 1).unwrap_or(shape.len())..];
        let inner = if rows == 1 { inner } else { inner.get(1..).unwrap_or_default() };
        let numbers: usize = shape.iter().product();
        if inner.iter().product::<usize>() != point.row_width() || numbers != rows * point.row_width() {
            let expected = [rows, point.heads, point.width];
            let expected = if point.heads == 1 { vec![rows, point.width] } else { expected.to_vec() };
            return Err(wrong(name, format!("its shape is {shape:?}, expected {expected:?}")));
        }
        let mut values = TraceValues::new(rows, point.row_width());
        values.have.fill(true);
        latent_quant::decode(*ty, &bytes[range.clone()], &mut values.numbers)
            .map_err(|error| wrong(name, error.to_string()))?;
        "the dump".clone_into(&mut values.made_by);
        trace.set(index, values);
    }
    Ok(trace)
}

/// Parses token IDs stored as integers.
fn ids(ty: TensorType, bytes: &[u8]) -> Result<Vec<u32>, String> {
    let size = match ty {
        TensorType::I16 => 2,
        TensorType::I32 => 4,
        TensorType::I64 => 8,
        _ => return Err(format!("it is stored as {ty}, expected I32 or I64")),
    };
    let id = |bytes: &[u8]| {
        // Sign extension, so that a negative ID (padding in PyTorch) is reported as such.
        let mut wide = [if bytes[size - 1] >= 0x80 { 0xff } else { 0 }; 8];
        wide[..size].copy_from_slice(bytes);
        let id = i64::from_le_bytes(wide);
        u32::try_from(id).map_err(|_| format!("invalid token ID {id}"))
    };
    bytes.chunks_exact(size).map(id).collect()
}
