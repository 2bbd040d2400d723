//! Partitions: how several ranks share one model.
//!
//! Ranks form a grid. Each row of the grid runs consecutive layers (pipeline). The ranks of a row
//! share these layers by heads and columns (tensor parallel), by whole routed experts (expert
//! parallel), or both. Rank 0 has the embedding, the final norm and `lm_head`, because it samples
//! the tokens.

use crate::config::{ModelConfig, RankPart, RankShare, WireType};
use std::fmt;
use std::ops::Range;
use std::str::FromStr;

/// How ranks share a model. Displayed and parsed as `pipeline=2,tensor=2`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Partition {
    stretches: Stretches,
    /// Ranks that share heads and columns; 1 if each has all.
    tensor: usize,
    /// Ranks that share routed experts; 1 if each has all.
    experts: usize,
}

/// How the layers are divided into stretches of consecutive layers.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Stretches {
    /// This number of stretches, as equal as possible.
    Even(usize),
    /// Stretches of these lengths.
    Counts(Vec<usize>),
}

/// A partition that is malformed, or does not fit the model.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PartitionError {
    #[error(
        "partition {text:?}: {problem}; a partition is a list like pipeline=2,tensor=2 of pipeline=N or layers=A:B:…, tensor=N, experts=N"
    )]
    Syntax { text: String, problem: String },
    /// Different numbers of ranks for heads and for experts. One group of ranks shares both, or
    /// only one of them.
    #[error(
        "tensor={tensor} and experts={experts} differ, but the same ranks share both: use equal numbers, or omit one"
    )]
    Groups { tensor: usize, experts: usize },
    #[error("partition {partition} needs {needs} ranks, but the job has {ranks}: start mpirun -n {needs}")]
    Ranks { partition: String, needs: usize, ranks: usize },
    #[error("cannot split {layers} layers into {stretches} stretches: each needs at least one layer")]
    Layers { stretches: usize, layers: usize },
    #[error("layers={given} are {sum} layers, but the model has {layers}")]
    Counts { given: String, sum: usize, layers: usize },
    /// Fewer units (heads, columns, experts) than ranks.
    #[error("cannot split {of} {what} across {members} ranks; use fewer ranks")]
    TooFew { what: &'static str, of: usize, members: usize },
    #[error("experts={0} needs a model with experts: use tensor={0} or pipeline={0}")]
    NoExperts(usize),
    /// Experts with gate and up in one tensor. A cut by columns would need two ranges of it.
    #[error(
        "the experts of this model store gate and up in one tensor, which cannot be split by columns: use tensor={0},experts={0}"
    )]
    FusedExperts(usize),
    /// A cut inside a block of elements with one scale.
    #[error(
        "tensor {tensor} would be split at {at}, inside a block of {block} elements with one scale: use fewer ranks for tensor, or split by layers or experts"
    )]
    ScaleBlock {
        tensor: String,
        /// Row or column of the cut.
        at: usize,
        /// Rows or columns of a block.
        block: usize,
    },
    #[error("{0} is not supported for a model shared by several ranks; {1}")]
    NotBuilt(&'static str, String),
}

impl FromStr for Partition {
    type Err = PartitionError;

    fn from_str(text: &str) -> Result<Partition, PartitionError> {
        let wrong = |problem: String| PartitionError::Syntax { text: text.to_owned(), problem };
        let number = |value: &str| {
            value
                .parse()
                .ok()
                .filter(|n| (1..=MAX_RANKS).contains(n))
                .ok_or_else(|| wrong(format!("{value:?} is not a number from 1 to {MAX_RANKS}")))
        };
        let (mut stretches, mut tensor, mut experts) = (None, None, None);
        for item in text.split(',') {
            let Some((key, value)) = item.trim().split_once('=') else {
                return Err(wrong(format!("{item:?} is not of the form key=number")));
            };
            // `pipeline` and `layers` set the same field, so giving both is an error too.
            let twice = match key {
                "pipeline" => stretches.replace(Stretches::Even(number(value)?)).is_some(),
                "layers" => {
                    let counts = value.split(':').map(number).collect::<Result<_, _>>()?;
                    stretches.replace(Stretches::Counts(counts)).is_some()
                }
                "tensor" => tensor.replace(number(value)?).is_some(),
                "experts" => experts.replace(number(value)?).is_some(),
                _ => return Err(wrong(format!("unknown key {key:?}"))),
            };
            if twice {
                return Err(wrong(format!("{key} is given twice")));
            }
        }
        let stretches = stretches.unwrap_or(Stretches::Even(1));
        let partition = Partition { stretches, tensor: 1, experts: 1 };
        partition.shared_by(tensor.unwrap_or(1), experts.unwrap_or(1))
    }
}

/// Maximum number of ranks of a partition.
pub const MAX_RANKS: usize = 1024;

impl fmt::Display for Partition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.stretches {
            Stretches::Even(count) => write!(f, "pipeline={count}")?,
            Stretches::Counts(counts) => write!(f, "layers={}", joined(counts))?,
        }
        for (key, members) in [("tensor", self.tensor), ("experts", self.experts)] {
            if members > 1 {
                write!(f, ",{key}={members}")?;
            }
        }
        Ok(())
    }
}

fn joined(counts: &[usize]) -> String {
    counts.iter().map(usize::to_string).collect::<Vec<_>>().join(":")
}

impl Partition {
    /// Equal stretches of layers, one per rank; at least one rank.
    pub fn pipeline(ranks: usize) -> Partition {
        Partition { stretches: Stretches::Even(ranks.max(1)), tensor: 1, experts: 1 }
    }

    /// Stretches of layers of these lengths, one per rank.
    pub fn of_layers(counts: Vec<usize>) -> Partition {
        Partition { stretches: Stretches::Counts(counts), tensor: 1, experts: 1 }
    }

    /// The same stretches, each shared among ranks: heads and columns by `tensor` ranks, routed
    /// experts by `experts` ranks.
    ///
    /// # Errors
    /// [`PartitionError::Groups`] if both exceed one and differ.
    /// [`PartitionError::Syntax`] for more than [`MAX_RANKS`] ranks.
    pub fn shared_by(self, tensor: usize, experts: usize) -> Result<Partition, PartitionError> {
        if tensor > 1 && experts > 1 && tensor != experts {
            return Err(PartitionError::Groups { tensor, experts });
        }
        let partition = Partition { tensor: tensor.max(1), experts: experts.max(1), ..self };
        let ranks = partition.ranks();
        if ranks > MAX_RANKS {
            let problem = format!("it needs {ranks} ranks, more than the maximum of {MAX_RANKS}");
            return Err(PartitionError::Syntax { text: partition.to_string(), problem });
        }
        Ok(partition)
    }

    pub fn ranks(&self) -> usize {
        // The factors come from the user. `shared_by` compares the product with `MAX_RANKS`.
        self.stretches().saturating_mul(self.members())
    }

    /// Stretches of layers.
    pub fn stretches(&self) -> usize {
        match &self.stretches {
            Stretches::Even(count) => *count,
            Stretches::Counts(counts) => counts.len(),
        }
    }

    /// Ranks that share a stretch of layers.
    pub fn members(&self) -> usize {
        // They are equal, or one of them is 1: `shared_by` refuses other pairs.
        self.tensor.max(self.experts)
    }

    /// Ranks that share heads and columns.
    pub fn tensor(&self) -> usize {
        self.tensor
    }

    /// Ranks that share routed experts.
    pub fn experts(&self) -> usize {
        self.experts
    }

    /// Whether results are sums over ranks. Their order differs from one host's, so their bits may
    /// differ.
    pub fn adds_up(&self) -> bool {
        self.members() > 1
    }

    /// The part of the model that rank `rank` of `ranks` runs.
    ///
    /// # Errors
    /// A partition for another number of ranks, or one that does not fit this model.
    pub fn part(&self, config: &ModelConfig, rank: usize, ranks: usize) -> Result<RankPart, PartitionError> {
        // Checked before anything is computed from `rank`.
        let needs = self.ranks();
        if needs != ranks || rank >= ranks {
            return Err(PartitionError::Ranks { partition: self.to_string(), needs, ranks });
        }
        // Members of a group have consecutive ranks; `RankPart::members` is a range.
        let (stretch, member) = (rank / self.members(), rank % self.members());
        let last = self.stretches() - 1;
        let at = |stretch: usize, member: usize| stretch * self.members() + member;
        let shares = self.shares(config, member)?;
        // After the all-reduce, all members have the same rows. Each sends them to the member of
        // the next stretch with its own index, so that no rank must broadcast. Only member 0 of the
        // last stretch returns rows to rank 0, which computes the logits.
        let back = (stretch == last && last > 0 && member == 0).then_some(0);
        Ok(RankPart {
            rank,
            ranks,
            layers: self.layers(config.layers, stretch)?,
            members: at(stretch, 0)..at(stretch + 1, 0),
            receives_from: (stretch > 0).then(|| at(stretch - 1, member)),
            sends_to: if stretch < last { Some(at(stretch + 1, member)) } else { back },
            returned_by: (rank == 0 && last > 0).then(|| at(last, 0)),
            ..shares
        })
    }

    fn layers(&self, layers: usize, stretch: usize) -> Result<Range<usize>, PartitionError> {
        let stretches = self.stretches();
        match &self.stretches {
            Stretches::Even(count) => {
                // As even as possible; every stretch needs a layer, because each rank must have a
                // plan.
                let share = RankShare::nth(stretch, *count, layers, 1);
                share.map(|share| share.range()).ok_or(PartitionError::Layers { stretches, layers })
            }
            Stretches::Counts(counts) => {
                // Saturating: counts come from the command line.
                let sum = counts.iter().fold(0, |sum: usize, count| sum.saturating_add(*count));
                if sum != layers {
                    return Err(PartitionError::Counts { given: joined(counts), sum, layers });
                }
                let from = counts[..stretch].iter().sum();
                Ok(from..from + counts[stretch])
            }
        }
    }

    /// The shares of a member of a group. The other fields are those of a single rank.
    fn shares(&self, config: &ModelConfig, member: usize) -> Result<RankPart, PartitionError> {
        let attention = &config.attention;
        let moe = config.moe;
        let widths = moe.map_or((0, 0), |moe| (moe.shared_intermediate, moe.intermediate));
        let experts = moe.map_or(0, |moe| moe.experts);
        let mut part = RankPart {
            layers: 0..config.layers,
            heads: RankShare::all(attention.heads),
            intermediate: RankShare::all(config.intermediate_size),
            shared_intermediate: RankShare::all(widths.0),
            moe_intermediate: RankShare::all(widths.1),
            experts: RankShare::all(experts),
            // The caller overwrites rank, members and links.
            ..RankPart::bare(0, 1, 0..1, WireType::default())
        };
        if self.experts > 1 {
            if moe.is_none() {
                return Err(PartitionError::NoExperts(self.experts));
            }
            part.experts = share("experts", member, self.experts, experts, &[1])?;
        }
        if self.tensor > 1 {
            // Heads are the unit of W_UQ, `kv_b` and W_O; columns would cut a head's softmax.
            part.heads = share("heads", member, self.tensor, attention.heads, &head_units(config))?;
            part.intermediate = columns(member, self.tensor, config.intermediate_size)?;
            part.shared_intermediate = columns(member, self.tensor, widths.0)?;
            // With `experts` too, every rank has whole experts, and their columns are not divided.
            if self.experts == 1 {
                if moe.is_some_and(|moe| moe.fused_gate_up) {
                    return Err(PartitionError::FusedExperts(self.tensor));
                }
                part.moe_intermediate = columns(member, self.tensor, widths.1)?;
            }
        }
        Ok(part)
    }
}

/// The share of a member, in the first (coarsest) of these units that gives every member something.
fn share(
    what: &'static str,
    member: usize,
    members: usize,
    of: usize,
    units: &[usize],
) -> Result<RankShare, PartitionError> {
    // The model has no such block, such as shared experts.
    if of == 0 {
        return Ok(RankShare::all(0));
    }
    let found = units.iter().find_map(|unit| RankShare::nth(member, members, of, *unit));
    found.ok_or(PartitionError::TooFew { what, of, members })
}

/// Units of columns, coarsest first.
// Blocks of weight formats should stay whole if the width allows. K-quants have blocks of 256
// elements, FP8 of 128, and others of 32.
const COLUMN_UNITS: [usize; 6] = [256, 128, 64, 32, 8, 1];

fn columns(member: usize, members: usize, width: usize) -> Result<RankShare, PartitionError> {
    share("feed-forward columns", member, members, width, &COLUMN_UNITS)
}

/// Units of heads, coarsest first. A share of whole units ends on a quantization block of the
/// output projection's input (columns), and on an FP8 block of the query and `kv_b` projections
/// (rows).
fn head_units(config: &ModelConfig) -> Vec<usize> {
    let a = &config.attention;
    let kinds = [(256, 128), (128, 128), (256, 1), (128, 1), (64, 1), (32, 1), (8, 1), (1, 1)];
    let ends = |heads: usize, columns: usize, rows: usize| {
        let whole = |width: usize, block: usize| (heads * width).is_multiple_of(block);
        whole(a.v, columns) && whole(a.nope + a.rope, rows) && whole(a.nope + a.v, rows)
    };
    let units =
        // The smallest number of heads that ends on both kinds of blocks.
        kinds.iter().filter_map(|(columns, rows)| (1..=a.heads).find(|heads| ends(*heads, *columns, *rows)));
    units.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::passes::snapshots::config;

    fn parse(text: &str) -> Result<Partition, PartitionError> {
        text.parse()
    }

    #[test]
    fn odd_numbers_are_refused_without_a_panic() {
        const ODD: [usize; 4] = [0, 1, 2, usize::MAX];
        let config = config();
        let mut partitions =
            vec![Partition::of_layers(Vec::new()), Partition::of_layers(vec![usize::MAX; 2])];
        for stretches in ODD {
            partitions.push(Partition::pipeline(stretches));
            partitions.push(Partition::of_layers(vec![stretches]));
            for members in ODD {
                partitions.extend(Partition::pipeline(stretches).shared_by(members, members));
                partitions.extend(Partition::pipeline(stretches).shared_by(members, 1));
            }
        }
        for partition in partitions {
            for rank in ODD {
                for ranks in ODD.into_iter().chain([partition.ranks()]) {
                    let part = partition.part(&config, rank, ranks);
                    assert!(
                        part.is_err() || (rank < ranks && ranks == partition.ranks()),
                        "{partition}: {rank} of {ranks}"
                    );
                }
            }
        }
    }

    #[test]
    fn partitions_are_read_as_they_are_shown() {
        for text in [
            "pipeline=1",
            "pipeline=3",
            "layers=12:15",
            "pipeline=1,tensor=2",
            "pipeline=2,experts=4",
            "pipeline=2,tensor=2,experts=2",
        ] {
            assert_eq!(parse(text).unwrap().to_string(), text);
        }
        assert_eq!(parse("experts=3").unwrap().to_string(), "pipeline=1,experts=3");
        assert_eq!(parse("pipeline=2,tensor=2").unwrap().ranks(), 4);
        for (text, part) in [
            ("", "key=number"),
            ("pipeline", "key=number"),
            ("pipeline=0", "not a number from 1"),
            ("pipeline=2,layers=1:2", "given twice"),
            ("tensors=2", "unknown key \"tensors\""),
            ("pipeline=1024,tensor=1024", "more than the maximum of 1024"),
            ("tensor=2,experts=3", "the same ranks share both"),
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn parts_together_are_the_model() {
        let config = config();
        for text in
            ["pipeline=2", "tensor=2", "tensor=3", "experts=4", "pipeline=2,tensor=2,experts=2", "layers=1:1"]
        {
            let partition = parse(text).unwrap();
            let ranks = partition.ranks();
            let parts: Vec<RankPart> =
                (0..ranks).map(|rank| partition.part(&config, rank, ranks).unwrap()).collect();
            for layer in 0..config.layers {
                let of: Vec<&RankPart> = parts.iter().filter(|part| part.layers.contains(&layer)).collect();
                assert_eq!(
                    of.iter().map(|part| part.rank).collect::<Vec<_>>(),
                    of[0].members.clone().collect::<Vec<_>>()
                );
                let shared = |share: fn(&RankPart) -> RankShare| {
                    let sum: usize = of.iter().map(|part| share(part).len).sum();
                    sum == share(of[0]).of || of.iter().all(|part| share(part).is_all())
                };
                assert!(
                    shared(|part| part.heads)
                        && shared(|part| part.experts)
                        && shared(|part| part.moe_intermediate)
                );
            }
            // Every message that one rank sends is received by another.
            for part in &parts {
                if let Some(to) = part.sends_to {
                    let back = parts[to].receives_from == Some(part.rank)
                        || parts[to].returned_by == Some(part.rank);
                    assert!(back, "{text}: {part:?}");
                }
            }
            for part in parts {
                assert_eq!(config.of_part(part).whole(), config);
            }
        }
    }

    #[test]
    fn impossible_partitions_are_errors_with_a_reason() {
        let mut config = config();
        let error = |config: &ModelConfig, text: &str, ranks| {
            parse(text).unwrap().part(config, 0, ranks).unwrap_err().to_string()
        };
        for (text, ranks, part) in [
            ("pipeline=2", 3, "mpirun -n 2"),
            ("pipeline=3", 3, "each needs at least one layer"),
            ("layers=2:2", 2, "are 4 layers, but the model has 2"),
            ("tensor=5", 5, "cannot split 4 heads across 5 ranks"),
            ("experts=9", 9, "cannot split 8 experts across 9 ranks"),
        ] {
            let error = error(&config, text, ranks);
            assert!(error.contains(part), "{error}");
        }
        config.moe.as_mut().unwrap().fused_gate_up = true;
        assert!(error(&config, "tensor=2", 2).contains("tensor=2,experts=2"));
        assert!(parse("tensor=2,experts=2").unwrap().part(&config, 1, 2).is_ok());
        config.moe = None;
        assert!(error(&config, "experts=2", 2).contains("needs a model with experts"));
    }

    #[test]
    fn columns_end_between_blocks() {
        let mut config = config();
        config.intermediate_size = 1536;
        config.attention.v = 128;
        config.attention.nope = 128;
        config.attention.rope = 64;
        let part = parse("tensor=2").unwrap().part(&config, 1, 2).unwrap();
        assert_eq!((part.intermediate.from, part.heads.from), (768, 2));
        let part = parse("tensor=4").unwrap().part(&config, 1, 4).unwrap();
        assert_eq!((part.intermediate.from, part.heads.from), (256, 1));
    }
}
