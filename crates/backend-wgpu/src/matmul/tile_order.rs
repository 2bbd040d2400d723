//! Tiles in workgroup memory whose rows are read and written several inputs at a time, in an order that keeps threads out of one another's banks.

use super::tiles::PER_THREAD;
use super::wgsl::constants;
use std::fmt::Write;

/// Words of 4 bytes that 32 banks deliver at a time.
const BANKS: usize = 32;

/// How the rows of two tiles, of inputs and of weights, lie in memory.
///
/// Neighbouring threads read the same unit of neighbouring rows. Rows begin where the banks begin, or halfway, so that these units would all lie in the same banks: units trade
/// places, otherwise in each of the rows that begin alike.
#[derive(Clone, Copy)]
pub(super) struct TileOrder {
    /// Units of a row, which are read and written at once.
    pub(super) units: usize,
    /// Words of 4 bytes of a row.
    pub(super) words: usize,
    /// Rows between those of a thread, and outputs.
    pub(super) steps: [usize; 2],
}

impl TileOrder {
    /// log2 of how many rows fill the banks.
    fn shift(self) -> usize {
        (BANKS / self.words).max(1).trailing_zeros() as usize
    }

    /// Constants and the function `unit_at(row, unit)`.
    pub(super) fn head(self, source: &mut String) {
        constants(source, [("ROW_UNITS", self.units), ("ALIKE_ROWS", self.shift())]);
        source.push_str(
            "
fn unit_at(row: u32, unit: u32) -> u32 {
  return row * ROW_UNITS + (unit ^ ((row >> ALIKE_ROWS) % ROW_UNITS));
}
",
        );
    }

    /// Reads a unit of each of the thread's rows (`x_0` to `x_3`) and outputs (`w_0` to `w_3`), whose tiles begin with these rows.
    pub(super) fn read(self, source: &mut String, unit: &str, firsts: [&str; 2], convert: &str) {
        for (i, (tile, place)) in [("w", "column"), ("x", "line")].into_iter().enumerate() {
            let (first, step) = (firsts[1 - i], self.steps[1 - i]);
            // units trade places alike in all rows of a thread: their distances are constants, which loads can have in them
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

    /// A loop over a tile of floats: adds the products of a thread's rows and outputs to `sum_0` to `sum_3`, input by input.
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

    /// Where WGSL's function puts a unit.
    fn unit_at((units, words): (usize, usize), row: usize, unit: usize) -> usize {
        let shift = TileOrder { units, words, steps: [4, 16] }.shift();
        row * units + (unit ^ ((row >> shift) % units))
    }

    #[test]
    fn units_of_neighbouring_rows_are_in_different_banks() {
        // 32 and 16 inputs in f32, 32 in f16, 32 in int8: units and words of a row
        for (units, words) in [(8, 32), (4, 16), (8, 16), (4, 8)] {
            let (tile, each) = ((units, words), words / units);
            let mut places: Vec<usize> =
                (0..64 * units).map(|i| unit_at(tile, i / units, i % units)).collect();
            places.sort_unstable();
            assert!(places.iter().enumerate().all(|(i, place)| i == *place), "a place for each");
            // as many threads as the banks serve at once
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
