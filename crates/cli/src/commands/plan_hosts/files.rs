//! The files of the model that each rank needs. Other files need not be on its host.

use crate::output;
use anyhow::{Result, anyhow};
use latent_engine::files_of_rank;
use latent_formats::Outline;
use latent_graph::GraphError;
use latent_hosts::predict::{PlannedModel, Prediction};

/// The files of each rank. Empty for a model in one file, or without its data.
#[derive(Default)]
pub(super) struct RankFiles {
    /// The model's files, in order.
    all: Vec<String>,
    /// The files that each rank needs.
    pub(super) needed: Vec<Vec<String>>,
}

/// The files that the ranks of `best` need.
pub(super) fn of_ranks(model: &PlannedModel<'_>, outline: &Outline, best: &Prediction) -> Result<RankFiles> {
    let Some(whole) = outline.whole().filter(|whole| whole.files() > 1) else {
        return Ok(RankFiles::default());
    };
    let ranks = best.ranks.len();
    let of_rank = |rank| {
        let part = best.partition.part(model.config, rank, ranks).map_err(GraphError::from)?;
        let planned = (model.plan)(&model.config.of_part(part)).map_err(|problem| anyhow!(problem))?;
        Ok(files_of_rank(whole, &planned.stages)?)
    };
    let needed = (0..ranks).map(of_rank).collect::<Result<_>>()?;
    Ok(RankFiles { all: whole.file_names().map(str::to_owned).collect(), needed })
}

impl RankFiles {
    /// Prints a line per rank. Consecutive files are shown by the first and last.
    pub(super) fn print(&self) -> Result<()> {
        if self.needed.is_empty() {
            return Ok(());
        }
        output::line("")?;
        output::line(&format!("| rank | files, of {} |", self.all.len()))?;
        output::line("|---|---|")?;
        for (rank, needed) in self.needed.iter().enumerate() {
            output::line(&format!("| {rank} | {} |", self.runs(needed)))?;
        }
        output::line("")
    }

    fn runs(&self, needed: &[String]) -> String {
        let places = self.all.iter().enumerate().filter(|(_, name)| needed.contains(name));
        let mut runs: Vec<(usize, usize)> = Vec::new();
        for (place, _) in places {
            match runs.last_mut() {
                Some((_, last)) if *last + 1 == place => *last = place,
                _ => runs.push((place, place)),
            }
        }
        let shown = runs.into_iter().map(|(first, last)| match last - first {
            0 => self.all[first].clone(),
            1 => format!("{}, {}", self.all[first], self.all[last]),
            _ => format!("{} to {}", self.all[first], self.all[last]),
        });
        shown.collect::<Vec<_>>().join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn consecutive_files_are_shown_as_a_range() {
        let names = |all: &[&str]| all.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let files = RankFiles { all: names(&["a", "b", "c", "d", "e", "f"]), needed: Vec::new() };
        for (needed, shown) in [
            (&["a"][..], "a"),
            (&["a", "b"], "a, b"),
            (&["a", "c", "d", "e"], "a, c to e"),
            (&["a", "b", "c", "f"], "a to c, f"),
        ] {
            assert_eq!(files.runs(&names(needed)), shown);
        }
    }
}
