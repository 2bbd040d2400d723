//! The terminal's other screen, which is left in every case: at the end, by a signal, by a panic.

use crate::{interrupt, output};
use anyhow::Result;
use std::io::{IsTerminal, Read, stdin};
use std::sync::mpsc::{Receiver, channel};
use std::thread;

/// While this lives, the terminal shows the program's own screen.
pub(super) struct TopScreen(());

impl TopScreen {
    pub(super) fn enter() -> Result<TopScreen> {
        interrupt::full_screen();
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |about| {
            // its message belongs on the usual screen
            interrupt::restore_terminal();
            before(about);
        }));
        let screen = TopScreen(());
        output::controls("\u{1b}[?1049h\u{1b}[?25l")?;
        keys_at_once();
        Ok(screen)
    }

    /// Shows lines from the top; what does not fit is left out.
    pub(super) fn show(&self, lines: &[String], (columns, rows): (usize, usize)) -> Result<()> {
        let mut out = String::from("\u{1b}[H");
        for (i, line) in lines.iter().take(rows).enumerate() {
            if i > 0 {
                out.push_str("\r\n");
            }
            let line = super::draw::cut(line, columns);
            // the first is the title
            let (on, off) = if i == 0 { ("\u{1b}[1m", "\u{1b}[0m") } else { ("", "") };
            out.push_str(&format!("{on}{line}{off}"));
            if super::draw::cut(&line, columns.saturating_sub(1)).len() == line.len() {
                out.push_str("\u{1b}[K");
            }
        }
        out.push_str("\u{1b}[J");
        output::controls(&out)
    }
}

impl Drop for TopScreen {
    fn drop(&mut self) {
        interrupt::restore_terminal();
    }
}

/// Keys come one by one and are not shown; Ctrl-C stays a signal, Ctrl-Z would leave a screen that is no longer drawn.
fn keys_at_once() {
    #[cfg(unix)]
    {
        use nix::sys::termios::{LocalFlags, SetArg, SpecialCharacterIndices, tcgetattr, tcsetattr};
        let Ok(mut terminal) = tcgetattr(stdin()) else { return };
        terminal.local_flags.remove(LocalFlags::ICANON | LocalFlags::ECHO);
        terminal.control_chars[SpecialCharacterIndices::VSUSP as usize] = 0;
        // without it a key needs Enter, so continue
        let _ = tcsetattr(stdin(), SetArg::TCSANOW, &terminal);
    }
}

/// Keys as they are pressed.
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
        // without the thread Ctrl-C still leaves
        let _ = thread::Builder::new().name("keys".into()).spawn(read);
    }
    keys
}
