//! Quantization jobs: the pieces of a file in order, and their bytes.

use crate::error::ConvertError;
use crate::quantize::assignment::{Assignment, NewFile};
use crate::quantize::importance::normalized;
use crate::quantize::rows::{quantize_row, round_rows};
use crate::quantize::shape::columns_rows_matrices;
use crate::quantize::weights::WeightRowReader;
use latent_quant::gptq::GptqRows;
use latent_types::TensorType;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Target number of weights per job, rounded to whole rows.
pub(crate) const JOB_WEIGHTS: usize = 1 << 20;

/// Target number of weights read at a time, rounded to whole rows.
// 64 KB of f32 stay in a core's cache.
const READ_TOGETHER: usize = 1 << 14;

/// Rows read at a time for GPTQ.
// Each part of a factor is then read once for all of them.
const ROUNDED_TOGETHER: usize = 64;

/// Consecutive rows of a tensor.
pub(crate) struct QuantizeJob {
    pub tensor: usize,
    /// Counted through all matrices.
    pub rows: Range<usize>,
    /// Position of the first byte in the file.
    pub at: u64,
    /// Including the padding after the tensor.
    pub bytes: usize,
}

/// Sums of squared errors and of squares, both weighted by importances.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct QuantErrorSums {
    pub errors: f64,
    pub squares: f64,
}

/// Creates the jobs of the file at an index.
pub(crate) fn jobs(assignment: &Assignment<'_>, file: usize) -> Result<Vec<QuantizeJob>, ConvertError> {
    let NewFile { writer, tensors } = &assignment.files[file];
    let data = assignment.header(file)?.len() as u64;
    let (offsets, end) = writer.offsets().map_err(|error| assignment.unwritable(error))?;
    let mut jobs = Vec::new();
    for (number, index) in tensors.clone().enumerate() {
        let tensor = &assignment.tensors[index];
        let (columns, rows, matrices) = columns_rows_matrices(&tensor.shape);
        let rows = rows * matrices;
        let next = data + offsets.get(number + 1).copied().unwrap_or(end);
        let mut at = data + offsets[number];
        if rows == 0 || tensor.bytes_to == 0 {
            continue;
        }
        let row = (tensor.bytes_to / rows as u64) as usize;
        let step =
            (JOB_WEIGHTS / columns.max(1)).max(1).next_multiple_of(assignment.weights.rows_together(index));
        for first in (0..rows).step_by(step) {
            let last = (first + step).min(rows);
            // The last job of a tensor also writes the padding up to the next one.
            let bytes = if last == rows { (next - at) as usize } else { (last - first) * row };
            jobs.push(QuantizeJob { tensor: index, rows: first..last, at, bytes });
            at += bytes as u64;
        }
    }
    Ok(jobs)
}

/// State of a worker thread.
#[derive(Default)]
pub(crate) struct QuantizeWorker<'a> {
    /// Reader of the last tensor, which is usually the next one too.
    rows: Option<(usize, Box<dyn WeightRowReader + 'a>)>,
    numbers: Vec<f32>,
    back: Vec<f32>,
    importance: (Option<(usize, usize)>, Vec<f32>),
    rounding: GptqRows,
    part: Option<(PathBuf, File)>,
}

impl<'a> QuantizeWorker<'a> {
    /// Produces the bytes of a job and their errors. `None` if all bytes were copied.
    pub(crate) fn quantize(
        &mut self,
        assignment: &Assignment<'a>,
        job: &QuantizeJob,
    ) -> Result<(Vec<u8>, Option<QuantErrorSums>), ConvertError> {
        let mut out = vec![0; job.bytes];
        let sums = self.run(assignment, job, &mut out, false)?;
        Ok((out, sums))
    }

    /// Measures the errors of a job whose bytes an earlier run wrote, so that a resumed run reports
    /// the same errors.
    pub(crate) fn compare(
        &mut self,
        assignment: &Assignment<'a>,
        job: &QuantizeJob,
        part: &Path,
    ) -> Result<Option<QuantErrorSums>, ConvertError> {
        let mut out = vec![0; job.bytes];
        // Keep the file open between jobs.
        let known = self.part.take_if(|(path, _)| path == part);
        let (_, mut file) = match known {
            Some(known) => known,
            None => (part.to_owned(), File::open(part).map_err(|error| of_part(part, error))?),
        };
        file.seek(SeekFrom::Start(job.at))
            .and_then(|_| file.read_exact(&mut out))
            .map_err(|error| of_part(part, error))?;
        self.part = Some((part.to_owned(), file));
        self.run(assignment, job, &mut out, true)
    }

    /// Measures the errors of a row (counted through all matrices) in several types.
    pub(crate) fn errors(
        &mut self,
        assignment: &Assignment<'a>,
        (tensor, row): (usize, usize),
        types: &[TensorType],
    ) -> Result<Vec<QuantErrorSums>, ConvertError> {
        let (columns, rows, matrices) = columns_rows_matrices(&assignment.tensors[tensor].shape);
        let unit = assignment.weights.rows_together(tensor);
        // Rows can only be read in whole units.
        let first = row - row % unit;
        let mut numbers = std::mem::take(&mut self.numbers);
        numbers.resize(unit.min(rows * matrices - first) * columns, 0.0);
        self.rows(assignment, tensor)?.read(first, &mut numbers)?;
        let numbers_of_row = &numbers[(row - first) * columns..(row - first + 1) * columns];
        let errors = types.iter().map(|ty| {
            let mut out = vec![0; ty.row_bytes(columns).unwrap_or(0)];
            self.row(assignment, (tensor, row), (numbers_of_row, *ty), &mut out, false)
        });
        let errors = errors.collect();
        self.numbers = numbers;
        errors
    }

    /// Returns the reader of a tensor and keeps it until another tensor is needed.
    fn rows(
        &mut self,
        assignment: &Assignment<'a>,
        tensor: usize,
    ) -> Result<&(dyn WeightRowReader + 'a), ConvertError> {
        let rows = match self.rows.take_if(|(of, _)| *of == tensor) {
            Some((_, rows)) => rows,
            None => assignment.weights.rows(tensor)?,
        };
        Ok(&*self.rows.insert((tensor, rows)).1)
    }

    /// Produces the bytes of a job, or with `there` only measures the errors of the bytes in `out`.
    fn run(
        &mut self,
        assignment: &Assignment<'a>,
        job: &QuantizeJob,
        out: &mut [u8],
        there: bool,
    ) -> Result<Option<QuantErrorSums>, ConvertError> {
        let tensor = &assignment.tensors[job.tensor];
        let (columns, rows, matrices) = columns_rows_matrices(&tensor.shape);
        // `jobs` makes no job of a tensor without rows.
        let row_bytes = (tensor.bytes_to as usize) / (rows * matrices);
        let unit = assignment.weights.rows_together(job.tensor);
        let most = (READ_TOGETHER / (unit * columns).max(1)).max(1) * unit;
        let mut sums: Option<QuantErrorSums> = None;
        let mut numbers = std::mem::take(&mut self.numbers);
        let mut first = job.rows.start;
        while first < job.rows.end {
            let out = &mut out[(first - job.rows.start) * row_bytes..];
            let source = self.rows(assignment, job.tensor)?;
            if let Some(bytes) = source.stored(tensor.to, first..job.rows.end) {
                // Copied rows have no error and are not decoded.
                out[..bytes.len()].copy_from_slice(&bytes);
                first += bytes.len() / row_bytes;
                continue;
            }
            let matrix = first / rows;
            // Measuring errors needs no factor, which is expensive.
            let gptq = assignment.gptq.as_ref().filter(|_| !there);
            let factor = gptq.map(|gptq| gptq.factor(tensor, matrix)).transpose()?.flatten();
            let last = job.rows.end.min((matrix + 1) * rows);
            let count = match &factor {
                // With larger units, a batch of rows could span two matrices, which have different
                // factors.
                Some(_) if unit == 1 => most.max(ROUNDED_TOGETHER).min(last - first),
                _ => most.min(job.rows.end - first),
            };
            numbers.resize(count * columns, 0.0);
            self.rows(assignment, job.tensor)?.read(first, &mut numbers)?;
            let mut rounded = 0;
            if let Some(factor) = &factor {
                rounded = count.min(last - first);
                let (numbers, out) = (&numbers[..rounded * columns], &mut out[..rounded * row_bytes]);
                round_rows(tensor.to, factor, numbers, &mut self.rounding, out)?;
            }
            let of_rows = numbers.chunks_exact(columns).zip(out.chunks_exact_mut(row_bytes));
            for (row, (numbers, out)) in (first..).zip(of_rows) {
                // GPTQ has written these rows; only measure them.
                let there = there || row < first + rounded;
                let of_row = self.row(assignment, (job.tensor, row), (numbers, tensor.to), out, there)?;
                sums.get_or_insert_default().add(of_row);
            }
            first += count;
        }
        self.numbers = numbers;
        self.rows(assignment, job.tensor)?.release(job.rows.clone());
        Ok(sums)
    }

    /// Quantizes a row unless `there`, decodes it, and measures the error.
    fn row(
        &mut self,
        assignment: &Assignment<'a>,
        (tensor, row): (usize, usize),
        (numbers, to): (&[f32], TensorType),
        out: &mut [u8],
        there: bool,
    ) -> Result<QuantErrorSums, ConvertError> {
        let assigned = &assignment.tensors[tensor];
        let (columns, rows, _) = columns_rows_matrices(&assigned.shape);
        self.back.resize(columns, 0.0);
        let weighted = self.importance(assignment, tensor, row / rows)?;
        let importance = weighted.then_some(&self.importance.1[..]);
        if !there {
            quantize_row(to, numbers, importance, out)?;
        }
        // Errors are measured on the decoded bytes, so they include everything the format loses.
        latent_quant::decode(to, out, &mut self.back)?;
        let sums = errors(numbers, &self.back, importance);
        let tensor = || assigned.name.clone();
        if let Some((column, value)) = latent_quant::overflow(to, numbers, &self.back) {
            return Err(ConvertError::RowOverflow { tensor: tensor(), row, column, value, ty: to });
        }
        if sums.errors.is_finite() && sums.squares.is_finite() {
            return Ok(sums);
        }
        // Unquantized types can represent NaN and infinity, so pass them on.
        if !to.is_quantized() && numbers.iter().any(|v| !v.is_finite()) {
            return Ok(QuantErrorSums::default());
        }
        Err(ConvertError::NotFinite { tensor: tensor(), row })
    }

    /// Loads the importances of a matrix and returns whether it has any.
    fn importance(
        &mut self,
        assignment: &Assignment<'_>,
        tensor: usize,
        matrix: usize,
    ) -> Result<bool, ConvertError> {
        // Normalized once per matrix, since the rows of a matrix follow each other.
        if self.importance.0 == Some((tensor, matrix)) {
            return Ok(!self.importance.1.is_empty());
        }
        let assigned = &assignment.tensors[tensor];
        let (columns, _, matrices) = columns_rows_matrices(&assigned.shape);
        let values = assignment
            .importances
            .map(|all| all.of(&assigned.name, columns, matrices))
            .transpose()?
            .flatten();
        let of_matrix = values.map(|values| normalized(&values[matrix * columns..(matrix + 1) * columns]));
        self.importance = (Some((tensor, matrix)), of_matrix.unwrap_or_default());
        Ok(!self.importance.1.is_empty())
    }
}

fn of_part(part: &Path, error: std::io::Error) -> ConvertError {
    latent_formats::OutputError::Io { path: part.to_owned(), error }.into()
}

impl QuantErrorSums {
    pub(crate) fn add(&mut self, other: QuantErrorSums) {
        self.errors += other.errors;
        self.squares += other.squares;
    }
}

/// Sums of one row in f64.
fn errors(old: &[f32], new: &[f32], weights: Option<&[f32]>) -> QuantErrorSums {
    // Eight independent lanes let the compiler vectorize the sums, in an order that does not depend
    // on the CPU.
    const LANES: usize = 8;
    let (mut errors, mut squares) = ([0f64; LANES], [0f64; LANES]);
    let mut add = |l: usize, old: f32, new: f32, weight: f32| {
        let (old, new, weight) = (f64::from(old), f64::from(new), f64::from(weight));
        errors[l] += weight * (old - new) * (old - new);
        squares[l] += weight * old * old;
    };
    for (chunk, (old, new)) in old.chunks(LANES).zip(new.chunks(LANES)).enumerate() {
        let weights = weights.map(|weights| &weights[chunk * LANES..]);
        for (l, (old, new)) in old.iter().zip(new).enumerate() {
            add(l, *old, *new, weights.map_or(1.0, |weights| weights[l]));
        }
    }
    QuantErrorSums { errors: errors.iter().sum(), squares: squares.iter().sum() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_count_by_their_weights() {
        let old: Vec<f32> = (0..11).map(|i| i as f32).collect();
        let mut new = old.clone();
        (new[3], new[10]) = (1.0, 11.0);
        let plain = errors(&old, &new, None);
        assert_eq!((plain.errors, plain.squares), (5.0, 385.0));
        let mut weights = vec![1.0; 11];
        weights[10] = 0.5;
        let weighted = errors(&old, &new, Some(&weights));
        assert_eq!((weighted.errors, weighted.squares), (4.5, 335.0));
    }
}
