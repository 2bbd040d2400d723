//! Numbers of rows of a step, for `--verify`.

use super::limits::MAX_VERIFY_ROWS;
use std::str::FromStr;

/// A number of rows, or an inclusive range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RowCounts {
    first: usize,
    last: usize,
}

impl RowCounts {
    /// All numbers of several ranges, sorted and without duplicates.
    pub(crate) fn all(counts: &[RowCounts]) -> Vec<usize> {
        let mut all: Vec<usize> = counts.iter().flat_map(|counts| counts.first..=counts.last).collect();
        all.sort_unstable();
        all.dedup();
        all
    }
}

impl FromStr for RowCounts {
    type Err = String;

    fn from_str(word: &str) -> Result<RowCounts, String> {
        let expected =
            || format!("expected row counts from 1 to {MAX_VERIFY_ROWS}, such as 4 or 1,2,4 or 1..8");
        let number = |word: &str| {
            let number: Option<usize> = word.trim().parse().ok();
            number.filter(|n| (1..=MAX_VERIFY_ROWS).contains(n)).ok_or_else(expected)
        };
        let (first, last) = word.split_once("..").unwrap_or((word, word));
        let counts = RowCounts { first: number(first)?, last: number(last)? };
        if counts.first > counts.last {
            return Err(format!("{first} is greater than {last}: {}", expected()));
        }
        Ok(counts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(words: &[&str]) -> Result<Vec<usize>, String> {
        let counts = words.iter().map(|word| word.parse()).collect::<Result<Vec<RowCounts>, String>>()?;
        Ok(RowCounts::all(&counts))
    }

    #[test]
    fn ranges_are_inclusive_and_lists_sorted() {
        assert_eq!(all(&["1..8"]), Ok(vec![1, 2, 3, 4, 5, 6, 7, 8]));
        assert_eq!(all(&["1", "2", "4"]), Ok(vec![1, 2, 4]));
        assert_eq!(all(&["6", "2..4", "3..3", "1"]), Ok(vec![1, 2, 3, 4, 6]));
        assert_eq!(all(&["16"]), Ok(vec![16]));
    }

    #[test]
    fn invalid_row_counts_are_refused_with_the_valid_ones() {
        for word in
            ["0", "17", "0..4", "1..17", "", "..", "1..", "..8", "a", "1-8", "1...8", "-1", "1..=8", "1e1"]
        {
            let said = word.parse::<RowCounts>().unwrap_err();
            assert!(
                said.contains("expected row counts from 1 to 16, such as 4 or 1,2,4 or 1..8"),
                "{word}: {said}"
            );
        }
        assert!("8..1".parse::<RowCounts>().unwrap_err().starts_with("8 is greater than 1: expected"));
    }
}
