//! Messages and commands that the user types.

use crate::output::say;

pub(super) const GREETING: &str = "/help lists the commands; Alt-Enter begins a new line; Ctrl-D leaves.";

/// Commands and their descriptions, in the order of /help.
// A test keeps the lines within 80 columns, the usual width of a terminal.
const HELP: [(&str, &str); 12] = [
    ("/help", "show this"),
    ("/regen", "answer the last question again"),
    ("/edit [TEXT]", "change the last question, and ask it instead"),
    ("/undo", "remove the last question and its answer"),
    ("/clear", "clear the conversation, except for the system message"),
    ("/system [TEXT]", "show the system message, or set it (- removes it)"),
    ("/tokens", "how full the context is (also /context)"),
    ("/stats", "tokens and speed of the conversation so far"),
    ("/save FILE", "save the conversation and its cache; a .json file: the text"),
    ("/load FILE", "continue a saved conversation (also /restore)"),
    ("/quit", "leave, as Ctrl-D does"),
    ("//TEXT", "a message that begins with a slash; or put a space before it"),
];

/// Completions. A final space if arguments follow.
pub(super) const COMMANDS: [&str; 14] = [
    "/help",
    "/regen",
    "/edit ",
    "/undo",
    "/clear",
    "/system ",
    "/tokens",
    "/context",
    "/stats",
    "/save ",
    "/load ",
    "/restore ",
    "/quit",
    "/exit",
];

const KEYS: &str = "Alt-Enter or Ctrl-J, or \\ and Enter, begin a new line. Ctrl-C stops an answer, clears what is typed, and at an empty \
                    prompt leaves when it is pressed twice.";

/// The meaning of a line.
pub(super) enum LineRequest<'l> {
    Nothing,
    Message(&'l str),
    Command(&'l str, &'l str),
}

impl LineRequest<'_> {
    /// Parses a line. A slash in the first column makes a command. Two slashes, or a space before
    /// the slash, make a message that begins with one.
    pub(super) fn of(line: &str) -> LineRequest<'_> {
        let text = line.trim();
        match line.strip_prefix('/') {
            _ if text.is_empty() => LineRequest::Nothing,
            // `line` begins with a slash, so `text` was trimmed at its end only and begins with it
            // too.
            Some(rest) if rest.starts_with('/') => LineRequest::Message(&text[1..]),
            Some(_) => {
                let (name, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
                LineRequest::Command(name, rest.trim())
            }
            None => LineRequest::Message(text),
        }
    }
}

/// Lists the commands.
pub(super) fn help() {
    for (command, what) in HELP {
        say(&format!("{command:<16}{what}"));
    }
    say(KEYS);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slash_makes_a_command_and_two_a_message() {
        let message = |line| match LineRequest::of(line) {
            LineRequest::Message(text) => Some(text),
            _ => None,
        };
        assert_eq!(message("//usr is a folder "), Some("/usr is a folder"));
        assert_eq!(message(" /usr is a folder"), Some("/usr is a folder"));
        assert_eq!(message("and/or"), Some("and/or"));
        assert_eq!(message("/usr"), None);
        assert!(matches!(LineRequest::of("/save  a b.kv "), LineRequest::Command("/save", "a b.kv")));
        assert!(matches!(LineRequest::of(" \n "), LineRequest::Nothing));
    }

    #[test]
    fn help_fits_into_80_columns() {
        for (command, what) in HELP {
            assert!(format!("{command:<16}{what}").chars().count() <= 80, "{command}");
        }
        for line in crate::args::CHAT_HELP.lines().chain([GREETING]) {
            assert!(line.chars().count() <= 80, "{line}");
        }
    }
}
