//! One file per command, and code that several commands share.

mod batched;
mod bench;
mod bench_draft;
mod bench_memory;
mod bench_verify;
mod chat;
mod chat_options;
mod check;
mod chunks;
mod constraint;
mod conversation;
mod convert;
mod device_runs;
mod devices;
mod diff;
mod draw;
mod dump;
mod emit_c;
mod eval;
mod graph;
mod hyper_parameters;
mod imatrix;
mod inspect;
mod kernels;
mod layers;
mod licenses;
mod limit_samples;
mod logits;
mod ls;
mod make_model;
mod median;
mod pack;
mod partition;
mod plan_hosts;
mod profile;
mod prompt;
mod pull;
mod quantize;
mod quantize_kl;
mod rm;
mod run;
mod sampling;
mod self_test;
mod serve;
mod shell;
mod simulation;
mod speed;
mod stage;
mod tokenize;
mod top;
mod types;
mod verify;

use crate::args::{Cli, Command, EngineArgs};
use crate::{interrupt, output};

/// Runs a command.
pub(crate) fn execute(cli: Cli) -> anyhow::Result<()> {
    // These commands poll `interrupt::asked` and save or clean up. The first signal ends any other
    // command immediately.
    let looks_at_signals = matches!(
        cli.command,
        Command::Run(_)
            | Command::Chat(_)
            | Command::Serve(_)
            | Command::Logits(_)
            | Command::Verify(_)
            | Command::Pack(_)
            | Command::Convert(_)
            | Command::Quantize(_)
            | Command::Imatrix(_)
            | Command::Pull(_)
            | Command::Top(_)
            | Command::Bench(_)
            | Command::Profile(_)
            | Command::Kernels(_)
            | Command::Diff(_)
            | Command::Dump(_)
            | Command::Eval(_)
    );
    if let Some((command, engine)) = of_whole_models(&cli.command) {
        partition::refuse_ranks(command, engine)?;
    }
    let _at_once = (!looks_at_signals).then(interrupt::at_once);
    match cli.command {
        Command::Run(args) => run::run(&args),
        Command::Chat(args) => chat::run(&args),
        Command::Serve(args) => serve::run(&args),
        Command::Logits(args) => logits::run(&args),
        Command::Inspect(args) if args.contract => check::run(&args.into()),
        Command::Inspect(args) => inspect::run(&args),
        Command::Check(args) => check::run(&args),
        Command::Graph(args) => graph::run(&args),
        Command::Verify(args) => verify::run(&args),
        Command::Tokenize(args) => tokenize::run(&args),
        Command::MakeModel(args) => make_model::run(&args),
        Command::Pack(args) => pack::run(&args),
        Command::Convert(args) => convert::run(&args),
        Command::Quantize(args) => quantize::run(&args),
        Command::Imatrix(args) => imatrix::run(&args),
        Command::Pull(args) => pull::run(&args),
        Command::Ls(args) => ls::run(&args),
        Command::Rm(args) => rm::run(&args),
        Command::Top(args) => top::run(&args),
        Command::Bench(args) if !args.verify.is_empty() => bench_verify::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Profile(args) => profile::run(&args),
        Command::Kernels(args) => kernels::run(&args),
        Command::Diff(args) => diff::run(&args),
        Command::Dump(args) => dump::run(&args),
        Command::Eval(args) => eval::run(&args),
        Command::PlanHosts(args) => plan_hosts::run(&args),
        Command::Devices(args) => devices::run(&args),
        Command::SelfTest(args) => self_test::run_all(&args),
        Command::Version => output::line(concat!("latent ", env!("CARGO_PKG_VERSION"))),
        Command::Licenses => licenses::run(),
        Command::Completions { shell } => shell::completions(shell),
        Command::Man { folder, force } => shell::man(&folder, force),
    }
}

/// The name and options of a command that cannot run on several ranks.
fn of_whole_models(command: &Command) -> Option<(&'static str, &EngineArgs)> {
    Some(match command {
        Command::Inspect(args) => ("inspect", &args.model.engine),
        Command::Check(args) => ("check", &args.model.engine),
        Command::Verify(args) => ("verify", &args.model.engine),
        Command::Diff(args) => ("diff", &args.model.engine),
        Command::Dump(args) => ("dump", &args.model.engine),
        Command::Imatrix(args) => ("imatrix", &args.model.engine),
        _ => return None,
    })
}
