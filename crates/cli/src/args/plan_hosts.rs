//! What `latent plan-hosts` is given.

use super::limits::tokens;
use super::model::ModelArgs;
use clap::Args;
use std::path::PathBuf;

pub(super) const PLAN_HOSTS_HELP: &str = "The file lists the hosts in the order of their ranks, with what was measured of them, and the link between them:

  [link]
  gbit_per_s = 10
  latency_us = 50
  [[host]]
  name = \"a\"
  memory_gb = 240
  read_gb_per_s = 180
  gflops = 1500          # of prompts; may be left out

`latent bench` prints the read bandwidth of a machine, `latent profile -p 512` what its prompts compute.";

#[derive(Args, Debug)]
pub(crate) struct PlanHostsArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,

    /// The hosts
    pub(crate) hosts: PathBuf,

    /// Tokens of the prompt whose first token is predicted
    #[arg(short = 'p', long, default_value_t = 512, value_name = "TOKENS", value_parser = tokens(1))]
    pub(crate) n_prompt: usize,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}
