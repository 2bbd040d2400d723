//! Waiting for the end of a server: a signal, the end of standard input, or a lost rank.

use crate::args::ServeArgs;
use crate::{exit, interrupt, job, output};
use anyhow::Result;
use latent_backend::RankError;
use latent_server::Server;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Interval of checks.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Time for sending errors to clients after a rank was lost.
const ERROR_GRACE: Duration = Duration::from_secs(1);

/// Waits until a single model is loaded.
pub(super) fn loaded(server: &Server) -> Result<()> {
    loop {
        // No request has been answered, so there is nothing to save.
        interrupt::end_if_asked();
        match server.wait_loaded(POLL_INTERVAL) {
            None => {}
            Some(Ok(())) => return Ok(()),
            Some(Err(error)) => return Err(exit::from_boxed(error)),
        }
    }
}

/// Serves until the server is stopped, then waits for running requests.
pub(super) fn ended(server: Server, args: &ServeArgs) -> Result<()> {
    let input = if args.server.stop_at_eof { end_of_input()? } else { Arc::default() };
    let mut stopped = false;
    while !server.is_finished() {
        if let Some(problem) = job::problem() {
            return Err(lost(&server, problem));
        }
        if interrupt::asked() {
            // mpirun sends SIGTERM to all ranks when one has failed. Waiting the usual time for a
            // silent rank would delay the end.
            job::hurry();
        }
        if !stopped && (interrupt::asked() || input.load(Ordering::SeqCst)) {
            if !args.quiet {
                output::note("waiting for running requests; a second signal ends the program");
            }
            server.stop();
            stopped = true;
        }
        std::thread::sleep(POLL_INTERVAL);
    }
    server.join();
    Ok(())
}

/// Ends a server that has lost a rank. Its requests fail with the reason.
fn lost(server: &Server, problem: RankError) -> anyhow::Error {
    let began = Instant::now();
    server.stop();
    while !server.is_finished() && began.elapsed() < ERROR_GRACE {
        std::thread::sleep(POLL_INTERVAL);
    }
    problem.into()
}

/// A flag that becomes true when standard input ends.
fn end_of_input() -> Result<Arc<AtomicBool>> {
    let ended = Arc::new(AtomicBool::new(false));
    let tell = Arc::clone(&ended);
    let read = move || {
        // An error of the read counts as the end.
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        tell.store(true, Ordering::SeqCst);
    };
    // Not joined: the read may block forever, and the thread ends with the process.
    std::thread::Builder::new().name("input".into()).spawn(read)?;
    Ok(ended)
}
