//! The text of a GEMV shader: the loop over inputs, and the reduction of the lanes' sums.

use super::items::InputAccess;
use super::tiles::GemvTile;
use super::wgsl::{ENTRY, constants, section};
use std::fmt::Write;

const GEMV: &str = include_str!("wgsl/gemv.wgsl");

#[derive(Clone, Copy)]
pub(super) struct GemvShader {
    pub(super) rows: usize,
    pub(super) tile: GemvTile,
    pub(super) by_ids: bool,
    /// Minimum subgroup size, if lanes add their sums within subgroups.
    pub(super) subgroup: Option<usize>,
    /// Number of iterations of each lane, if it is a constant of the shader.
    pub(super) turns: Option<usize>,
    pub(super) inputs: InputAccess,
}

impl GemvShader {
    /// Appends the kernel.
    pub(super) fn write(self, source: &mut String) {
        let GemvTile { threads, lanes, outputs } = self.tile;
        let sizes = [("THREADS", threads), ("LANES", lanes), ("OUTPUTS", outputs), ("ROWS", self.rows)];
        constants(source, sizes);
        constants(source, self.turns.map(|turns| ("TURNS", turns)));
        match self.subgroup {
            None => source.push_str(section(GEMV, "sums")),
            Some(smallest) => {
                constants(source, [("SUMS", self.tile.subgroup_sums(smallest))]);
                source.push_str(section(GEMV, "subgroup_sums"));
            }
        }
        let integers = self.inputs.is_integer();
        if !integers {
            source.push_str(section(GEMV, "floats"));
        }
        source.push_str(if self.subgroup.is_some() { section(GEMV, "subgroup_entry") } else { ENTRY });
        source.push_str(section(GEMV, if self.by_ids { "by_ids" } else { "per_slot" }));
        // Each row and output of a thread has its own variable: a driver may place an array that is
        // indexed in a loop in memory instead of registers. Beyond the last row or output, a thread
        // computes the last one again and does not store it, so that loads need no condition.
        for r in 0..self.rows {
            let _ = writeln!(source, "  let row_{r} = input_row(min(batch + {r}u, p.rows - 1u), slot);");
        }
        for o in 0..outputs {
            let _ = writeln!(source, "  let output_{o} = min(first + {o}u, p.outputs - 1u);");
        }
        if integers {
            self.integers(source)
        } else {
            self.floats(source)
        }
        self.reduce(source);
    }

    fn all(self) -> impl Iterator<Item = (usize, usize)> {
        (0..self.rows).flat_map(move |r| (0..self.tile.outputs).map(move |o| (r, o)))
    }

    /// Appends the beginning of the loop over the octets of a lane.
    fn turns(self, source: &mut String) {
        source.push_str(match self.turns {
            Some(_) => {
                "  for (var turn = 0u; turn < TURNS; turn++) {\n    let octet = lane + turn * LANES;\n"
            }
            None => "  for (var octet = lane; octet < octets; octet += LANES) {\n",
        });
    }

    fn floats(self, source: &mut String) {
        for (r, o) in self.all() {
            let _ = writeln!(source, "  var sum_{r}_{o} = vec4<f32>(0.0);");
        }
        self.turns(source);
        // The weights of all outputs are decoded first, and then used by every row.
        for o in 0..self.tile.outputs {
            let _ = writeln!(source, "    let w_{o} = weight_octet(matrix, output_{o}, octet);");
        }
        for r in 0..self.rows {
            let _ = writeln!(source, "    let x_{r} = input_octet(row_{r}, octet);");
            for o in 0..self.tile.outputs {
                let _ = writeln!(source, "    sum_{r}_{o} = add_octet(sum_{r}_{o}, x_{r}, w_{o});");
            }
        }
        source.push_str("  }\n");
        for (r, o) in self.all() {
            let sum = format!("sum_{r}_{o}");
            let _ = writeln!(source, "  var total_{r}_{o} = ({sum}.x + {sum}.y) + ({sum}.z + {sum}.w);");
        }
    }

    fn integers(self, source: &mut String) {
        for (r, o) in self.all() {
            let _ = writeln!(source, "  var total_{r}_{o} = 0.0;");
        }
        self.turns(source);
        for o in 0..self.tile.outputs {
            let _ = write!(
                source,
                "    let block_{o} = weight_block(matrix, output_{o}, octet);
    let w_{o} = block_quants(block_{o}, octet % BLOCK_OCTETS);
    let scale_{o} = octet_scale(block_{o}, octet % BLOCK_OCTETS);
"
            );
        }
        for r in 0..self.rows {
            let _ = writeln!(source, "    let x_{r} = input_int8(row_{r}, octet);");
            for o in 0..self.tile.outputs {
                let operands = format!("x_{r}.quants, x_{r}.scale, w_{o}, scale_{o}");
                let _ = writeln!(source, "    total_{r}_{o} = add_quants(total_{r}_{o}, {operands});");
            }
        }
        source.push_str("  }\n");
    }

    /// Appends the reduction. It adds the sums of an output's lanes pairwise, neighbours first.
    fn reduce(self, source: &mut String) {
        let outputs = self.tile.outputs;
        if let Some(smallest) = self.subgroup {
            self.exchange(source, smallest.min(self.tile.lanes));
            source.push_str(section(GEMV, "subgroup_reduce"));
            return;
        }
        for (r, o) in self.all() {
            let _ = writeln!(source, "  sums[{}u * THREADS + thread] = total_{r}_{o};", r * outputs + o);
        }
        source.push_str(section(GEMV, "reduce"));
    }

    /// Appends the reduction within subgroups, which have at least `smallest` lanes.
    fn exchange(self, source: &mut String, smallest: usize) {
        // Shuffles instead of `subgroupAdd`, whose order of sums depends on the device. All
        // distances are constants: on some devices, a shuffle by a variable distance is a loop.
        let mut left: Vec<String> = self.all().map(|(r, o)| format!("total_{r}_{o}")).collect();
        source.push_str(
            "  let lanes = min(LANES, size);\n  let lane_of = thread % lanes;\n  var place = 0u;\n",
        );
        let (mut distance, mut shared) = (1, 1);
        // While a lane has several sums, two lanes exchange halves of theirs and each keeps one
        // half, so that a round has half as many shuffles as the previous one. This is possible
        // over the distances that every subgroup has. The low bits of a lane's number tell which
        // sums it keeps.
        while distance < smallest && left.len() > 1 {
            let half = left.len() / 2;
            let high = format!("high_{distance}");
            let _ = writeln!(source, "  let {high} = (lane_of & {distance}u) != 0u;");
            let _ = writeln!(source, "  place += select(0u, {half}u, {high});");
            for i in 0..half {
                let (a, b) = (&left[i], &left[i + half]);
                let _ = writeln!(
                    source,
                    "  {a} = select({a}, {b}, {high}) + subgroupShuffleXor(select({b}, {a}, {high}), {distance}u);"
                );
            }
            left.truncate(half);
            distance *= 2;
            shared = distance;
        }
        // Now each lane has one sum, or distances are left that only larger subgroups have.
        while distance < self.tile.lanes {
            let add = |total: &String| format!("{total} += subgroupShuffleXor({total}, {distance}u);");
            let adds: Vec<String> = left.iter().map(add).collect();
            let adds = adds.join(" ");
            let _ = match distance < smallest {
                true => writeln!(source, "  {adds}"),
                false => writeln!(source, "  if {distance}u < lanes {{ {adds} }}"),
            };
            distance *= 2;
        }
        let _ = writeln!(source, "  if lane_of < {shared}u {{");
        for (i, total) in left.iter().enumerate() {
            let _ = writeln!(source, "    sums[(place + {i}u) * SUMS + thread / lanes] = {total};");
        }
        source.push_str("  }\n");
    }
}
