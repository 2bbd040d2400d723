//! Every spelling that a release has had still means the same.

use super::Cli;
use clap::{CommandFactory, Parser};
use latent_types::printable;
use std::borrow::Cow;

/// Former command lines, and how they are written now.
const FORMER: &[(&str, &str)] = &[
    ("run --ctx 64 Hi", "run --ctx-size 64 Hi"),
    ("run --chunk 32 Hi", "run --batch-size 32 Hi"),
    ("run --max-tokens 5 Hi", "run --n-predict 5 Hi"),
    ("run --temperature 0.5 Hi", "run --temp 0.5 Hi"),
    ("run --penalty-last 7 Hi", "run --repeat-last-n 7 Hi"),
    ("run --dry-allowed 3 Hi", "run --dry-allowed-length 3 Hi"),
    ("run --system Brief Hi", "run --system-prompt Brief Hi"),
    ("run --mla split Hi", "run --mla separate Hi"),
    ("chat --system Brief --ctx 64", "chat --system-prompt Brief --ctx-size 64"),
    ("logits --tokens 1 --kl-base x", "logits --tokens 1 --kl-divergence-base x"),
    ("audit m.gguf", "verify m.gguf"),
    ("audit m.gguf --deep --json", "verify m.gguf --weights --json"),
    ("audit -m m.gguf --edges", "verify -m m.gguf --edges"),
    ("audit --rules", "verify --rules"),
    ("ops test q4_k --isa avx2", "kernels test q4_k --isa avx2"),
    ("ops perf linear --all", "kernels perf linear --all"),
    ("ops support --json", "kernels support --json"),
    ("bench --prompt 1 --generate 2 --depth 3", "bench --n-prompt 1 --n-gen 2 --n-depth 3"),
    ("profile --prompt 1 --generate 2 --depth 3", "profile --n-prompt 1 --n-gen 2 --n-depth 3"),
    // llama.cpp's other spellings
    ("run --cache-type-k f16 Hi", "run --cache-type f16 Hi"),
    (
        "run -c 64 -b 32 -t 2 -n 5 -s 1 Hi",
        "run --ctx-size 64 --batch-size 32 --threads 2 --n-predict 5 --seed 1 Hi",
    ),
    ("run --predict 5 --ubatch-size 32 Hi", "run -n 5 --batch-size 32 Hi"),
    ("run --reverse-prompt x Hi", "run --stop x Hi"),
    ("run -ngl 12 Hi", "run --n-gpu-layers 12 Hi"),
    ("serve --gpu-layers all", "serve --n-gpu-layers all"),
    ("bench --ngl auto", "bench --n-gpu-layers auto"),
];

/// Former flags that no other spelling replaces.
const KEPT: &[&str] = &[
    "run --save x Hi",
    "run --restore x Hi",
    "run --restore x --save y Hi",
    "chat --restore x",
    "inspect --contract config.json --json",
    "run --mla absorbed --isa avx2 --expanded-cache --pin cores --circuit x --precision exact --force Hi",
    "run --top-k 1 --top-p 1 --min-p 1 --typical 1 --repeat-penalty 1 --presence-penalty 1 --frequency-penalty 1 Hi",
    "run --dry-multiplier 1 --dry-base 1 --xtc-probability 1 --xtc-threshold 1 --no-model-sampling Hi",
    "run --logit-bias 1=2 --seed 3 --stop x --logprobs 2 --context-shift --keep 1 --tools x --think Hi",
    "run --no-think --allow-special --json --quiet Hi",
];

fn parsed(line: &str) -> String {
    let words = ["latent"].into_iter().chain(line.split(' ')).map(Into::into);
    let cli = Cli::read(words).unwrap_or_else(|error| panic!("{line}: {error}"));
    format!("{cli:?}")
}

#[test]
fn former_spellings_mean_the_same() {
    for (former, now) in FORMER {
        assert_eq!(parsed(former), parsed(now), "{former}");
    }
    for line in KEPT {
        parsed(line);
    }
}

#[test]
fn the_help_shows_new_spellings_alone() {
    for command in Cli::command().get_subcommands_mut() {
        let help = command.render_long_help().to_string();
        for former in [
            "--ctx ",
            "--chunk ",
            "--temperature",
            "--penalty-last",
            "--save",
            "--restore",
            "--deep",
            "--contract",
        ] {
            // `bench` has a flag of this name, which means something else
            let other = command.get_name() == "bench" && former == "--save";
            assert!(other || !help.contains(former), "{}: {former}", command.get_name());
        }
    }
}

#[test]
fn a_kept_cache_and_its_parts_exclude_each_other() {
    for line in [
        "run --prompt-cache x --save y Hi",
        "run --prompt-cache x --restore y Hi",
        "run --prompt-cache-ro Hi",
    ] {
        assert!(Cli::try_parse_from(["latent"].into_iter().chain(line.split(' '))).is_err(), "{line}");
    }
}

/// What would clear a screen, set a title, recolour, reorder or hide text, or forge a line.
const HOSTILE: &str =
    "x\u{1b}[2J\u{1b}]0;title\u{7}\u{1b}[35m\u{9b}1m\u{202e}\u{200f}\u{2066}\u{200b}\r\nerror: forged";

/// All command lines that a hostile word makes from a command and its subcommands: as a word, a flag, and the value of every flag.
fn hostile_lines(command: &clap::Command, before: &[String], lines: &mut Vec<Vec<String>>) {
    let mut add = |words: &[&str]| {
        lines.push(before.iter().cloned().chain(words.iter().map(|word| (*word).to_owned())).collect());
    };
    add(&[HOSTILE]);
    add(&[HOSTILE, HOSTILE, HOSTILE]);
    add(&[&format!("--{HOSTILE}")]);
    add(&[&format!("-{HOSTILE}")]);
    for flag in command.get_arguments().filter_map(|argument| argument.get_long()) {
        add(&[&format!("--{flag}"), HOSTILE]);
        add(&[&format!("--{flag}={HOSTILE}")]);
        add(&[&format!("--{flag}={HOSTILE}"), &format!("--{flag}={HOSTILE}")]);
        add(&[&format!("--{flag}{HOSTILE}")]);
    }
    for inner in command.get_subcommands() {
        hostile_lines(inner, &[before, &[inner.get_name().to_owned()]].concat(), lines);
    }
}

#[test]
fn wrong_usage_is_told_without_what_acts_on_a_terminal() {
    let mut lines = Vec::new();
    hostile_lines(&Cli::command(), &["latent".to_owned()], &mut lines);
    let mut refused = 0;
    for words in &lines {
        let Err(error) = Cli::read(words.iter().map(Into::into)) else { continue };
        refused += 1;
        // with clap's own styles, none of which is magenta
        let said = error.render().ansi().to_string();
        let acts = |c: char| {
            !matches!(c, '\n' | '\u{1b}') && matches!(printable(c.encode_utf8(&mut [0; 4])), Cow::Owned(_))
        };
        let hostile =
            ["\u{1b}[2J", "\u{1b}]", "\u{1b}[35m"].into_iter().any(|sequence| said.contains(sequence));
        assert!(!hostile && !said.contains(acts), "{words:?}: {said:?}");
        assert!(!said.lines().any(|line| line.starts_with("error: forged")), "{words:?}: {said}");
    }
    assert!(lines.len() > 1000 && refused * 2 > lines.len(), "{refused} of {}", lines.len());
    let error = Cli::read(["latent", "run", "--ctx-size", HOSTILE].map(Into::into)).unwrap_err();
    assert!(error.render().to_string().contains(r"x\u{1b}[2J\u{1b}]0;title\u{7}"), "{error}");
}
