//! Streams the rows of new tensors into a safetensors file.

use crate::error::ConvertError;
use crate::rows::{NewTensorRows, OldFile};
use crate::tensors::NewTensor;
use latent_formats::OutputFile;
use latent_types::TensorType;
use std::io::{self, Write};
use std::thread;

/// Maximum number of f32 values in memory, over all threads.
const CHUNK: usize = 8 << 20;

/// Minimum number of values per thread.
const WORTH_A_THREAD: usize = 1 << 16;

/// The smallest number that rounds to infinity in F16: halfway between the largest F16 (65504) and
/// 65536.
const F16_LIMIT: f32 = 65520.0;

/// Progress of a conversion, and whether to continue.
pub(crate) struct ConversionProgress<'a> {
    done: u64,
    total: u64,
    tell: &'a mut dyn FnMut(u64, u64) -> bool,
}

impl<'a> ConversionProgress<'a> {
    pub(crate) fn new(total: u64, tell: &'a mut dyn FnMut(u64, u64) -> bool) -> ConversionProgress<'a> {
        ConversionProgress { done: 0, total, tell }
    }

    fn advance(&mut self, bytes: usize) -> Result<(), ConvertError> {
        self.done += bytes as u64;
        if (self.tell)(self.done, self.total) { Ok(()) } else { Err(ConvertError::Interrupted) }
    }
}

/// Data source of a tensor writer.
pub(crate) struct TensorDataStream<'a, 'p> {
    tensors: &'a [NewTensor],
    old: &'a OldFile<'a>,
    progress: &'a mut ConversionProgress<'p>,
    /// The conversion error behind an `io::Error`, which the writer's callback must return.
    failed: Option<ConvertError>,
}

impl<'a, 'p> TensorDataStream<'a, 'p> {
    pub(crate) fn new(
        tensors: &'a [NewTensor],
        old: &'a OldFile<'a>,
        progress: &'a mut ConversionProgress<'p>,
    ) -> TensorDataStream<'a, 'p> {
        TensorDataStream { tensors, old, progress, failed: None }
    }

    /// Writes the data of the tensor at an index.
    pub(crate) fn write(&mut self, index: usize, out: &mut dyn Write) -> io::Result<()> {
        let tensor = &self.tensors[index];
        let rows = self.old.rows(tensor).map_err(TensorWriteError::from);
        match rows.and_then(|rows| copy(tensor, &rows, out, self.progress)) {
            Ok(()) => Ok(()),
            Err(TensorWriteError::Write(error)) => Err(error),
            Err(TensorWriteError::Convert(error)) => {
                self.failed = Some(error);
                Err(io::ErrorKind::Other.into())
            }
        }
    }

    /// Combines the writer's result with the conversion error.
    pub(crate) fn outcome(self, written: io::Result<()>, out: &OutputFile) -> Result<(), ConvertError> {
        match (self.failed, written) {
            (Some(error), _) => Err(error),
            (None, Err(error)) => Err(out.failed(error).into()),
            (None, Ok(())) => Ok(()),
        }
    }
}

/// Error of writing a tensor.
enum TensorWriteError {
    Write(io::Error),
    Convert(ConvertError),
}

impl From<ConvertError> for TensorWriteError {
    fn from(error: ConvertError) -> TensorWriteError {
        TensorWriteError::Convert(error)
    }
}

/// Writes the data of a tensor, chunk by chunk.
fn copy(
    tensor: &NewTensor,
    rows: &NewTensorRows<'_>,
    out: &mut dyn Write,
    progress: &mut ConversionProgress<'_>,
) -> Result<(), TensorWriteError> {
    let (cols, count) = tensor.rows();
    let row_bytes = tensor.ty.row_bytes(cols).unwrap_or(0);
    let unit = rows.unit;
    // Whole units, and at least one even if it exceeds CHUNK.
    let most = (CHUNK / (unit * cols).max(1)).max(1) * unit;
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let mut encoded = Vec::new();
    let mut first = 0;
    while first < count {
        let mut now = most.min(count - first);
        // Rows that are already stored in the new type are copied without decoding.
        let stored = now.min(rows.contiguous(first));
        let bytes = match rows.stored_bytes(tensor.ty, first, stored) {
            Some(bytes) => {
                now = stored;
                out.write_all(&bytes).map_err(TensorWriteError::Write)?;
                bytes.len()
            }
            None => {
                encoded.resize(now * row_bytes, 0);
                let each =
                    (now / unit).div_ceil(threads).max(WORTH_A_THREAD / (unit * cols).max(1)).max(1) * unit;
                let shares = encoded.chunks_mut(each * row_bytes).enumerate();
                let shares = shares.map(|(i, bytes)| (first + i * each, bytes)).collect();
                in_parallel(shares, &|first, bytes| encode_rows(tensor, rows, first, bytes))?;
                out.write_all(&encoded).map_err(TensorWriteError::Write)?;
                encoded.len()
            }
        };
        // A model larger than the memory would otherwise push everything else out of the page
        // cache.
        rows.release(first, now);
        progress.advance(bytes)?;
        first += now;
    }
    Ok(())
}

/// Decodes and encodes consecutive rows.
fn encode_rows(
    tensor: &NewTensor,
    rows: &NewTensorRows<'_>,
    first: usize,
    bytes: &mut [u8],
) -> Result<(), ConvertError> {
    let (cols, _) = tensor.rows();
    let row_bytes = tensor.ty.row_bytes(cols).unwrap_or(1).max(1);
    let mut numbers = vec![0.0; bytes.len() / row_bytes * cols];
    rows.read(first, &mut numbers);
    let name = || tensor.name.clone();
    // llama.cpp's converter writes infinity here. An error tells the user to choose BF16.
    if tensor.ty == TensorType::F16
        && let Some(value) = numbers.iter().find(|number| number.is_finite() && number.abs() >= F16_LIMIT)
    {
        return Err(ConvertError::Overflow { tensor: name(), value: *value, ty: tensor.ty });
    }
    let encode = |error| ConvertError::Encode { tensor: name(), error };
    latent_quant::encode(tensor.ty, &numbers, bytes).map_err(encode)?;
    let mut decoded = vec![0.0; cols];
    for (numbers, bytes) in numbers.chunks_exact(cols.max(1)).zip(bytes.chunks_exact(row_bytes)) {
        // Scales are F16: rows within its range cannot overflow.
        if !tensor.ty.is_quantized() || numbers.iter().all(|x| x.abs() < F16_LIMIT) {
            continue;
        }
        // A scale may have overflowed to infinity. Decode the row and compare.
        latent_quant::decode(tensor.ty, bytes, &mut decoded).map_err(encode)?;
        if let Some((_, value)) = latent_quant::overflow(tensor.ty, numbers, &decoded) {
            return Err(ConvertError::Overflow { tensor: name(), value, ty: tensor.ty });
        }
    }
    Ok(())
}

/// Produces the bytes of rows that start at an index.
type RowProducer<'w> = dyn Fn(usize, &mut [u8]) -> Result<(), ConvertError> + Sync + 'w;

/// Processes the shares concurrently and returns one of their errors.
fn in_parallel(mut shares: Vec<(usize, &mut [u8])>, work: &RowProducer<'_>) -> Result<(), ConvertError> {
    let Some((first, own)) = shares.pop() else { return Ok(()) };
    thread::scope(|scope| {
        let spawn = |(first, bytes)| thread::Builder::new().spawn_scoped(scope, move || work(first, bytes));
        let others: Vec<_> = shares.into_iter().map(spawn).collect();
        // The calling thread processes one share, so a single share needs no thread.
        let mut result = work(first, own);
        for other in others {
            let done = match other {
                // A panic is a bug: do not turn it into a conversion error.
                Ok(other) => other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
                Err(error) => Err(ConvertError::Thread { error }),
            };
            result = result.and(done);
        }
        result
    })
}
