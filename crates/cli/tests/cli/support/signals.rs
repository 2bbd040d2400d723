//! Signal dispositions and a time limit for tests that start the program.

use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
use std::sync::Once;
use std::time::Duration;

/// Time limit of one test program. Its tests take about a minute; a test that waits for a child
/// forever would otherwise never end.
const LIMIT: Duration = Duration::from_secs(900);

/// Gives children the default dispositions of the signals that the tests send, and ends this
/// process after [`LIMIT`].
///
/// A child inherits ignored signals: SIGHUP under `nohup`, SIGINT in a background job of a shell
/// without job control. `latent` rightly keeps them ignored, so a test that sends one would wait
/// forever. A caught signal becomes the default one when the child executes the program.
#[allow(unsafe_code, clippy::print_stderr, reason = "signal dispositions, and why the process ends")]
pub fn prepare() {
    extern "C" fn nothing(_: i32) {}
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let caught = SigAction::new(SigHandler::Handler(nothing), SaFlags::SA_RESTART, SigSet::empty());
        for signal in [Signal::SIGHUP, Signal::SIGINT, Signal::SIGQUIT, Signal::SIGTERM] {
            // SAFETY: the handler does nothing.
            let before = unsafe { sigaction(signal, &caught) }.unwrap();
            if !matches!(before.handler(), SigHandler::SigIgn) {
                // SAFETY: this was the disposition before.
                unsafe { sigaction(signal, &before) }.unwrap();
            }
        }
        std::thread::spawn(|| {
            std::thread::sleep(LIMIT);
            // children see their pipes closed
            eprintln!(
                "this test program has run for {} seconds: a test waits for something that never happens",
                LIMIT.as_secs()
            );
            std::process::abort();
        });
    });
}
