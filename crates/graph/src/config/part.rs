//! A rank's part of a model, as a config describes it.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

/// A consecutive share of units (heads, columns, experts, …) that ranks divide.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct RankShare {
    /// First unit of the share.
    pub from: usize,
    /// Number of units in the share.
    pub len: usize,
    /// Number of units on all ranks together.
    pub of: usize,
}

impl RankShare {
    pub fn all(of: usize) -> RankShare {
        RankShare { from: 0, len: of, of }
    }

    /// The share of member `index` when `members` divide `of` as evenly as units of `unit` allow.
    /// `None` if a member would get no unit, or `of` is not a multiple of `unit`.
    pub fn nth(index: usize, members: usize, of: usize, unit: usize) -> Option<RankShare> {
        // `checked_div`: a unit of 0 gives no share instead of a panic.
        let units = of.checked_div(unit).filter(|units| of.is_multiple_of(unit) && *units >= members)?;
        // Multiplied before divided, so that shares differ by one unit at most and cover
        // everything.
        let at = |index: usize| index * units / members * unit;
        Some(RankShare { from: at(index), len: at(index + 1) - at(index), of })
    }

    /// Whether this rank has all units.
    pub fn is_all(&self) -> bool {
        self.len == self.of
    }

    /// The units as a range.
    pub fn range(&self) -> Range<usize> {
        self.from..self.from + self.len
    }
}

/// The element type of values that cross between ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum WireType {
    /// Unrounded.
    #[default]
    F32,
    /// Rounded to half the bytes.
    Bf16,
}

impl WireType {
    /// Bytes of an element.
    pub fn bytes(self) -> usize {
        match self {
            WireType::F32 => 4,
            WireType::Bf16 => 2,
        }
    }
}

impl fmt::Display for WireType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            WireType::F32 => "f32",
            WireType::Bf16 => "bf16",
        })
    }
}

impl FromStr for WireType {
    type Err = String;

    fn from_str(word: &str) -> Result<WireType, String> {
        match word {
            "f32" => Ok(WireType::F32),
            "bf16" => Ok(WireType::Bf16),
            _ => Err("expected f32 or bf16".into()),
        }
    }
}

/// The part of a model that one rank runs.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct RankPart {
    pub rank: usize,
    pub ranks: usize,
    pub layers: Range<usize>,
    /// The ranks that share these layers, including this one. They add up their terms by
    /// all-reduce.
    pub members: Range<usize>,
    /// Query heads.
    pub heads: RankShare,
    /// Columns between the projections of dense feed-forward blocks.
    pub intermediate: RankShare,
    /// The same for shared experts.
    pub shared_intermediate: RankShare,
    /// The same for each routed expert.
    pub moe_intermediate: RankShare,
    /// Routed experts of each layer.
    pub experts: RankShare,
    /// The rank whose residual rows its first layer reads.
    pub receives_from: Option<usize>,
    /// The rank that reads the residual rows after its last layer.
    pub sends_to: Option<usize>,
    /// The rank with the last layer, if it is another one and this rank computes logits.
    pub returned_by: Option<usize>,
    /// Element type on the wire.
    pub wire: WireType,
}

impl RankPart {
    /// A rank among `members` without layers and shares. Code that partitions a model sets them;
    /// links between ranks do not read them.
    pub fn bare(rank: usize, ranks: usize, members: Range<usize>, wire: WireType) -> RankPart {
        let none = RankShare::all(0);
        RankPart {
            rank,
            ranks,
            layers: 0..0,
            members,
            heads: none,
            intermediate: none,
            shared_intermediate: none,
            moe_intermediate: none,
            experts: none,
            receives_from: None,
            sends_to: None,
            returned_by: None,
            wire,
        }
    }

    /// Whether this is rank 0, which has the embedding, the final norm and `lm_head`.
    pub fn speaks(&self) -> bool {
        self.rank == 0
    }
}

#[cfg(test)]
mod tests {
    use super::RankShare;

    #[test]
    fn shares_are_whole_units_and_together_everything() {
        for (members, of, unit) in [(3, 16, 1), (2, 1408, 128), (4, 4, 1), (3, 1536, 256)] {
            let shares: Vec<RankShare> =
                (0..members).map(|i| RankShare::nth(i, members, of, unit).unwrap()).collect();
            let ends: Vec<usize> = shares.iter().map(|share| share.range().end).collect();
            assert_eq!(ends.last(), Some(&of));
            assert!(
                shares.iter().all(|share| share.len > 0 && share.from.is_multiple_of(unit)),
                "{shares:?}"
            );
            assert!(shares.windows(2).all(|pair| pair[0].range().end == pair[1].from), "{shares:?}");
        }
        assert_eq!(RankShare::nth(0, 3, 512, 256), None);
        assert_eq!(RankShare::nth(0, 2, 500, 256), None);
    }
}
