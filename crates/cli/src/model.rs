//! Opening a model: a file, a folder, or the demo model that is built in.

use crate::args::ModelArgs;
use crate::interrupt;
use anyhow::Result;
use engine::Engine;
use engine::memory::readable;
use formats::Checkpoint;
use indicatif::{ProgressBar, ProgressStyle};
use std::io::{IsTerminal, stderr};
use std::path::Path;
use std::sync::Arc;

#[cfg(feature = "demo")]
static DEMO: &[u8] = include_bytes!("../../../models/mla-demo-Q4_K_M.gguf");

/// What the built-in model is called in messages.
pub(crate) const DEMO_NAME: &str = "(built-in demo model)";

/// Opens the model at `path`, or the built-in one.
pub(crate) fn open(path: Option<&Path>) -> Result<Arc<Checkpoint>> {
    let checkpoint = match path {
        Some(path) => Checkpoint::open(path)?,
        None => demo()?,
    };
    Ok(Arc::new(checkpoint))
}

#[cfg(feature = "demo")]
fn demo() -> Result<Checkpoint> {
    Ok(Checkpoint::from_static(DEMO_NAME, DEMO)?)
}

#[cfg(not(feature = "demo"))]
fn demo() -> Result<Checkpoint> {
    let problem =
        "this build has no demo model in it (it was built without the feature `demo`): give -m MODEL";
    Err(crate::exit::Usage(problem.into()).into())
}

/// Loads a model with a progress bar on a terminal, and the start-up line on standard error.
pub(crate) fn load(checkpoint: &Arc<Checkpoint>, args: &ModelArgs, quiet: bool) -> Result<Engine> {
    let bar = bar(!quiet, "loading");
    let engine = Engine::load(checkpoint, &args.options(), &mut |done, total| {
        bar.set_length(total as u64);
        bar.set_position(done as u64);
        if interrupt::asked() {
            // nothing is lost yet
            bar.finish_and_clear();
            std::process::exit(130);
        }
    });
    bar.finish_and_clear();
    let engine = engine?;
    if !quiet {
        start_up_line(&engine);
    }
    Ok(engine)
}

/// A progress bar; hidden where standard error is no terminal.
pub(crate) fn bar(show: bool, what: &'static str) -> ProgressBar {
    if !show || !stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(0);
    if let Ok(style) = ProgressStyle::with_template("{msg:10} {wide_bar} {pos}/{len}") {
        bar.set_style(style);
    }
    bar.set_message(what);
    bar
}

/// What was loaded and how it will run.
fn start_up_line(engine: &Engine) {
    let s = engine.summary();
    eprintln!(
        "{}: {} parameters, {}; {} with {}; {} thread{}; {} cache, {} a token, {} tokens",
        s.name,
        count(s.parameters),
        readable(s.weight_bytes),
        s.tier,
        s.kernels.join(", "),
        s.threads,
        if s.threads == 1 { "" } else { "s" },
        s.cache,
        readable(s.token_bytes as u64),
        s.context,
    );
    if !s.portable.is_empty() {
        eprintln!("portable code for: {}", s.portable.join(", "));
    }
}

/// `15.7 B`, `8.9 M`.
pub(crate) fn count(n: u64) -> String {
    let (value, unit) = match n {
        1_000_000_000.. => (n as f64 / 1e9, "B"),
        1_000_000.. => (n as f64 / 1e6, "M"),
        _ => return n.to_string(),
    };
    format!("{value:.2} {unit}")
}
