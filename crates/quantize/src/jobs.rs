//! The pieces of a file, in its order, and what they hold.

use crate::assignment::{AssignedTensor, Assignment};
use crate::error::QuantizeError;
use crate::importance::normalized;
use crate::rows::quantize_row;
use crate::shape::columns_rows_matrices;
use latent_types::TensorType;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::ops::Range;

/// Weights of a job, as far as whole rows allow.
pub(crate) const JOB_WEIGHTS: usize = 1 << 20;

/// Rows of a tensor.
pub(crate) struct Job {
    pub tensor: usize,
    /// Counted through all matrices.
    pub rows: Range<usize>,
    /// Its first byte in the file.
    pub at: u64,
    /// With the padding behind the tensor.
    pub bytes: usize,
}

/// Sums over weights: of squared errors and of squares, both times importances.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sums {
    pub errors: f64,
    pub squares: f64,
}

/// All jobs of an assignment, for a file whose tensors begin at `data`.
pub(crate) fn jobs(assignment: &Assignment<'_>, data: u64) -> Result<Vec<Job>, QuantizeError> {
    let (offsets, end) = assignment.writer.offsets().map_err(|error| assignment.unwritable(error))?;
    let mut jobs = Vec::new();
    for (index, tensor) in assignment.tensors.iter().enumerate() {
        let (columns, rows, matrices) = columns_rows_matrices(&tensor.shape);
        let rows = rows * matrices;
        let next = data + offsets.get(index + 1).copied().unwrap_or(end);
        let mut at = data + offsets[index];
        if rows == 0 || tensor.bytes_to == 0 {
            continue;
        }
        let row = (tensor.bytes_to / rows as u64) as usize;
        let step = (JOB_WEIGHTS / columns.max(1)).max(1);
        for first in (0..rows).step_by(step) {
            let last = (first + step).min(rows);
            let bytes = if last == rows { (next - at) as usize } else { (last - first) * row };
            jobs.push(Job { tensor: index, rows: first..last, at, bytes });
            at += bytes as u64;
        }
    }
    Ok(jobs)
}

/// What a thread works with.
#[derive(Default)]
pub(crate) struct Worker {
    numbers: Vec<f32>,
    back: Vec<f32>,
    importance: (Option<(usize, usize)>, Vec<f32>),
    part: Option<File>,
}

impl Worker {
    /// The bytes of a job.
    pub(crate) fn quantize(
        &mut self,
        assignment: &Assignment<'_>,
        job: &Job,
    ) -> Result<(Vec<u8>, Sums), QuantizeError> {
        let mut out = vec![0; job.bytes];
        let sums = self.run(assignment, job, &mut out, false)?;
        Ok((out, sums))
    }

    /// The errors of a job whose bytes an earlier run has written.
    pub(crate) fn compare(
        &mut self,
        assignment: &Assignment<'_>,
        job: &Job,
        part: &std::path::Path,
    ) -> Result<Sums, QuantizeError> {
        let mut out = vec![0; job.bytes];
        let file = match &mut self.part {
            Some(file) => file,
            none => none.insert(File::open(part).map_err(|error| of_part(part, error))?),
        };
        file.seek(SeekFrom::Start(job.at))
            .and_then(|_| file.read_exact(&mut out))
            .map_err(|error| of_part(part, error))?;
        self.run(assignment, job, &mut out, true)
    }

    /// Errors of one row, counted through all matrices, in a type.
    pub(crate) fn error(
        &mut self,
        assignment: &Assignment<'_>,
        tensor: usize,
        row: usize,
        ty: TensorType,
    ) -> Result<Sums, QuantizeError> {
        let (columns, _, _) = columns_rows_matrices(&assignment.tensors[tensor].shape);
        let mut out = vec![0; ty.row_bytes(columns).unwrap_or(0)];
        self.row(assignment, (tensor, row), ty, &mut out, false)
    }

    /// Row by row; new bytes unless they are there.
    fn run(
        &mut self,
        assignment: &Assignment<'_>,
        job: &Job,
        out: &mut [u8],
        there: bool,
    ) -> Result<Sums, QuantizeError> {
        let tensor = &assignment.tensors[job.tensor];
        let (_, rows, matrices) = columns_rows_matrices(&tensor.shape);
        if tensor.from == tensor.to {
            let source = data(assignment, tensor);
            let row = source.len() / (rows * matrices);
            let bytes = &source[job.rows.start * row..job.rows.end * row];
            out[..bytes.len()].copy_from_slice(bytes);
            return Ok(Sums::default());
        }
        let row_bytes = (tensor.bytes_to as usize) / (rows * matrices);
        let mut sums = Sums::default();
        for (row, out) in job.rows.clone().zip(out.chunks_exact_mut(row_bytes)) {
            sums.add(self.row(assignment, (job.tensor, row), tensor.to, out, there)?);
        }
        Ok(sums)
    }

    /// Old weights, new bytes, new weights, errors.
    fn row(
        &mut self,
        assignment: &Assignment<'_>,
        (tensor, row): (usize, usize),
        to: TensorType,
        out: &mut [u8],
        there: bool,
    ) -> Result<Sums, QuantizeError> {
        let assigned = &assignment.tensors[tensor];
        let (columns, rows, matrices) = columns_rows_matrices(&assigned.shape);
        let source = data(assignment, assigned);
        let row_bytes = source.len() / (rows * matrices);
        self.numbers.resize(columns, 0.0);
        self.back.resize(columns, 0.0);
        latent_quant::decode(
            assigned.from,
            &source[row * row_bytes..(row + 1) * row_bytes],
            &mut self.numbers,
        )?;
        let weighted = self.importance(assignment, tensor, row / rows)?;
        let importance = weighted.then_some(&self.importance.1[..]);
        if !there {
            quantize_row(to, &self.numbers, importance, out)?;
        }
        latent_quant::decode(to, out, &mut self.back)?;
        let sums = errors(&self.numbers, &self.back, importance);
        if sums.errors.is_finite() && sums.squares.is_finite() {
            return Ok(sums);
        }
        let to = self.numbers.iter().all(|v| v.is_finite()).then_some(to);
        Err(QuantizeError::NotFinite { tensor: assigned.name.clone(), row, to })
    }

    /// Whether there are importances for a matrix; they are kept until the next one.
    fn importance(
        &mut self,
        assignment: &Assignment<'_>,
        tensor: usize,
        matrix: usize,
    ) -> Result<bool, QuantizeError> {
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

fn data<'a>(assignment: &Assignment<'a>, tensor: &AssignedTensor) -> &'a [u8] {
    assignment.checkpoint.tensor(&tensor.name).map_or(&[][..], |tensor| tensor.data)
}

fn of_part(part: &std::path::Path, error: std::io::Error) -> QuantizeError {
    latent_formats::OutputError::Io { path: part.to_owned(), error }.into()
}

impl Sums {
    pub(crate) fn add(&mut self, other: Sums) {
        self.errors += other.errors;
        self.squares += other.squares;
    }
}

/// Sums of one row, eight lanes of f64 side by side.
fn errors(old: &[f32], new: &[f32], weights: Option<&[f32]>) -> Sums {
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
    Sums { errors: errors.iter().sum(), squares: squares.iter().sum() }
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
