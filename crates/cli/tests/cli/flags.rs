//! Every numeric flag of every command with values at which sums and products overflow: an answer
//! or an error, never a panic.

use crate::support::latent;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A command with the flags that make it quick, `{}` being a model of one layer.
const COMMANDS: [(&str, &str); 20] = [
    ("run", "-m {} -q -n 1 -t 1 --ctx-size 64 --tokens 1,2"),
    ("chat", "-m {} -n 1 -t 1 --ctx-size 64"),
    ("logits", "-m {} -t 1 --ctx-size 64 --tokens 1,2,3,4"),
    ("inspect", "-m {}"),
    ("graph", "-m {}"),
    ("verify", "-m {} -t 1"),
    ("tokenize", "-m {} Hi"),
    ("make-model", "tiny-dense F32 --layers 1 --force out.gguf"),
    ("pack", "-m {} -t 1 --force -o out.latent"),
    ("quantize", "-m {} -t 1 --dry-run Q8_0"),
    ("bench", "-m {} -t 1 -p 1 -n 1 -r 1"),
    ("profile", "-m {} -t 1 -p 1 -n 1"),
    ("kernels test", "nosuch"),
    ("kernels perf", "rms_norm --isa portable --millis 1 --memory 1"),
    ("diff", "-m {} -t 1 --tokens 1,2"),
    ("dump", "-m {} -t 1 --tokens 1,2 --force out.st"),
    ("graph plan", "-m {}"),
    ("eval perplexity", "-m {} -t 1 --ctx-size 64 text"),
    ("eval routing", "-m {} -t 1 --ctx-size 64 text"),
    ("eval retrieval", "-m {} -t 1 --lengths 64 --depths 0 --trials 1 -n 1"),
];

/// Value names of numbers in help.
const NUMBERS: [&str; 12] =
    ["N", "K", "T", "P", "X", "TOKENS", "ROWS", "MS", "MIB", "IDS", "SEED", "ID=BIAS"];

/// The last three are tested only with `LATENT_TEST_EXHAUSTIVE`: fewer flags treat them specially.
const VALUES: [&str; 5] = ["0", "18446744073709551615", "1", "1e39", "99999999999999999999999"];

/// The numeric flags of a command: the long form, and the short one if any.
fn flags(command: &str) -> Vec<(Option<String>, String)> {
    let words: Vec<&str> = ["help"].into_iter().chain(command.split(' ').take(2)).collect();
    let words = if command == "graph plan" { vec!["help", "graph"] } else { words };
    let help = String::from_utf8(latent(&words).output().unwrap().stdout).unwrap();
    let mut found = Vec::new();
    for line in help.lines().map(str::trim_start).filter(|line| line.starts_with('-')) {
        let Some((names, value)) = line.split_once('<') else { continue };
        let value = value.split('>').next().unwrap_or_default();
        let mut names = names.split(',').map(|name| name.trim().to_owned());
        let (first, second) = (names.next().unwrap(), names.next());
        if NUMBERS.contains(&value)
            || ["seed", "layers"].iter().any(|word| line.contains(&format!("--{word} <")))
        {
            let (short, long) = match second {
                Some(long) => (Some(first), long),
                None => (None, first),
            };
            found.push((short, long));
        }
    }
    found
}

/// The quick flags of a command, without the tested one.
fn without(base: &str, model: &str, (short, long): &(Option<String>, String)) -> Vec<String> {
    let mut words = Vec::new();
    let mut skip = false;
    for word in base.split(' ').filter(|word| !word.is_empty()) {
        if skip {
            skip = false;
        } else if Some(word) == short.as_deref() || word == long {
            skip = true;
        } else {
            words.push(word.replace("{}", model));
        }
    }
    words
}

#[test]
fn no_number_makes_a_command_panic() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("tiny.gguf").display().to_string();
    latent(&["make-model", "tiny-dense", "Q8_0", &model, "--layers", "1"]).assert().success();
    std::fs::write(folder.path().join("text"), "a word ".repeat(200)).unwrap();
    let values = if latent_testing::exhaustive() { &VALUES[..] } else { &VALUES[..2] };
    let mut cases = Vec::new();
    for (command, base) in COMMANDS {
        let flags = flags(command);
        assert!(!flags.is_empty() || matches!(command, "tokenize" | "kernels test"), "no flags of {command}");
        for flag in &flags {
            for value in values {
                let mut words: Vec<String> = command.split(' ').map(str::to_owned).collect();
                words.extend(without(base, &model, flag));
                words.push(format!("{}={value}", flag.1));
                cases.push(words);
            }
        }
    }
    assert!(cases.len() > 66 * values.len(), "only {} cases", cases.len());
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some(words) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                    check(words, folder.path());
                }
            });
        }
    });
}

fn check(words: &[String], folder: &std::path::Path) {
    let args: Vec<&str> = words.iter().map(String::as_str).collect();
    let output = latent(&args).current_dir(folder).write_stdin("").output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    // 101 is a panic. No code means a signal or a timeout.
    assert!(matches!(output.status.code(), Some(0 | 1 | 2 | 64)), "{words:?}: {:?} {stderr}", output.status);
    assert!(!stderr.contains("panicked"), "{words:?}: {stderr}");
    // Different sides are not an error.
    if output.status.code() != Some(0) && words[0] != "diff" {
        assert!(stderr.lines().any(|line| line.starts_with("error:")), "{words:?}: {stderr}");
    }
}

#[test]
fn numbers_out_of_range_are_named_with_their_range() {
    let most = "18446744073709551615";
    for (words, range) in [
        (&["bench", "-d", most][..], "0..=1073741824"),
        (&["bench", "-p", most], "0..=1073741824"),
        (&["profile", "-d", most], "0..=1073741824"),
        (&["profile", "-n", most], "0..=1073741824"),
        (&["graph", "plan", "--rows", most], "expected 1 to 8192"),
        (&["graph", "plan", "--rows", "0"], "expected 1 to 8192"),
        (&["run", "--ctx-size", most, "Hi"], "0..=1073741824"),
        (&["diff", "--b", "ctx-size=18446744073709551615"], "0..=1073741824"),
        (&["make-model", "tiny-dense", "F32", "never.gguf", "--layers", "0"], "1..=512"),
        (&["make-model", "tiny-dense", "F32", "never.gguf", "--shards", most], "1..=4096"),
    ] {
        let output = latent(words).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(64) && stderr.contains(range), "{words:?}: {stderr}");
    }
    // Numbers that are in range separately, but too many together.
    for words in [
        &["bench", "--ctx-size", "64", "-d", "1073741824", "--sequences", "512"][..],
        &["profile", "--ctx-size", "64", "-d", "1073741824"],
    ] {
        let output = latent(words).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.code() == Some(64) && stderr.contains("--ctx-size is 64"),
            "{words:?}: {stderr}"
        );
    }
}

/// The metadata of tiny-v3's file.
const YARN: [&str; 6] = ["--rope-scaling", "yarn", "--rope-scale", "40", "--yarn-orig-ctx", "256"];

#[test]
fn metadata_flags_change_how_positions_are_scaled() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (file, directory) = (path("a.gguf"), path("folder"));
    for model in [&file, &directory] {
        assert!(latent(&["make-model", "tiny-v3", "F32", model]).output().unwrap().status.success());
    }
    let run_on = |model: &str, more: &[&str]| {
        let words = ["logits", model, "-t", "1", "--tokens", "1,2,3,4,5,6"];
        latent(&[&words[..], more].concat()).output().unwrap()
    };
    let run = |more: &[&str]| run_on(&file, more);
    let logits = |more: &[&str]| {
        let out = run(more);
        assert!(out.status.success(), "{more:?}: {}", String::from_utf8_lossy(&out.stderr));
        out.stdout
    };
    let own = logits(&[]);
    assert!(logits(&YARN) == own);
    let unscaled = logits(&["--rope-scaling", "none"]);
    let base = logits(&["--rope-freq-base", "20"]);
    assert!(unscaled != own && base != own && base != unscaled);
    assert!(logits(&["--override-kv", "deepseek2.rope.freq_base=float:20"]) == base);
    assert!(logits(&["--rope-freq-scale", "0.5"]) != own);
    let mixed = |share: &str| logits(&["--yarn-ext-factor", share]);
    assert!(mixed("1") == own && mixed("-1") == own);
    assert!(mixed("0") != own && mixed("0.5") != own && mixed("0.5") != mixed("0"));
    for (flags, word) in [
        (&["--override-kv", "deepseek2.rope.freq_base=int:7"][..], "a value of type int cannot replace"),
        (&["--override-kv", "deepseek2.block_count=int:77"], "blk.3.ffn_gate_inp.weight is missing"),
        (&["--yarn-beta-fast", "0.5", "--yarn-beta-slow", "2"], "yarn_beta_fast"),
    ] {
        let out = run(flags);
        let problem = String::from_utf8_lossy(&out.stderr);
        assert!(!out.status.success() && problem.contains(word), "{flags:?}: {problem}");
    }
    let refused = run_on(&directory, &["--rope-scale", "2"]);
    assert!(!refused.status.success() && String::from_utf8_lossy(&refused.stderr).contains("config.json"));
    // A session saved with one model does not fit the other.
    let saved = path("a.kv");
    let talk = |more: &[&str]| {
        let words =
            ["run", "-m", &file, "-t", "1", "-n", "2", "-q", "--tokens", "1,2,3", "--prompt-cache", &saved];
        latent(&[&words[..], more].concat()).output().unwrap()
    };
    assert!(talk(&[]).status.success() && talk(&[]).status.success());
    let other = talk(&["--rope-freq-base", "20"]);
    assert!(!other.status.success(), "{}", String::from_utf8_lossy(&other.stderr));
}
