//! The terminal's alternate screen. It is left in every case: at the end, after a signal, after a
//! panic.

// A few control sequences by hand: ratatui with crossterm would be 62 packages and 41 s of build
// time on one core.

use crate::{interrupt, output};
use anyhow::Result;
use std::io::{IsTerminal, Read, stdin};
use std::sync::mpsc::{Receiver, channel};
use std::thread;

/// While this lives, the terminal shows the alternate screen.
pub(super) struct TopScreen(());

impl TopScreen {
    pub(super) fn enter() -> Result<TopScreen> {
        // Before the sequence is sent: a signal in between then leaves the screen once too often,
        // which is harmless.
        interrupt::full_screen();
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |about| {
            // The panic message must be printed on the normal screen: leaving the alternate screen
            // erases it.
            interrupt::restore_terminal();
            before(about);
        }));
        let screen = TopScreen(());
        // Enter the alternate screen and hide the cursor (xterm's private modes 1049 and 25).
        output::controls("\u{1b}[?1049h\u{1b}[?25l")?;
        unbuffer_keys();
        Ok(screen)
    }

    /// Shows lines from the top. Lines that do not fit are omitted.
    pub(super) fn show(&self, lines: &[String], (columns, rows): (usize, usize)) -> Result<()> {
        // The cursor moves home and rows are overwritten. Clearing the screen first would flicker.
        let mut out = String::from("\u{1b}[H");
        for (i, line) in lines.iter().take(rows).enumerate() {
            if i > 0 {
                out.push_str("\r\n");
            }
            let line = super::draw::cut(line, columns);
            // The first line is the title.
            let (on, off) = if i == 0 { ("\u{1b}[1m", "\u{1b}[0m") } else { ("", "") };
            out.push_str(&format!("{on}{line}{off}"));
            // A row that fills the last column leaves the cursor on it (pending wrap, xterm): EL
            // would erase that last character.
            if super::draw::cut(&line, columns.saturating_sub(1)).len() == line.len() {
                out.push_str("\u{1b}[K");
            }
        }
        // Erases rows of a longer previous view.
        out.push_str("\u{1b}[J");
        output::controls(&out)
    }
}

impl Drop for TopScreen {
    fn drop(&mut self) {
        interrupt::restore_terminal();
    }
}

/// Switches the terminal to single keys without echo. Ctrl-C stays a signal.
fn unbuffer_keys() {
    #[cfg(unix)]
    {
        use nix::sys::termios::{LocalFlags, SetArg, SpecialCharacterIndices, tcgetattr, tcsetattr};
        let Ok(mut terminal) = tcgetattr(stdin()) else { return };
        terminal.local_flags.remove(LocalFlags::ICANON | LocalFlags::ECHO);
        // Ctrl-Z would stop the process on the alternate screen with a hidden cursor, and the shell
        // would print over it.
        terminal.control_chars[SpecialCharacterIndices::VSUSP as usize] = 0;
        // If this fails, a key needs Enter after it.
        let _ = tcsetattr(stdin(), SetArg::TCSANOW, &terminal);
    }
}

/// The keys that the user presses.
pub(super) fn keys() -> Receiver<u8> {
    let (sender, keys) = channel();
    if stdin().is_terminal() {
        let read = move || {
            for byte in stdin().lock().bytes().map_while(Result::ok) {
                if sender.send(byte).is_err() {
                    return;
                }
            }
        };
        // Without the thread, Ctrl-C still ends the program.
        let _ = thread::Builder::new().name("keys".into()).spawn(read);
    }
    keys
}
