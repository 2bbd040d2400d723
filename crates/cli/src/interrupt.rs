//! Signals that end the program: SIGINT (Ctrl-C), SIGTERM, and SIGHUP (the terminal was closed).
//! The first asks the command to stop after the current step, so that finished work is saved. The
//! second ends the program immediately. The exit code is 128 plus the signal's number.
//!
//! On Unix all threads block the signals and one thread waits for them with `sigwait`. That thread
//! is not limited to async-signal-safe calls: it removes files and writes to the terminal.

use latent::AnswerCanceller;
use std::io::Write;
use std::process::{Child, Command, ExitStatus};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Ctrl-C.
const SIGINT: i32 = 2;

/// The last signal received, or 0.
static SIGNAL: AtomicI32 = AtomicI32::new(0);

/// Process ID of the child that is ended together with this process, or 0.
static CHILD_PID: AtomicI32 = AtomicI32::new(0);

/// The running answer, which the first signal cancels.
static ANSWER: Mutex<Option<AnswerCanceller>> = Mutex::new(None);

/// Number of live [`SignalGuard`]s: if above 0, the first signal ends the program.
static AT_ONCE: AtomicUsize = AtomicUsize::new(0);

/// Whether the terminal shows the alternate screen.
static FULL_SCREEN: AtomicBool = AtomicBool::new(false);

/// Whether another program, such as an editor, owns the terminal. Ctrl-C is then meant for it.
static TERMINAL_LENT: AtomicBool = AtomicBool::new(false);

/// Starts to watch for the signals. Must be called before other threads exist.
pub(crate) fn watch() {
    #[cfg(unix)]
    unix::watch();
    #[cfg(not(unix))]
    {
        // Outside of Unix only Ctrl-C is watched. Without the handler it still ends the program,
        // only without cleanup.
        let _ = ctrlc::set_handler(|| on_signal(SIGINT));
    }
}

fn on_signal(signal: i32) {
    // The terminal sends Ctrl-C to the whole foreground process group, so this process gets it in
    // addition to the editor. SIGTERM and SIGHUP still end the program.
    if signal == SIGINT && TERMINAL_LENT.load(Ordering::SeqCst) {
        return;
    }
    // One atomic operation, so that of two signals in quick succession exactly one is the first.
    let before = SIGNAL.swap(signal, Ordering::SeqCst);
    if before != 0 || AT_ONCE.load(Ordering::SeqCst) > 0 {
        end(signal);
    }
    cancel_answer();
}

fn answer() -> MutexGuard<'static, Option<AnswerCanceller>> {
    ANSWER.lock().unwrap_or_else(PoisonError::into_inner)
}

fn cancel_answer() {
    if let Some(canceller) = &*answer() {
        canceller.cancel();
    }
}

/// Removes unfinished files, restores the terminal and exits.
fn end(signal: i32) -> ! {
    // Files first: the write to the terminal can block (Ctrl-S stops the output).
    latent_formats::output_file::remove_unfinished();
    restore_terminal();
    #[cfg(unix)]
    unix::end_child();
    std::process::exit(128 + signal)
}

/// Records that the alternate screen is shown. [`restore_terminal`] leaves it.
pub(crate) fn full_screen() {
    FULL_SCREEN.store(true, Ordering::SeqCst);
}

/// Restores the terminal's state from the start of the program.
pub(crate) fn restore_terminal() {
    if FULL_SCREEN.swap(false, Ordering::SeqCst) {
        // SGR reset, show the cursor, leave the alternate screen (xterm's private modes 25 and
        // 1049). Errors are ignored: after SIGHUP the terminal is closed.
        let mut out = std::io::stdout();
        let _ = out.write_all(b"\x1b[0m\x1b[?25h\x1b[?1049l").and_then(|()| out.flush());
    }
    #[cfg(unix)]
    unix::restore_terminal();
}

/// Runs a program that owns the terminal, such as an editor, and waits for it.
pub(crate) fn lend_terminal(command: &mut Command) -> std::io::Result<ExitStatus> {
    TERMINAL_LENT.store(true, Ordering::SeqCst);
    // A child inherits the blocked signals of the thread that spawns it. With SIGINT and SIGTERM
    // blocked, the editor could not be interrupted.
    #[cfg(unix)]
    unix::block(false);
    let child = command.spawn();
    #[cfg(unix)]
    unix::block(true);
    let status = child.and_then(|mut child| child.wait());
    TERMINAL_LENT.store(false, Ordering::SeqCst);
    status
}

/// Whether a signal has been received.
pub(crate) fn asked() -> bool {
    SIGNAL.load(Ordering::SeqCst) != 0
}

/// The exit code of a program that was stopped by a signal.
pub(crate) fn code() -> u8 {
    match SIGNAL.load(Ordering::SeqCst) {
        // `EngineError::Stopped` without a stored signal counts as Ctrl-C.
        0 => 128 + SIGINT as u8,
        signal => 128 + signal as u8,
    }
}

/// Name of the last signal.
pub(crate) fn name() -> &'static str {
    match SIGNAL.load(Ordering::SeqCst) {
        0 | SIGINT => "Ctrl-C",
        1 => "SIGHUP",
        _ => "SIGTERM",
    }
}

/// Ends the program if a signal has been received. For places with nothing to save.
pub(crate) fn end_if_asked() {
    if asked() {
        end(i32::from(code()) - 128);
    }
}

/// Clears a Ctrl-C that has been handled.
pub(crate) fn clear() {
    let signal = SIGNAL.load(Ordering::SeqCst);
    // In a chat Ctrl-C ends an answer. SIGTERM and SIGHUP end the program, here at the latest.
    if signal != 0 && signal != SIGINT {
        end(signal);
    }
    SIGNAL.store(0, Ordering::SeqCst);
}

/// While this lives, a signal cancels the answer.
pub(crate) struct AnswerGuard(());

/// Cancels an answer at the first signal.
pub(crate) fn guard_answer(canceller: AnswerCanceller) -> AnswerGuard {
    *answer() = Some(canceller);
    // The signal may have been received before.
    if asked() {
        cancel_answer();
    }
    AnswerGuard(())
}

impl Drop for AnswerGuard {
    fn drop(&mut self) {
        *answer() = None;
    }
}

/// While this lives, the child is ended together with this process.
pub(crate) struct ChildGuard(());

/// Ends `child` together with this process. For a child that does not receive the terminal's
/// signals.
pub(crate) fn guard_child(child: &Child) -> ChildGuard {
    // `kill` takes a signed id. Linux limits ids to 2^22, so the sign bit is never set.
    CHILD_PID.store(child.id().cast_signed(), Ordering::SeqCst);
    ChildGuard(())
}

impl Drop for ChildGuard {
    fn drop(&mut self) {
        CHILD_PID.store(0, Ordering::SeqCst);
    }
}

/// While this lives, the first signal ends the program immediately.
pub(crate) struct SignalGuard(());

/// For code that does not poll [`asked`] for long: a blocking read of standard input, or writing a
/// file.
pub(crate) fn at_once() -> SignalGuard {
    AT_ONCE.fetch_add(1, Ordering::SeqCst);
    // The signal may have been received before the guard existed: `on_signal` then did not end the
    // program.
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

    /// The terminal's settings at the start. The line editor switches echo and line buffering off
    /// while a line is edited.
    static TERMINAL: Mutex<Option<Termios>> = Mutex::new(None);

    pub(super) fn restore_terminal() {
        let terminal = TERMINAL.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(terminal) = &*terminal {
            // Fails if the terminal was closed: nothing to restore.
            let _ = tcsetattr(stdin(), SetArg::TCSANOW, terminal);
        }
    }

    pub(super) fn end_child() {
        let pid = super::CHILD_PID.load(super::Ordering::SeqCst);
        if pid > 0 {
            // The child may have exited by itself.
            let _ = kill(Pid::from_raw(pid), Signal::SIGTERM);
        }
    }

    /// Blocks or unblocks the watched signals in this thread.
    pub(super) fn block(block: bool) {
        let mut signals = SigSet::empty();
        for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGXFSZ] {
            signals.add(signal);
        }
        // If this fails, Ctrl-C does not reach the editor; the editor still runs.
        let _ = if block { signals.thread_block() } else { signals.thread_unblock() };
    }

    pub(super) fn watch() {
        // `None` if standard input is not a terminal: nothing to restore.
        *TERMINAL.lock().unwrap_or_else(PoisonError::into_inner) = tcgetattr(stdin()).ok();
        let mut waited = SigSet::empty();
        waited.add(Signal::SIGINT);
        waited.add(Signal::SIGTERM);
        if !hangups_are_ignored() {
            waited.add(Signal::SIGHUP);
        }
        let mut blocked = waited;
        // Exceeding `ulimit -f` raises SIGXFSZ, which kills the process by default. Blocked, it
        // becomes EFBIG of the write, which is reported like a full disk.
        blocked.add(Signal::SIGXFSZ);
        // If the signals cannot be blocked, they still end the program, only without cleanup.
        // Threads inherit the mask of the thread that spawns them.
        if blocked.thread_block().is_err() {
            return;
        }
        let wait = move || {
            while let Ok(signal) = waited.wait() {
                super::on_signal(signal as i32);
            }
        };
        if std::thread::Builder::new().name("signals".into()).spawn(wait).is_err() {
            // Without the thread a blocked signal would never be received, so the defaults are
            // restored.
            let _ = blocked.thread_unblock();
        }
    }

    /// Whether SIGHUP is ignored, as under `nohup`. It then stays ignored.
    fn hangups_are_ignored() -> bool {
        let Ok(status) = std::fs::read_to_string("/proc/self/status") else {
            // Without procfs (macOS, BSD) the disposition can be read only with `sigaction`, which
            // is unsafe. SIGHUP then keeps its disposition.
            return true;
        };
        let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
        let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
        // Signal N is bit N - 1 of the mask; SIGHUP is 1.
        mask.is_some_and(|mask| mask & 1 != 0)
    }
}
