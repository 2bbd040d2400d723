//! Ctrl-C: the first asks the command to stop after the present step, the second ends the program at once.

use std::sync::atomic::{AtomicBool, Ordering};

static ASKED: AtomicBool = AtomicBool::new(false);

/// Watches for Ctrl-C.
pub(crate) fn watch() {
    // without the handler Ctrl-C still ends the program, only less gently
    let _ = ctrlc::set_handler(|| {
        if ASKED.swap(true, Ordering::SeqCst) {
            std::process::exit(130);
        }
    });
}

/// Whether somebody wants to stop.
pub(crate) fn asked() -> bool {
    ASKED.load(Ordering::SeqCst)
}

/// Forgets the request, once it was followed (in a chat it ends an answer, not the program).
pub(crate) fn clear() {
    ASKED.store(false, Ordering::SeqCst);
}
