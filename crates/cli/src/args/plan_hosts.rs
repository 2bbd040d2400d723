//! `latent plan-hosts`.

use super::limits::tokens;
use super::model::ModelArgs;
use clap::Args;
use std::ffi::OsString;
use std::path::PathBuf;

pub(super) const PLAN_HOSTS_HELP: &str =
    "The file lists the hosts in the order of their ranks, and the link between them:

  [link]
  gbit_per_s = 10
  latency_us = 50        # of a short message, from send to the end of receive
  sum_gbit_per_s = 6     # of sums of two ranks; optional, with the next line
  sum_latency_us = 60    # of a short sum
  [[host]]
  name = \"a\"
  memory_gb = 240        # for the model; optional: everything fits
  read_gb_per_s = 180    # bandwidth of steps with one row
  gflops = 1500          # of prompts; optional
  [host.at_once]         # while other ranks of the machine compute; optional
  read_gb_per_s = 90
  gflops = 1400

--measure writes the file: it runs the first layers of the model on each host
and exchanges messages. Without mpirun it measures this machine.

  mpirun -n 4 --host a,b,c,d latent plan-hosts -m MODEL --measure hosts.toml";

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

    /// Measure the hosts on which mpirun started this command, and write the file
    #[arg(long)]
    pub(crate) measure: bool,

    /// Also measure all hosts at the same time: ranks on one machine share its memory bandwidth
    #[arg(long, requires = "measure")]
    pub(crate) at_once: bool,

    /// Prompt length for which the time to the first token is predicted
    #[arg(short = 'p', long, default_value_t = 512, value_name = "TOKENS", value_parser = tokens(1))]
    pub(crate) n_prompt: usize,

    /// Sequences per step
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) sequences: u16,

    /// Concurrent steps, each of other sequences
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) in_flight: u16,

    /// Cached tokens that a step attends to [default: half of the context]
    #[arg(long, value_name = "TOKENS", value_parser = tokens(0))]
    pub(crate) past: Option<usize>,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}
