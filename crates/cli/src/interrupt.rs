//! Signals that end the program: Ctrl-C (SIGINT), SIGTERM, and SIGHUP of a terminal that was closed. The first asks the command to stop
//! after the present step, so that what is done stays; the second ends the program at once. The exit code is 128 + the signal's number.
//!
//! On Unix the signals are blocked in all threads, and one thread waits for them: what it does when one comes is not bound to what a signal
//! handler may do.

use std::io::Write;
use std::process::{Child, Command, ExitStatus};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};

/// Ctrl-C.
const SIGINT: i32 = 2;

/// The signal that came; 0: none.
static ASKED: AtomicI32 = AtomicI32::new(0);

/// A process that ends with this one; 0: none.
static KEPT: AtomicI32 = AtomicI32::new(0);

/// Number of callers that have nothing to clean up.
static AT_ONCE: AtomicUsize = AtomicUsize::new(0);

/// Whether the terminal shows a screen of the program's own.
static FULL_SCREEN: AtomicBool = AtomicBool::new(false);

/// Whether another program has the terminal, so that Ctrl-C is meant for it.
static LENT: AtomicBool = AtomicBool::new(false);

/// Watches for the signals. To be called before there are other threads.
pub(crate) fn watch() {
    #[cfg(unix)]
    unix::watch();
    #[cfg(not(unix))]
    {
        // without the handler Ctrl-C still ends the program, only without cleanup
        let _ = ctrlc::set_handler(|| came(SIGINT));
    }
}

fn came(signal: i32) {
    if signal == SIGINT && LENT.load(Ordering::SeqCst) {
        return;
    }
    let before = ASKED.swap(signal, Ordering::SeqCst);
    if before != 0 || AT_ONCE.load(Ordering::SeqCst) > 0 {
        end(signal);
    }
}

/// Ends the program: files that are not finished are removed.
fn end(signal: i32) -> ! {
    latent_formats::output_file::remove_unfinished();
    restore_terminal();
    #[cfg(unix)]
    unix::end_kept();
    std::process::exit(128 + signal)
}

/// Says that the terminal's other screen is shown from now on, which [`restore_terminal`] leaves.
pub(crate) fn full_screen() {
    FULL_SCREEN.store(true, Ordering::SeqCst);
}

/// Makes the terminal what it was when the program began.
pub(crate) fn restore_terminal() {
    if FULL_SCREEN.swap(false, Ordering::SeqCst) {
        // a terminal that was closed needs nothing
        let mut out = std::io::stdout();
        let _ = out.write_all(b"\x1b[0m\x1b[?25h\x1b[?1049l").and_then(|()| out.flush());
    }
    #[cfg(unix)]
    unix::restore_terminal();
}

/// Runs a program that has the terminal for itself, such as an editor, to its end.
pub(crate) fn lend_terminal(command: &mut Command) -> std::io::Result<ExitStatus> {
    LENT.store(true, Ordering::SeqCst);
    // a program that is started inherits the blocked signals of the thread that starts it
    #[cfg(unix)]
    unix::block(false);
    let child = command.spawn();
    #[cfg(unix)]
    unix::block(true);
    let status = child.and_then(|mut child| child.wait());
    LENT.store(false, Ordering::SeqCst);
    status
}

/// Whether a signal has asked to stop.
pub(crate) fn asked() -> bool {
    ASKED.load(Ordering::SeqCst) != 0
}

/// The exit code of a program that was asked to stop.
pub(crate) fn code() -> u8 {
    match ASKED.load(Ordering::SeqCst) {
        0 => 128 + SIGINT as u8,
        signal => 128 + signal as u8,
    }
}

/// What the last signal is called.
pub(crate) fn name() -> &'static str {
    match ASKED.load(Ordering::SeqCst) {
        0 | SIGINT => "Ctrl-C",
        1 => "SIGHUP",
        _ => "SIGTERM",
    }
}

/// Ends the program now if it was asked to and there is nothing to keep.
pub(crate) fn end_if_asked() {
    if asked() {
        end(i32::from(code()) - 128);
    }
}

/// Clears a Ctrl-C that has been handled: in a chat it ends an answer, not the program. The other signals end the program.
pub(crate) fn clear() {
    let signal = ASKED.load(Ordering::SeqCst);
    if signal != 0 && signal != SIGINT {
        end(signal);
    }
    ASKED.store(0, Ordering::SeqCst);
}

/// While this lives, a process is ended with this one.
pub(crate) struct ChildGuard(());

/// For a process that was started, and does not hear the terminal's signals itself.
pub(crate) fn keep(child: &Child) -> ChildGuard {
    KEPT.store(child.id().cast_signed(), Ordering::SeqCst);
    ChildGuard(())
}

impl Drop for ChildGuard {
    fn drop(&mut self) {
        KEPT.store(0, Ordering::SeqCst);
    }
}

/// While this lives, the first signal ends the program at once.
pub(crate) struct SignalGuard(());

/// For commands, and parts of commands, that do not look at [`asked`] for long: reading standard input, or writing a file.
pub(crate) fn at_once() -> SignalGuard {
    AT_ONCE.fetch_add(1, Ordering::SeqCst);
    // one that came before
    end_if_asked();
    SignalGuard(())
}

impl Drop for SignalGuard {
    fn drop(&mut self) {
        AT_ONCE.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(unix)]
mod unix {
    use nix::sys::signal::{SigSet, Signal, kill};
    use nix::sys::termios::{SetArg, Termios, tcgetattr, tcsetattr};
    use nix::unistd::Pid;
    use std::io::stdin;
    use std::sync::{Mutex, PoisonError};

    /// How the terminal was when the program began: while a line is edited it shows nothing by itself.
    static TERMINAL: Mutex<Option<Termios>> = Mutex::new(None);

    pub(super) fn restore_terminal() {
        let terminal = TERMINAL.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(terminal) = &*terminal {
            // one that was closed needs nothing
            let _ = tcsetattr(stdin(), SetArg::TCSANOW, terminal);
        }
    }

    pub(super) fn end_kept() {
        let pid = super::KEPT.load(super::Ordering::SeqCst);
        if pid > 0 {
            // it may have ended by itself
            let _ = kill(Pid::from_raw(pid), Signal::SIGTERM);
        }
    }

    /// Blocks the usual signals in this thread, or lets them through.
    pub(super) fn block(block: bool) {
        let mut signals = SigSet::empty();
        for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGXFSZ] {
            signals.add(signal);
        }
        // at worst the editor does not know Ctrl-C
        let _ = if block { signals.thread_block() } else { signals.thread_unblock() };
    }

    pub(super) fn watch() {
        *TERMINAL.lock().unwrap_or_else(PoisonError::into_inner) = tcgetattr(stdin()).ok();
        let mut waited = SigSet::empty();
        waited.add(Signal::SIGINT);
        waited.add(Signal::SIGTERM);
        if !hangups_are_ignored() {
            waited.add(Signal::SIGHUP);
        }
        let mut blocked = waited;
        // a file beyond `ulimit -f` is then an error of the write, which is reported, and not the end of the program
        blocked.add(Signal::SIGXFSZ);
        // without all this the signals still end the program, only without cleanup
        if blocked.thread_block().is_err() {
            return;
        }
        let wait = move || {
            while let Ok(signal) = waited.wait() {
                super::came(signal as i32);
            }
        };
        if std::thread::Builder::new().name("signals".into()).spawn(wait).is_err() {
            let _ = blocked.thread_unblock();
        }
    }

    /// Whether SIGHUP is ignored, as under `nohup`: then it stays so.
    fn hangups_are_ignored() -> bool {
        let Ok(status) = std::fs::read_to_string("/proc/self/status") else {
            // elsewhere the disposition cannot be read without an unsafe system call, so it stays
            return true;
        };
        let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
        let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
        mask.is_some_and(|mask| mask & 1 != 0)
    }
}
