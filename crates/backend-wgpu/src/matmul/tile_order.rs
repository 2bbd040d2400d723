//! The order of elements of tiles in workgroup memory. Threads access several inputs of a row at
//! once, without bank conflicts.

use super::tiles::PER_THREAD;
use super::wgsl::constants;
use std::fmt::Write;

/// Number of 4-byte memory banks.
const BANKS: usize = 32;

/// The layout of the rows of two tiles, of inputs and of weights.
#[derive(Clone, Copy)]
pub(super) struct TileOrder {
    /// Units per row. A unit is read and written at once.
    pub(super) units: usize,
    /// 4-byte words per row.
    pub(super) words: usize,
    /// Distances between the rows of a thread, and between its outputs.
    pub(super) steps: [usize; 2],
}

impl TileOrder {
    /// log2 of the number of rows that fill the banks.
    fn shift(self) -> usize {
        (BANKS / self.words).max(1).trailing_zeros() as usize
    }

    /// Appends constants and the function `unit_at(row, unit)`.
    pub(super) fn head(self, source: &mut String) {
        // Neighbouring threads read the same unit of neighbouring rows. The length of a row divides
        // or equals the number of banks, so these units would be in the same banks. Therefore the
        // units of a row are permuted (XOR with a number that depends on the row), differently in
        // each of the rows that begin in the same bank. Padding would take more memory.
        constants(source, [("ROW_UNITS", self.units), ("ALIKE_ROWS", self.shift())]);
        source.push_str(
            "
fn unit_at(row: u32, unit: u32) -> u32 {
  return row * ROW_UNITS + (unit ^ ((row >> ALIKE_ROWS) % ROW_UNITS));
}
",
        );
    }

    /// Appends the reads of a unit of each of the thread's rows (`x_0` to `x_3`) and outputs (`w_0`
    /// to `w_3`). `firsts` are the first rows of the tiles in memory.
    pub(super) fn read(self, source: &mut String, unit: &str, firsts: [&str; 2], convert: &str) {
        for (i, (tile, place)) in [("w", "column"), ("x", "line")].into_iter().enumerate() {
            let (first, step) = (firsts[1 - i], self.steps[1 - i]);
            // If the permutation is the same in all rows of a thread, their distances are
            // constants, which the compiler can encode in the load instructions.
            let alike = step.is_multiple_of(self.units << self.shift());
            let _ = writeln!(source, "      let {tile}_at = unit_at({first}{place}, {unit});");
            for i in 0..PER_THREAD {
                let at = match alike {
                    true => format!("{tile}_at + {}u", i * step * self.units),
                    false => format!("unit_at({first}{place} + {}u, {unit})", i * step),
                };
                let _ = writeln!(source, "      let {tile}_{i} = {convert}({tile}_tile[{at}]);");
            }
        }
    }

    /// Appends the loop over a tile of floats, which adds the products of a thread's rows and
    /// outputs to `sum_0` to `sum_3`, input by input.
    pub(super) fn multiply(self, source: &mut String, firsts: [&str; 2]) {
        source.push_str("    for (var unit = 0u; unit < ROW_UNITS; unit++) {\n");
        self.read(source, "unit", firsts, "vec4<f32>");
        for part in ["x", "y", "z", "w"] {
            let _ = writeln!(
                source,
                "      let w_{part} = vec4<f32>(w_0.{part}, w_1.{part}, w_2.{part}, w_3.{part});"
            );
            for row in 0..PER_THREAD {
                let _ = writeln!(
                    source,
                    "      sum_{row} = fma(vec4<f32>(x_{row}.{part}), w_{part}, sum_{row});"
                );
            }
        }
        source.push_str("    }\n");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The WGSL function `unit_at`.
    fn unit_at((units, words): (usize, usize), row: usize, unit: usize) -> usize {
        let shift = TileOrder { units, words, steps: [4, 16] }.shift();
        row * units + (unit ^ ((row >> shift) % units))
    }

    #[test]
    fn units_of_neighbouring_rows_are_in_different_banks() {
        // Units and words per row of 32 and 16 inputs in f32, 32 in f16, and 32 in int8.
        for (units, words) in [(8, 32), (4, 16), (8, 16), (4, 8)] {
            let (tile, each) = ((units, words), words / units);
            let mut places: Vec<usize> =
                (0..64 * units).map(|i| unit_at(tile, i / units, i % units)).collect();
            places.sort_unstable();
            assert!(places.iter().enumerate().all(|(i, place)| i == *place), "a place for each");
            // The number of threads that the banks serve at once.
            let threads = BANKS / each;
            for (first, unit) in
                (0..64).step_by(threads).flat_map(|row| (0..units).map(move |unit| (row, unit)))
            {
                let mut banks = [0; BANKS];
                for row in first..first + threads {
                    (0..each).for_each(|word| banks[(unit_at(tile, row, unit) * each + word) % BANKS] += 1);
                }
                assert!(banks.iter().all(|uses| *uses == 1), "{tile:?} {first} {unit}: {banks:?}");
            }
        }
    }
}
