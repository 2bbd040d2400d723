//! Progress bars that appear only for slow work.

use crate::output;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::{IsTerminal, stderr};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// Delay before a bar appears.
const PATIENCE: Duration = Duration::from_millis(500);

/// A bar on standard error that appears after half a second, and never if that is not a terminal.
pub(crate) struct LateBar {
    bar: ProgressBar,
    waiting: Option<(Sender<()>, JoinHandle<()>)>,
}

impl LateBar {
    /// Counts pieces of work.
    pub(crate) fn new(show: bool, what: &'static str, total: usize) -> LateBar {
        LateBar::styled(show, what, total as u64, "{pos}/{len}")
    }

    /// Counts bytes, with their rate.
    pub(crate) fn bytes(show: bool, what: &'static str) -> LateBar {
        LateBar::styled(show, what, 0, "{decimal_bytes}/{decimal_total_bytes} {decimal_bytes_per_sec}")
    }

    /// Begins to count at `done`: what is there already says nothing about the speed.
    pub(crate) fn begin_at(&self, done: u64, total: u64) {
        self.set(done, total);
        self.bar.reset_eta();
    }

    /// Prints a line on standard error above the bar.
    pub(crate) fn note(&self, text: &str) {
        self.bar.suspend(|| output::note(text));
    }

    fn styled(show: bool, what: &'static str, total: u64, counts: &str) -> LateBar {
        let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::hidden());
        if !show || !stderr().is_terminal() {
            return LateBar { bar, waiting: None };
        }
        style(&bar, what, counts);
        let (stop, stopped) = mpsc::channel();
        let shown = bar.clone();
        let wait = move || {
            if stopped.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout) {
                shown.set_draw_target(ProgressDrawTarget::stderr());
                shown.tick();
            }
        };
        // without the thread the bar is not shown; the work continues
        let thread = thread::Builder::new().name("bar".into()).spawn(wait).ok();
        LateBar { bar, waiting: thread.map(|thread| (stop, thread)) }
    }

    /// Updates the bar.
    pub(crate) fn set(&self, done: u64, total: u64) {
        self.bar.set_length(total);
        self.bar.set_position(done);
    }

    /// Updates a bar that goes away when all is done.
    pub(crate) fn advance(&mut self, done: usize, total: usize) {
        self.set(done as u64, total as u64);
        if done == total {
            self.finish();
        }
    }

    /// Takes the bar away, or keeps it from appearing.
    pub(crate) fn finish(&mut self) {
        if let Some((stop, thread)) = self.waiting.take() {
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

/// Sets the style of a bar.
fn style(bar: &ProgressBar, what: &'static str, counts: &str) {
    if let Ok(style) = ProgressStyle::with_template(&format!("{{msg:10}} {{wide_bar}} {counts} {{eta}} left"))
    {
        bar.set_style(style);
    }
    bar.set_message(what);
}
