//! Until when a server runs: a signal, the end of its input, a rank that is gone.

use crate::args::ServeArgs;
use crate::{exit, interrupt, job, output};
use anyhow::Result;
use latent_backend::RankError;
use latent_server::Server;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How often is looked whether something has happened.
const LOOK: Duration = Duration::from_millis(50);

/// How long requests have to hear that a rank is gone.
const GRACE: Duration = Duration::from_secs(1);

/// Waits until a model that is alone is loaded. A signal ends the program: there is nothing to keep.
pub(super) fn loaded(server: &Server) -> Result<()> {
    loop {
        interrupt::end_if_asked();
        match server.wait_loaded(LOOK) {
            None => {}
            Some(Ok(())) => return Ok(()),
            Some(Err(error)) => return Err(exit::from_boxed(error)),
        }
    }
}

/// Serves until it is to end, and lets running requests end.
pub(super) fn ended(server: Server, args: &ServeArgs) -> Result<()> {
    let input = if args.server.stop_at_eof { end_of_input()? } else { Arc::default() };
    let mut stopped = false;
    while !server.is_finished() {
        if let Some(problem) = job::problem() {
            return Err(lost(&server, problem));
        }
        if interrupt::asked() {
            job::hurry();
        }
        if !stopped && (interrupt::asked() || input.load(Ordering::SeqCst)) {
            if !args.quiet {
                output::note("waiting for running requests; a second signal ends the program");
            }
            server.stop();
            stopped = true;
        }
        std::thread::sleep(LOOK);
    }
    server.join();
    Ok(())
}

/// Ends a server whose model is gone with a rank: its requests fail by themselves, and hear why.
fn lost(server: &Server, problem: RankError) -> anyhow::Error {
    let began = Instant::now();
    server.stop();
    while !server.is_finished() && began.elapsed() < GRACE {
        std::thread::sleep(LOOK);
    }
    problem.into()
}

/// Becomes true when standard input ends.
fn end_of_input() -> Result<Arc<AtomicBool>> {
    let ended = Arc::new(AtomicBool::new(false));
    let tell = Arc::clone(&ended);
    let read = move || {
        // input that cannot be read has ended, too
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        tell.store(true, Ordering::SeqCst);
    };
    std::thread::Builder::new().name("input".into()).spawn(read)?;
    Ok(ended)
}
