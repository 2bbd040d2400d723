//! `latent plan-hosts`: proposes a partition of a model over hosts and predicts its speed.

mod files;
mod measure;
mod table;

use crate::args::PlanHostsArgs;
use crate::hosts_file::HostsFile;
use crate::{output, prediction, ranks, target};
use anyhow::Result;
use latent_engine::DEFAULT_BATCH_TOKENS;
use latent_formats::OutputFile;
use latent_hosts::predict::{self, PredictionCase, Proposal};
use std::io::Write;

pub(super) fn run(args: &PlanHostsArgs) -> Result<()> {
    if args.measure {
        target::check(&args.hosts, args.model.engine.force)?;
        let Some(measured) = measure::all_ranks(args)? else {
            // Only rank 0 writes and prints.
            return Ok(());
        };
        let mut file = OutputFile::create(&args.hosts)?;
        file.write_all(measured.text().as_bytes()).map_err(|error| file.failed(error))?;
        file.finish()?;
        output::note(&format!("measured: {}", args.hosts.display()));
    } else if ranks::follows(None)? {
        return Ok(());
    }
    let file = HostsFile::read(&args.hosts)?;
    prediction::planned(&args.model, |model, context, outline| {
        let case = PredictionCase {
            context,
            // Over a long conversation, a token attends to half of the context on average.
            past: args.past.unwrap_or(context / 2).min(context),
            rows: usize::from(args.sequences),
            in_flight: usize::from(args.in_flight),
            prompt: args.n_prompt,
            chunk: args.model.engine.batch_tokens().unwrap_or(DEFAULT_BATCH_TOKENS),
            wire: args.model.engine.wire,
        };
        let proposals = match &args.model.engine.partition {
            Some(partition) => vec![Proposal {
                kind: partition.to_string(),
                best: predict::predict(model, &file.hosts, file.link, partition, &case),
            }],
            None => predict::propose(model, &file.hosts, file.link, &case),
        };
        let files = files::of_ranks(model, outline, table::best(&proposals)?)?;
        if args.json {
            table::json(&proposals, &case, &files)
        } else {
            table::print(&proposals, &case, &files)
        }
    })
}
