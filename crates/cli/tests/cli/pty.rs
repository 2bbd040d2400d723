//! `latent chat` and `latent top` on a terminal.

use crate::support;
use crate::support::hub;
use crate::support::server::{MockAnswer, MockServer, deltas, events};
use nix::pty::{Winsize, openpty};
use nix::sys::signal::{Signal, kill};
use nix::sys::termios::{LocalFlags, tcgetattr};
use nix::unistd::Pid;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// A program on a terminal of 80 columns and 24 rows.
struct PtyTerminal {
    child: Child,
    keys: File,
    slave: OwnedFd,
    bytes: Receiver<Vec<u8>>,
    seen: String,
}

impl PtyTerminal {
    fn new(args: &[&str], variables: &[(&str, &str)]) -> PtyTerminal {
        let size = Winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 };
        let pty = openpty(Some(&size), None).unwrap();
        let stdio = || Stdio::from(pty.slave.try_clone().unwrap());
        let folder = tempfile::tempdir().unwrap();
        // Files are private even without the help of an umask.
        let mut command = Command::new("sh");
        command.args(["-c", "umask 0; exec \"$0\" \"$@\""]).arg(support::program());
        for name in ["LATENT_MODEL", "LATENT_API_KEY", "NO_COLOR", "VISUAL", "EDITOR"] {
            command.env_remove(name);
        }
        command
            .args(args)
            .env("TERM", "xterm")
            .env("XDG_STATE_HOME", folder.path())
            .envs(variables.iter().copied());
        let child = command.stdin(stdio()).stdout(stdio()).stderr(stdio()).spawn().unwrap();
        let mut out = File::from(pty.master.try_clone().unwrap());
        let (sender, bytes) = channel();
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(read @ 1..) = out.read(&mut buffer) {
                if sender.send(buffer[..read].to_vec()).is_err() {
                    return;
                }
            }
        });
        PtyTerminal { child, keys: File::from(pty.master), slave: pty.slave, bytes, seen: String::new() }
    }

    fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
    }

    /// Waits until the terminal has received this, and returns everything until then.
    fn until(&mut self, text: &str) -> String {
        let end = Instant::now() + Duration::from_secs(60);
        loop {
            if let Some(at) = self.seen.find(text) {
                let rest = self.seen.split_off(at + text.len());
                return std::mem::replace(&mut self.seen, rest);
            }
            let left = end.saturating_duration_since(Instant::now());
            match self.bytes.recv_timeout(left) {
                Ok(bytes) => self.seen.push_str(&String::from_utf8_lossy(&bytes)),
                Err(_) => panic!("no {text:?} in {:?}", self.seen),
            }
        }
    }

    /// Waits for the end; returns the exit code, and whether the terminal echoes again.
    fn end(mut self) -> (Option<i32>, bool) {
        let end = Instant::now() + Duration::from_secs(30);
        while self.child.try_wait().unwrap().is_none() {
            if Instant::now() > end {
                self.child.kill().unwrap();
                panic!("it does not end: {:?}", self.seen);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let echo =
            tcgetattr(&self.slave).unwrap().local_flags.contains(LocalFlags::ECHO | LocalFlags::ICANON);
        let code = self.child.wait().unwrap().code();
        (code, echo)
    }
}

impl Drop for PtyTerminal {
    /// A failed test leaves no process behind.
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn server() -> MockServer {
    MockServer::new(|path, before| match path {
        "/v1/models" => MockAnswer::Plain("200 OK", r#"{"data":[{"id":"fox"}]}"#.into()),
        "/v1/chat/completions" if before == 0 => MockAnswer::Stream(events(
            "Let me think.",
            &[
                "Some **bo",
                "ld** text\u{1b}]0;x\u{7}\n\n| a | b",
                " |\n|--|--|\n| 1 | 2 |\n\n```py\nx=1\n``",
                "`\nend",
            ],
        )),
        "/v1/chat/completions" => MockAnswer::Stream(events("", &["again"])),
        "/metrics" => MockAnswer::Plain(
            "200 OK",
            format!("latent_requests_running 3\nlatent_generated_tokens_total {}\n", before * 10),
        ),
        _ => MockAnswer::Plain("404 Not Found", String::new()),
    })
}

#[test]
fn a_user_chooses_between_several_models() {
    let files = ["a-Q4_K_M.gguf", "b-Q4_K_M.gguf"].map(|name| hub::large(name, hub::noise(1000, 1)));
    let hub = hub::Hub::new(files.into());
    let home = tempfile::tempdir().unwrap();
    let home = home.path().display().to_string();
    let variables = [("HOME", home.as_str()), ("LATENT_CACHE", &home), ("HF_ENDPOINT", &hub.url)];
    for (keys, code, pulled) in [("2\n", 0, "b-Q4_K_M.gguf"), ("3\n", 1, "error"), ("\u{4}", 1, "error")] {
        let mut terminal = PtyTerminal::new(&["pull", "hf:o/n"], &variables);
        let asked = terminal.until("[1 to 2]:");
        assert!(
            asked.contains("several models are Q4_K_M") && asked.contains("1  hf:o/n/a-Q4_K_M.gguf"),
            "{asked}"
        );
        terminal.press(keys);
        terminal.until(pulled);
        assert_eq!(terminal.end().0, Some(code));
    }
}

#[test]
fn answers_are_laid_out_and_questions_edited() {
    let server = server();
    let mut terminal = PtyTerminal::new(&["chat", "--url", &server.url], &[]);
    terminal.until("> ");
    terminal.press("Hello\r");
    let shown = terminal.until("tokens,");
    for part in [
        "\u{1b}[2mLet me think.\u{1b}[0m",
        "\u{1b}[0;1mbold\u{1b}[0m text\\u{1b}]0;x\\u{7}",
        "│ \u{1b}[0m2",
        "── py ─",
        "x=1\r",
        "end",
    ] {
        assert!(shown.contains(part), "no {part:?} in {shown:?}");
    }
    assert!(!shown.contains('\u{7}') && !shown.contains("```"), "{shown:?}");
    terminal.until("> ");
    // The last question is in the line editor, and is asked as edited.
    terminal.press("/edit\r");
    terminal.until("Hello");
    terminal.press(" there\r");
    terminal.until("again");
    terminal.until("tokens,");
    terminal.until("> ");
    terminal.press("/stats\r");
    terminal.until("2 answers");
    terminal.until("> ");
    terminal.press("\u{4}");
    assert_eq!(terminal.end(), (Some(0), true));
    let asked = server.questions();
    assert_eq!(asked[1].body["messages"], serde_json::json!([{"role": "user", "content": "Hello there"}]));
}

#[test]
fn plain_answers_and_no_colour_are_honoured() {
    let server = server();
    let mut terminal = PtyTerminal::new(&["chat", "--url", &server.url, "--plain"], &[]);
    terminal.until("> ");
    terminal.press("Hello\r");
    let shown = terminal.until("tokens,");
    assert!(
        shown.contains("Some **bold** text\\u{1b}]0;x") && shown.contains("[the model thinks]"),
        "{shown:?}"
    );
    let answer = shown.split("[the model thinks]").nth(1).unwrap();
    assert!(!answer.contains('\u{1b}'), "{answer:?}");
    terminal.until("> ");
    terminal.press("\u{4}");
    terminal.end();
    let coded = MockServer::new(|path, _| match path {
        "/v1/chat/completions" => MockAnswer::Stream(events("", &["run `ls` **now**"])),
        _ => MockAnswer::Plain("200 OK", "{}".into()),
    });
    let mut terminal = PtyTerminal::new(&["chat", "--url", &coded.url], &[("NO_COLOR", "1")]);
    terminal.until("> ");
    terminal.press("Hello\r");
    let shown = terminal.until("tokens,");
    assert!(shown.contains("`ls`") && !shown.contains(";36"), "{shown:?}");
    terminal.until("> ");
    terminal.press("\u{4}");
    terminal.end();
}

#[test]
fn a_long_question_goes_to_the_editor() {
    let server = server();
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("my editor.sh");
    std::fs::write(&script, "sed -i s/word/thing/g \"$1\"\n").unwrap();
    let editor = format!("sh '{}'", script.display());
    let mut terminal = PtyTerminal::new(&["chat", "--url", &server.url], &[("EDITOR", &editor)]);
    terminal.until("> ");
    terminal.press(&format!("{}\r", "word ".repeat(150)));
    terminal.until("tokens,");
    terminal.until("> ");
    terminal.press("/edit\r");
    terminal.until("again");
    terminal.until("tokens,");
    terminal.until("> ");
    terminal.press("\u{4}");
    assert_eq!(terminal.end(), (Some(0), true));
    let asked = server.questions();
    assert_eq!(asked[1].body["messages"][0]["content"], "thing ".repeat(150).trim());
}

#[test]
fn the_model_of_this_process_answers_on_a_terminal() {
    let args = ["chat", "--temp", "0", "-n", "24", "-t", "1", "--no-history"];
    let mut terminal = PtyTerminal::new(&args, &[]);
    terminal.until("> ");
    terminal.press("Tell me a story about a fox and a lantern.\r");
    terminal.until("(ended by -n)");
    terminal.until("[24 tokens");
    // Twice at an empty prompt.
    terminal.until("> ");
    terminal.press("\u{3}");
    terminal.until("again to leave");
    terminal.until("> ");
    terminal.press("\u{3}");
    assert_eq!(terminal.end(), (Some(0), true));
}

#[test]
fn a_run_without_a_prompt_is_a_chat() {
    let demo = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/mla-demo-Q4_K_M.gguf");
    let args = ["run", demo, "--temp", "0", "-n", "4", "-t", "1"];
    let mut terminal = PtyTerminal::new(&args, &[]);
    let first = terminal.until("> ");
    assert!(first.contains("parameters") && first.contains("1 thread"), "{first:?}");
    terminal.press("Hi\r");
    terminal.until("[4 tokens");
    terminal.until("> ");
    terminal.press("\u{4}");
    assert_eq!(terminal.end(), (Some(0), true));
    let mut refused = PtyTerminal::new(&["run", "--json"], &[]);
    refused.until("--json needs a prompt");
    assert_eq!(refused.end().0, Some(64));
}

#[test]
fn errors_and_verdicts_have_colours_unless_no_color_is_set() {
    let args = ["check", "--no-such"];
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/mla-demo-Q4_K_M.gguf");
    for (variables, coloured) in
        [(&[][..], true), (&[("NO_COLOR", "1")], false), (&[("TERM", "dumb")], false)]
    {
        let mut check = PtyTerminal::new(&["check", file], variables);
        let shown = check.until("supported      yes");
        assert_eq!(shown.contains("\u{1b}[32msupported"), coloured, "{variables:?}: {shown:?}");
        check.until("operations");
        assert_eq!(check.end().0, Some(0));
        let mut run = PtyTerminal::new(&["run", "/nowhere.gguf", "Hi"], variables);
        let shown = run.until("/nowhere.gguf");
        assert_eq!(shown.contains("\u{1b}[1;31merror:\u{1b}[0m"), coloured, "{variables:?}: {shown:?}");
        assert_eq!(run.end().0, Some(1));
    }
    let mut usage = PtyTerminal::new(&args, &[("NO_COLOR", "1")]);
    let shown = usage.until("--no-such");
    assert!(!shown.contains('\u{1b}'), "{shown:?}");
    assert_eq!(usage.end().0, Some(64));
}

#[test]
fn top_redraws_and_leaves_the_terminal_as_it_was() {
    let server = server();
    for how in ["q", "\u{3}", "term"] {
        let mut terminal = PtyTerminal::new(&["top", "--url", &server.url, "--interval", "0.1"], &[]);
        let shown = terminal.until("3 running");
        assert!(shown.contains("\u{1b}[?1049h") && shown.contains("latent top  http"), "{shown:?}");
        terminal.until("█");
        terminal.until("q leaves");
        if how == "term" {
            kill(Pid::from_raw(terminal.child.id() as i32), Signal::SIGTERM).unwrap();
        } else {
            terminal.press(how);
            if how == "\u{3}" {
                // Without a session of its own, the terminal sends no signal.
                kill(Pid::from_raw(terminal.child.id() as i32), Signal::SIGINT).unwrap();
            }
        }
        terminal.until("\u{1b}[?25h\u{1b}[?1049l");
        let (code, usual) = terminal.end();
        let expected = match how {
            "q" => 0,
            "term" => 143,
            _ => 130,
        };
        assert_eq!((code, usual), (Some(expected), true), "{how:?}");
    }
}

/// Every bidirectional control, and other characters that reorder, hide or interpret text.
fn hostile() -> String {
    let marks = ['\u{61c}', '\u{200e}', '\u{200f}', '\u{9b}', '\u{7f}', '\u{2028}', '\u{fff9}', '\u{e0041}'];
    marks
        .into_iter()
        .chain('\u{202a}'..='\u{202e}')
        .chain('\u{2066}'..='\u{2069}')
        .map(|c| format!("a{c}"))
        .collect()
}

#[test]
fn model_output_cannot_control_the_terminal() {
    let call = serde_json::json!({"choices": [{"delta": {"tool_calls": [
        {"index": 0, "id": "c", "function": {"name": hostile(), "arguments": hostile()}}]}}]});
    let text = deltas(
        &hostile(),
        &[&hostile(), "\n```\n", &hostile(), "\n```\n| ", &hostile(), " | b |\n|--|--|\n"],
    ) + &format!("data: {call}\n\n")
        + "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n";
    let server = MockServer::new(move |path, _| match path {
        "/v1/models" => {
            MockAnswer::Plain("200 OK", serde_json::json!({"data": [{"id": hostile()}]}).to_string())
        }
        "/v1/chat/completions" => MockAnswer::Stream(text.clone()),
        _ => MockAnswer::Plain("404 Not Found", String::new()),
    });
    for plain in [&[][..], &["--plain"]] {
        let mut terminal = PtyTerminal::new(&[&["chat", "--url", &server.url], plain].concat(), &[]);
        let mut shown = terminal.until("> ");
        terminal.press("Hello\r");
        shown += &terminal.until("tokens,");
        shown += &terminal.until("> ");
        let found: Vec<char> = hostile().chars().filter(|c| *c != 'a' && shown.contains(*c)).collect();
        assert!(found.is_empty(), "{found:?} {shown:?}");
        assert!(shown.matches(r"\u{202e}").count() >= 5, "{shown}");
        terminal.press("\u{4}");
        terminal.end();
    }
}

#[test]
fn usage_errors_keep_claps_colours_only() {
    let word = format!("x\u{1b}[2J\u{1b}[35m\u{1b}]0;title\u{7}{}", hostile());
    for args in [&["run", "--ctx-size", &word][..], &[&word], &["run", &format!("--{word}")], &["fly", &word]]
    {
        let mut terminal = PtyTerminal::new(args, &[("LATENT_HOST", "\u{1b}[2J")]);
        let shown = terminal.until("For more information");
        let found: Vec<char> = hostile().chars().filter(|c| *c != 'a' && shown.contains(*c)).collect();
        assert!(found.is_empty() && shown.contains("\u{1b}[1m"), "{found:?} {shown:?}");
        for sequence in ["\u{1b}[2J", "\u{1b}]", "\u{1b}[35m"] {
            assert!(!shown.contains(sequence), "{sequence:?} in {shown:?}");
        }
        assert_eq!(terminal.end().0, Some(64));
    }
}

#[test]
fn the_input_history_is_private() {
    use std::os::unix::fs::PermissionsExt;
    let server = server();
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().display().to_string();
    let mut terminal = PtyTerminal::new(&["chat", "--url", &server.url], &[("XDG_STATE_HOME", &state)]);
    terminal.until("> ");
    terminal.press("Hello\r");
    terminal.until("tokens,");
    terminal.until("> ");
    terminal.press("\u{4}");
    assert_eq!(terminal.end().0, Some(0));
    for (name, mode) in [("latent", 0o700), ("latent/history", 0o600)] {
        let found = std::fs::metadata(folder.path().join(name)).unwrap().permissions().mode() & 0o777;
        assert_eq!(found, mode, "{name}");
    }
}
