//! What `latent plan-hosts` is given.

use super::limits::tokens;
use super::model::ModelArgs;
use clap::Args;
use std::ffi::OsString;
use std::path::PathBuf;

pub(super) const PLAN_HOSTS_HELP: &str = "The file lists the hosts in the order of their ranks, with what was measured of them, and the link between them:

  [link]
  gbit_per_s = 10
  latency_us = 50        # of a short message, from the call that sends it to the end of the one that receives it
  sum_gbit_per_s = 6     # at which two ranks add up rows, sending to each other at once; with the next line it may be left out
  sum_latency_us = 60    # of a short sum
  [[host]]
  name = \"a\"
  memory_gb = 240        # for the model; if omitted, everything fits
  read_gb_per_s = 180    # that steps of one row read
  gflops = 1500          # of prompts; may be left out
  [host.at_once]         # the same two while all other ranks compute; for ranks of one machine, or left out
  read_gb_per_s = 90
  gflops = 1400

--measure writes it: `mpirun -n 4 --host a,b,c,d latent plan-hosts -m MODEL -t N --measure hosts.toml` runs the first layers of the model on each
host, and exchanges messages. Without mpirun it measures this machine.";

#[derive(Args, Debug)]
pub(crate) struct PlanHostsArgs {
    /// The model, as with -m, and the file of hosts
    #[arg(value_names = ["MODEL", "HOSTS"], required = true)]
    pub(crate) words: Vec<OsString>,

    #[command(flatten)]
    pub(crate) model: ModelArgs,

    /// The file of hosts.
    #[arg(skip)]
    pub(crate) hosts: PathBuf,

    /// Measure the hosts on which mpirun has started this, and write the file
    #[arg(long)]
    pub(crate) measure: bool,

    /// Measure all hosts in turn and then at once: ranks of one machine take memory bandwidth from each other
    #[arg(long, requires = "measure")]
    pub(crate) at_once: bool,

    /// Tokens of the prompt whose first token is predicted
    #[arg(short = 'p', long, default_value_t = 512, value_name = "TOKENS", value_parser = tokens(1))]
    pub(crate) n_prompt: usize,

    /// Sequences of a step
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) sequences: u16,

    /// Steps in flight at once, each of other sequences
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) in_flight: u16,

    /// Tokens to which a step attends [default: half of the context]
    #[arg(long, value_name = "TOKENS", value_parser = tokens(0))]
    pub(crate) past: Option<usize>,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}
