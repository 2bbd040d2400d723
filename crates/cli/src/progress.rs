//! Progress bars that appear only for slow work.

use crate::output;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::{IsTerminal, stderr};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// Delay before a bar appears.
// Faster work would only flash a bar.
const DELAY: Duration = Duration::from_millis(500);

/// A bar on standard error that appears after a delay, and never if standard error is not a
/// terminal.
pub(crate) struct LateBar {
    bar: ProgressBar,
    waiting: Option<(Sender<()>, JoinHandle<()>)>,
}

impl LateBar {
    /// A bar that counts work items.
    pub(crate) fn new(show: bool, what: &'static str, total: usize) -> LateBar {
        LateBar::styled(show, what, total as u64, "{pos}/{len}")
    }

    /// A bar that counts bytes and shows their rate.
    pub(crate) fn bytes(show: bool, what: &'static str) -> LateBar {
        LateBar::styled(show, what, 0, "{decimal_bytes}/{decimal_total_bytes} {decimal_bytes_per_sec}")
    }

    /// Begins to count at `done`.
    pub(crate) fn begin_at(&self, done: u64, total: u64) {
        self.set(done, total);
        // Bytes of an earlier, interrupted download say nothing about the speed of this one.
        self.bar.reset_eta();
    }

    /// Prints a line on standard error above the bar.
    pub(crate) fn note(&self, text: &str) {
        // A line printed while the bar is visible would be overwritten by its next redraw.
        self.bar.suspend(|| output::note(text));
    }

    fn styled(show: bool, what: &'static str, total: u64, counts: &str) -> LateBar {
        // Hidden until the delay has passed. Its counts are updated meanwhile.
        let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::hidden());
        if !show || !stderr().is_terminal() {
            return LateBar { bar, waiting: None };
        }
        style(&bar, what, counts);
        let (stop, stopped) = mpsc::channel();
        let shown = bar.clone();
        let wait = move || {
            if stopped.recv_timeout(DELAY) == Err(RecvTimeoutError::Timeout) {
                shown.set_draw_target(ProgressDrawTarget::stderr());
                // Draws the bar now: the next update may be seconds away.
                shown.tick();
            }
        };
        // If the thread cannot be spawned, the bar is not shown and the work continues.
        let thread = thread::Builder::new().name("bar".into()).spawn(wait).ok();
        LateBar { bar, waiting: thread.map(|thread| (stop, thread)) }
    }

    /// Updates the bar.
    pub(crate) fn set(&self, done: u64, total: u64) {
        self.bar.set_length(total);
        self.bar.set_position(done);
    }

    /// Updates a bar and removes it when all work is done.
    pub(crate) fn advance(&mut self, done: usize, total: usize) {
        self.set(done as u64, total as u64);
        if done == total {
            self.finish();
        }
    }

    /// Removes the bar, or keeps it from appearing.
    pub(crate) fn finish(&mut self) {
        if let Some((stop, thread)) = self.waiting.take() {
            // Dropping the sender wakes the thread. Without the join it could show the bar after it
            // was cleared.
            drop(stop);
            let _ = thread.join();
            self.bar.finish_and_clear();
        }
    }
}

impl Drop for LateBar {
    fn drop(&mut self) {
        self.finish();
    }
}

/// A progress bar; hidden if standard error is not a terminal.
pub(crate) fn bar(show: bool, what: &'static str) -> ProgressBar {
    if !show || !stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(0);
    style(&bar, what, "{pos}/{len}");
    bar
}

fn style(bar: &ProgressBar, what: &'static str, counts: &str) {
    if let Ok(style) = ProgressStyle::with_template(&format!("{{msg:10}} {{wide_bar}} {counts} {{eta}} left"))
    {
        bar.set_style(style);
    }
    bar.set_message(what);
}
