//! Names out of files, and paths, never reach the terminal with characters that it acts on.

use crate::support;
use crate::support::latent;
use std::path::Path;
use std::process::Output;

/// As long as the name that `make-model tiny-dense` gives: a window's title, a cleared screen, a
/// forged line, and a C1 control.
const NAME: &str = "\u{1b}]0;pwned\u{7}\u{1b}[2J\n\u{9b}";

/// A model of that name.
fn model(folder: &Path) -> String {
    let path = folder.join("named.gguf").display().to_string();
    latent(&["make-model", "tiny-dense", "Q8_0", &path, "--layers", "1"]).assert().success();
    let mut bytes = std::fs::read(&path).unwrap();
    let old = b"random tiny-dense";
    assert_eq!(old.len(), NAME.len());
    let at = bytes.windows(old.len()).position(|window| window == old).unwrap();
    bytes[at..at + old.len()].copy_from_slice(NAME.as_bytes());
    std::fs::write(&path, bytes).unwrap();
    path
}

/// What a command says on both streams, in which nothing may act on a terminal.
fn said(args: &[&str], output: &Output) -> String {
    let text = String::from_utf8(output.stdout.clone()).unwrap() + &String::from_utf8_lossy(&output.stderr);
    let acts = |c: char| {
        (c.is_control() && c != '\n')
            || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    assert!(!text.contains(acts), "{args:?}: {text:?}");
    text
}

#[test]
fn a_name_in_a_file_is_escaped_wherever_it_is_shown() {
    let folder = tempfile::tempdir().unwrap();
    let model = model(folder.path());
    let packed = folder.path().join("packed.latent").display().to_string();
    let shown = r"\u{1b}]0;pwned\u{7}\u{1b}[2J\n\u{9b}";
    for (args, named) in [
        (&["run", "-m", &model, "--tokens", "1", "-n", "0"][..], true),
        (&["inspect", &model], true),
        (&["check", &model], false),
        (&["inspect", &model, "--metadata"], false),
        (&["inspect", &model, "--tensors"], false),
        (&["verify", &model], false),
        (&["graph", "-m", &model], false),
        (&["bench", "-m", &model, "-p", "1", "-n", "0", "-r", "1"], true),
        (&["diff", "-m", &model], false),
        (&["pack", "-m", &model, "-o", &packed], false),
        (&["inspect", "-m", &packed], true),
        // refused: it has no chat template
        (&["chat", "-m", &model], false),
    ] {
        let output = latent(args).write_stdin("").output().unwrap();
        let text = said(args, &output);
        assert!(!named || text.contains(shown), "{args:?}: {text}");
    }
    // JSON says the name itself, in escapes of its own
    let args = ["inspect", "--json", "-m", &model];
    let text = said(&args, &latent(&args).output().unwrap());
    let report: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(report["contract"]["name"], NAME);
}

#[test]
fn a_path_is_escaped_in_errors_and_reports() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a\u{1b}[2Jb\nerror: forged\u{202e}\u{200f}\u{61c}.gguf");
    let name = path.display().to_string();
    for bytes in [None, Some(&b"some text\n"[..]), Some(b"GGUF\x03\0\0\0"), Some(b"")] {
        if let Some(bytes) = bytes {
            std::fs::write(&path, bytes).unwrap();
        }
        for args in [
            &["run", "-m", &name, "Hi"][..],
            &["inspect", &name],
            &["graph", &name],
            &["verify", &name],
            &["tokenize", "-m", &name, "Hi"],
            &["pack", "-m", &name],
            &["run", "--circuit", &name, "Hi"],
            &["run", "--restore", &name, "Hi"],
            &["diff", "--dump", &name],
        ] {
            let output = latent(args).output().unwrap();
            let text = said(args, &output);
            assert!(
                !output.status.success()
                    && text.contains(r"a\u{1b}[2Jb\nerror: forged\u{202e}\u{200f}\u{61c}"),
                "{args:?}: {text}"
            );
            assert_eq!(text.lines().filter(|line| line.starts_with("error:")).count(), 1, "{args:?}: {text}");
        }
    }
    std::fs::copy(support::demo(), &path).unwrap();
    for args in [&["inspect", &name][..], &["check", &name], &["verify", &name]] {
        assert!(said(args, &latent(args).output().unwrap()).contains(r"\u{1b}[2J"));
    }
}

/// The text of a model is passed on unchanged if the output is not a terminal.
#[test]
fn text_that_is_piped_keeps_every_byte() {
    let args = ["run", "-q", "-n", "24", "--temp", "0", "Tell me a story about a fox and a lantern."];
    let piped = latent(&args).output().unwrap().stdout;
    let whole = latent(&[&args[..], &["--json"]].concat()).output().unwrap().stdout;
    let whole: serde_json::Value = serde_json::from_slice(&whole).unwrap();
    assert_eq!(String::from_utf8(piped).unwrap(), format!("{}\n", whole["text"].as_str().unwrap()));
}
