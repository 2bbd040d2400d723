//! A trial of cooperative matrices on a device. They are experimental in wgpu, and some drivers do
//! not guarantee the subgroup size that they usually choose. Each kind is therefore tried once,
//! before the first product.

use crate::buffers::Buffer;
use crate::commands::{Commands, ShaderBinding};
use crate::coop_matrix::CoopMatrix;
use crate::device::Device;
use crate::error::GpuError;
use crate::variants::KernelVariants;
use latent_graph::passes::Precision;
use std::sync::{Arc, PoisonError};

const TRIAL: &str = include_str!("matrix_trial/trial.wgsl");

/// The variants of products in a precision: those that the device was opened with, or those that
/// follow from the adapter, without cooperative matrices that fail the trial.
pub(crate) fn variants(device: &Arc<Device>, precision: Precision) -> KernelVariants {
    device.variants.unwrap_or_else(|| tried(device, KernelVariants::of(&device.description, precision)))
}

fn tried(device: &Arc<Device>, variants: KernelVariants) -> KernelVariants {
    KernelVariants { matrices: variants.matrices.filter(|matrix| multiplies(device, *matrix)), ..variants }
}

/// Whether the device multiplies these matrices correctly.
pub(crate) fn multiplies(device: &Arc<Device>, matrix: CoopMatrix) -> bool {
    // A hollow device cannot run the trial.
    if device.hollow {
        return true;
    }
    // Not locked during the trial: in a page, WebAssembly is suspended while the trial waits, and
    // another call that needs the lock would deadlock.
    let tried = || device.tried_matrices.lock().unwrap_or_else(PoisonError::into_inner);
    let known = tried().get(&matrix).copied();
    known.unwrap_or_else(|| {
        // A failed trial counts as a wrong product: other kernels multiply without matrices.
        let right = products(device, matrix).is_ok_and(|found| found == expected(matrix));
        tried().insert(matrix, right);
        right
    })
}

fn trial(matrix: CoopMatrix) -> String {
    let constants =
        format!("const SUBGROUP: u32 = {}u;\nalias Element = {};\n", matrix.subgroup, matrix.element());
    [matrix.directives(), &matrix.types(), &constants, TRIAL].concat()
}

/// The products of the trial's subgroups, computed on the device.
fn products(device: &Arc<Device>, matrix: CoopMatrix) -> Result<Vec<f32>, GpuError> {
    let pipeline = device.compiled("trial_of_matrices", trial(matrix))?;
    let count = CoopMatrix::SUBGROUPS * matrix.side * matrix.side;
    let bytes = 4 * count as u64;
    let results = Buffer::new(device, "a trial", bytes)?;
    let mut commands = Commands::new(device);
    commands.call(&pipeline, [ShaderBinding::from(&results)], &[count as u32], [1, 1, 1]);
    commands.submit(&[])?;
    let found = results.read("a trial", 0..bytes)?;
    Ok(found.as_chunks().0.iter().map(|float| f32::from_le_bytes(*float)).collect())
}

/// The products of the trial's subgroups, computed on the host.
fn expected(matrix: CoopMatrix) -> Vec<f32> {
    let side = matrix.side;
    let mut all = Vec::with_capacity(CoopMatrix::SUBGROUPS * side * side);
    for subgroup in 0..CoopMatrix::SUBGROUPS {
        // All values are integers far below 2^11, which f16 holds exactly.
        let a = |i: usize, k: usize| ((3 * i + 5 * k + subgroup) % 7) as f32 - 3.0;
        // Transposed: a row of b is a column of the factor.
        let b = |j: usize, k: usize| ((2 * j + 3 * k + 5 * subgroup) % 11) as f32 - 5.0;
        for (i, j) in (0..side).flat_map(|i| (0..side).map(move |j| (i, j))) {
            let product: f32 = (0..side).map(|k| a(i, k) * b(j, k)).sum();
            all.push(i as f32 - 2.0 * j as f32 + 2.0 * product);
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::matmul::tests::translate::translate;

    fn kinds() -> impl Iterator<Item = CoopMatrix> {
        let squares = [(8, true), (8, false), (16, true), (16, false)];
        squares
            .into_iter()
            .flat_map(|(side, f16)| [8, 32, 64].map(|subgroup| CoopMatrix { side, f16, subgroup }))
    }

    #[test]
    fn the_trial_of_every_kind_translates() {
        kinds().for_each(|matrix| drop(translate("trial_of_matrices", &trial(matrix))));
    }

    /// The device's own kinds are correct. With a subgroup size that it does not have, results are
    /// wrong, and the kind is not used.
    #[test]
    fn matrices_are_tried_before_they_are_used() {
        let Some(device) = crate::testing::device() else { return };
        let with = |matrix| KernelVariants { matrices: Some(matrix), ..KernelVariants::default() };
        let offered = device.description.coop_matrices.clone();
        if offered.is_empty() {
            println!("SKIPPED: no cooperative matrices on {}", device.name());
        }
        for matrix in offered {
            assert_eq!(products(&device, matrix).unwrap(), expected(matrix), "{matrix:?}");
            assert_eq!(tried(&device, with(matrix)), with(matrix));
            for subgroup in [matrix.subgroup / 2, matrix.subgroup * 2] {
                let other = CoopMatrix { subgroup, ..matrix };
                for _ in 0..2 {
                    assert_eq!(tried(&device, with(other)), KernelVariants::default(), "{other:?}");
                }
            }
        }
        assert_eq!(tried(&device, KernelVariants::default()), KernelVariants::default());
    }

    /// A device without cooperative matrices refuses the text. That is a failed trial, not an
    /// error.
    #[test]
    fn unsupported_matrices_are_not_used() {
        let Some(device) = crate::testing::device() else { return };
        if device.description.coop_matrices.is_empty() {
            kinds().for_each(|matrix| assert!(!multiplies(&device, matrix), "{matrix:?}"));
        }
    }
}
