//! A SIGBUS handler that names the file if a page of a mapped file has vanished.
//!
//! Signal handlers belong to the whole process, so a library must not install one by itself. Maps
//! are always entered in a table, which costs a few stores per file. The program decides with
//! [`install_sigbus_handler`].

use std::path::Path;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};

// A signal handler must not allocate or take locks. So the table has a fixed size, messages are
// formatted when a file is mapped, and all fields are atomic.
/// Maximum number of watched maps. Further ones work without the message.
const MAX_MAPS: usize = 1024;

/// Bytes of a message. Of a longer path, the end is kept.
const MESSAGE: usize = 512;

/// A watched map. An entry is free while `start` is 0.
struct WatchedMap {
    start: AtomicUsize,
    len: AtomicUsize,
    message: [AtomicU8; MESSAGE],
    message_len: AtomicUsize,
}

static WATCHED: [WatchedMap; MAX_MAPS] = [const {
    WatchedMap {
        start: AtomicUsize::new(0),
        len: AtomicUsize::new(0),
        message: [const { AtomicU8::new(0) }; MESSAGE],
        message_len: AtomicUsize::new(0),
    }
}; MAX_MAPS];

/// Enters a map into the table that the handler reads.
pub(crate) fn watch(path: &Path, start: usize, len: usize) {
    let text = message(path);
    for entry in &WATCHED {
        // Claim the entry with an address that no map has. The real address is stored last, so the
        // handler never reads a half-written entry.
        if entry.start.compare_exchange(0, usize::MAX, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
            for (to, from) in entry.message.iter().zip(text.bytes()) {
                to.store(from, Ordering::Relaxed);
            }
            entry.len.store(len, Ordering::SeqCst);
            entry.message_len.store(text.len().min(MESSAGE), Ordering::SeqCst);
            entry.start.store(start, Ordering::SeqCst);
            return;
        }
    }
}

fn message(path: &Path) -> String {
    let path = path.display().to_string();
    let path = latent_types::printable(&path);
    let what = ": the file has shrunk or its storage failed while it was in use; keep model files unchanged while Latent runs\n";
    let fits = MESSAGE - "error: ".len() - what.len() - "…".len();
    let from = path.char_indices().map(|(at, _)| at).find(|at| path.len() - at <= fits).unwrap_or(path.len());
    format!("error: {}{}{what}", if from > 0 { "…" } else { "" }, &path[from..])
}

/// Removes a map from the table.
pub(crate) fn forget(start: usize) {
    for entry in &WATCHED {
        if entry.start.load(Ordering::SeqCst) == start {
            entry.start.store(0, Ordering::SeqCst);
            return;
        }
    }
}

/// Installs a handler of SIGBUS for the whole process, once, on Unix.
///
/// When a mapped model file shrinks or its storage fails, reading the vanished page raises SIGBUS,
/// which ends the process without a message. The handler prints an error that names the file,
/// removes unfinished output files, and exits with code 1. It forwards SIGBUS of other memory to
/// the previous handler. Programs call this at their start; libraries leave it to their caller. It
/// does nothing on other systems than Unix.
pub fn install_sigbus_handler() {
    #[cfg(unix)]
    handler::install();
}

#[cfg(unix)]
#[allow(unsafe_code, reason = "a signal handler")]
mod handler {
    use std::sync::Once;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// The previous handler of SIGBUS: an address, SIG_DFL or SIG_IGN.
    static PREVIOUS: AtomicUsize = AtomicUsize::new(0);

    /// Installs the handler, once per process.
    pub(super) fn install() {
        static INSTALL: Once = Once::new();
        INSTALL.call_once(set_handler);
    }

    fn set_handler() {
        // SAFETY: sigaction with a handler of the SA_SIGINFO kind, fully initialized; the handler
        // only makes async-signal-safe calls, and reads static tables of atomics.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = handle as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            libc::sigemptyset(&raw mut action.sa_mask);
            let mut previous: libc::sigaction = std::mem::zeroed();
            if libc::sigaction(libc::SIGBUS, &raw const action, &raw mut previous) == 0 {
                PREVIOUS.store(previous.sa_sigaction, Ordering::SeqCst);
            }
        }
    }

    extern "C" fn handle(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
        // SAFETY: the system passes a valid siginfo_t for a SA_SIGINFO handler.
        let address = unsafe { (*info).si_addr() } as usize;
        for entry in &super::WATCHED {
            let start = entry.start.load(Ordering::SeqCst);
            let len = entry.len.load(Ordering::SeqCst);
            if start != 0 && start != usize::MAX && address >= start && address - start < len {
                let len = entry.message_len.load(Ordering::SeqCst);
                // SAFETY: write, unlink and _exit are async-signal-safe; the message is static
                // memory of at least this length, and no thread rewrites it, since the map that
                // faulted still exists. A name in the table is static memory that ends in a zero,
                // whatever is written over it meanwhile.
                unsafe {
                    libc::write(2, entry.message.as_ptr().cast(), len);
                    for name in latent_files::unfinished_names() {
                        libc::unlink(name.as_ptr().cast());
                    }
                    libc::_exit(1);
                }
            }
        }
        // The address is in no watched map, so the fault is not ours.
        let previous = PREVIOUS.load(Ordering::SeqCst);
        // SAFETY: a handler stored by sigaction is called as the system would call it (one of the
        // older kind ignores all but the first argument); otherwise the default is restored, and
        // the signal, raised again, ends the process.
        unsafe {
            if previous == libc::SIG_DFL || previous == libc::SIG_IGN {
                libc::signal(libc::SIGBUS, libc::SIG_DFL);
                libc::raise(libc::SIGBUS);
            } else {
                let previous: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) =
                    std::mem::transmute(previous);
                previous(signal, info, context);
            }
        }
    }
}
