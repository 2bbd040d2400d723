//! Standard streams that are full or closed, side files that never end, and signals.

use crate::support::{latent, program};
use std::fs::OpenOptions;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};

fn process(args: &[&str]) -> Command {
    let mut process = Command::new(program());
    process
        .args(args)
        .env_remove("LATENT_MODEL")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .stdin(Stdio::null());
    process
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_standard_error_does_not_stop_a_command() {
    let full = || OpenOptions::new().write(true).open("/dev/full").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("page.html").display().to_string();
    for (args, code) in [
        (&["run", "-n", "4", "Hi"][..], 0),
        (&["graph", "--html", &page], 0),
        (&["logits", "--tokens", "1"], 0),
        (&["chat"], 0),
        (&["run", "--no-such-flag"], 64),
        (&["inspect", "-m", "/no/such/file"], 1),
    ] {
        assert_eq!(process(args).stderr(full()).status().unwrap().code(), Some(code), "{args:?}");
    }
    // A full standard output is reported as an error.
    let output = process(&["inspect"]).stdout(full()).stderr(Stdio::piped()).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && stderr.contains("No space left"), "{stderr}");
}

#[test]
fn a_closed_standard_error_does_not_stop_a_command() {
    let program = program();
    for (script, code) in [("exec \"$0\" run -n 2 Hi 2>&-", 0), ("exec \"$0\" run --frob 2>&-", 64)] {
        let mut shell = Command::new("sh");
        let status = shell
            .args(["-c", script])
            .arg(&program)
            .env_remove("LATENT_MODEL")
            .stdout(Stdio::null())
            .status();
        assert_eq!(status.unwrap().code(), Some(code), "{script}");
    }
}

#[test]
fn side_files_that_never_end_are_refused_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let large = folder.path().join("large");
    OpenOptions::new().write(true).create_new(true).open(&large).unwrap().set_len(1 << 37).unwrap();
    let page = folder.path().join("page.html").display().to_string();
    let own = folder.path().display().to_string();
    let pipe = pipe.display().to_string();
    for args in [
        &["run", "-n", "1", "-q", "Hi", "--circuit"][..],
        &["inspect", "--circuit"],
        &["verify", "--circuit"],
        &["run", "-n", "1", "-q", "Hi", "--restore"],
        &["graph", "--html", &page, "--profile"],
        &["diff", "--dump"],
    ] {
        for (path, word) in [(pipe.as_str(), "a pipe"), ("/dev/zero", "a device"), (&own, "a folder")] {
            let output = latent(&[args, &[path]].concat()).output().unwrap();
            let stderr = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.code() == Some(1) && stderr.contains(word), "{args:?} {path}: {stderr}");
            assert!(stderr.contains("expected a regular file"), "{args:?} {path}: {stderr}");
        }
        let output = latent(&[args, &[&large.display().to_string()]].concat()).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        let words = ["the limit of", "LATNTKV1"];
        assert!(words.iter().any(|word| stderr.contains(word)), "{args:?}: {stderr}");
    }
}

#[test]
fn standard_input_is_bounded() {
    for args in [&["run", "-n", "1", "-q"][..], &["tokenize"]] {
        let mut child = process(args).stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut input = child.stdin.take().unwrap();
        let piece = vec![b'a'; 1 << 20];
        // The reader stops, and the pipe breaks.
        while std::io::Write::write_all(&mut input, &piece).is_ok() {}
        drop(input);
        let mut stderr = String::new();
        child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(64), "{stderr}");
        assert!(stderr.contains("more than 64 MB"), "{stderr}");
    }
}

fn kill(child: &Child, signal: &str) {
    assert!(Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap().success());
}

/// A story that takes minutes, because the context shifts.
fn endless(more: &[&str]) -> Child {
    let args = [
        &["run", "-t", "1", "--temp", "1.5", "--top-k", "0", "--top-p", "1", "--min-p", "0"][..],
        &[
            "--logit-bias",
            "1=-inf",
            "--context-shift",
            "-n",
            "200000",
            "Tell me a story about a fox and a lantern.",
        ],
        more,
    ];
    process(&args.concat()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Waits for the first text, sends the signal, and returns the rest of the output.
fn stopped(mut child: Child, signal: &str) -> (String, String, ExitStatus) {
    let mut out = BufReader::new(child.stdout.take().unwrap());
    assert!(!out.fill_buf().unwrap().is_empty());
    kill(&child, signal);
    let (mut text, mut said) = (Vec::new(), String::new());
    out.read_to_end(&mut text).unwrap();
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    (String::from_utf8_lossy(&text).into_owned(), said, child.wait().unwrap())
}

#[test]
fn signals_keep_what_is_done_and_save_the_cache() {
    let folder = tempfile::tempdir().unwrap();
    for (signal, code, word) in [("-INT", 130, "Ctrl-C"), ("-TERM", 143, "SIGTERM"), ("-HUP", 129, "SIGHUP")]
    {
        let path = folder.path().join(format!("story{signal}.kv"));
        let name = path.display().to_string();
        let (text, said, status) = stopped(endless(&["--save", &name]), signal);
        assert_eq!(status.code(), Some(code), "{said}");
        assert!(!text.is_empty() && said.contains(&format!("ended by {word}")), "{said}");
        let again = latent(&["run", "-q", "-n", "1", "--restore", &name, "Hi"]).output().unwrap();
        assert!(again.status.success(), "{}", String::from_utf8_lossy(&again.stderr));
    }
    let left = std::fs::read_dir(folder.path()).unwrap().count();
    assert_eq!(left, 3);
}

/// Whether a process blocks SIGTERM: its signal thread then waits for it.
#[cfg(target_os = "linux")]
fn watches(process: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigBlk:")).unwrap();
    u64::from_str_radix(mask.trim(), 16).unwrap() & (1 << 14) != 0
}

#[cfg(target_os = "linux")]
#[test]
fn a_signal_ends_a_read_of_standard_input() {
    for (args, signal, code) in [(&["run"][..], "-TERM", 143), (&["tokenize"], "-INT", 130)] {
        let mut child = process(args).stdin(Stdio::piped()).spawn().unwrap();
        // It stays open.
        let _input = child.stdin.take();
        // Before that, the signal kills it.
        while !watches(child.id()) {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        kill(&child, signal);
        assert_eq!(child.wait().unwrap().code(), Some(code), "{args:?}");
    }
}

/// As under `nohup`.
#[cfg(target_os = "linux")]
#[test]
fn an_ignored_sighup_stays_ignored() {
    let mut shell = Command::new("sh");
    let script = "trap '' HUP; exec \"$0\" run -q -n 60 -t 1 --logit-bias 1=-inf Hi";
    shell.args(["-c", script]).arg(program()).env_remove("LATENT_MODEL");
    let mut child = shell.stdout(Stdio::piped()).spawn().unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    assert!(!out.fill_buf().unwrap().is_empty());
    kill(&child, "-HUP");
    out.read_to_end(&mut Vec::new()).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn a_signal_while_a_file_is_written_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("big.gguf");
    let name = target.display().to_string();
    // Some gigabytes, so that it is not done before the signal.
    let mut child =
        process(&["make-model", "deepseek-v2-lite", "F32", &name, "--layers", "4"]).spawn().unwrap();
    let part = |folder: &Path| std::fs::read_dir(folder).unwrap().next().map(|e| e.unwrap().file_name());
    while part(folder.path()).is_none() {
        assert!(child.try_wait().unwrap().is_none(), "it ended before");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    kill(&child, "-TERM");
    assert_eq!(child.wait().unwrap().code(), Some(143));
    assert_eq!(part(folder.path()), None);
}
