//! Every spelling that a release has had still means the same.

use super::{Cli, command};
use latent_testing::sample_of;
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
    // Other spellings of llama.cpp.
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

fn read(line: &str) -> Result<Cli, clap::Error> {
    Cli::read(["latent"].into_iter().chain(line.split(' ')).map(Into::into))
}

fn parsed(line: &str) -> String {
    let cli = read(line).unwrap_or_else(|error| panic!("{line}: {error}"));
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
fn help_shows_only_new_spellings() {
    for command in command().get_subcommands_mut() {
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
fn prompt_cache_conflicts_with_restore_and_save() {
    for line in [
        "run --prompt-cache x --save y Hi",
        "run --prompt-cache x --restore y Hi",
        "run --prompt-cache-ro Hi",
    ] {
        assert!(read(line).is_err(), "{line}");
    }
}

/// Command lines with a positional argument, and the same with flags.
const POSITIONAL: &[(&str, &str)] = &[
    ("run m.gguf Hi", "run -m m.gguf -p Hi"),
    ("run m.gguf", "run -m m.gguf"),
    ("run hf:o/n:Q4_K_M Hi", "run -m hf:o/n:Q4_K_M -p Hi"),
    ("run Hi", "run -p Hi"),
    ("run -m m.gguf Hi", "run -m m.gguf -p Hi"),
    ("run -n 5 m.latent -q Hi", "run -n 5 -q -m m.latent -p Hi"),
    ("run src Hi", "run -m src -p Hi"),
    ("chat m.safetensors", "chat -m m.safetensors"),
    ("chat m.gguf Hi", "chat -m m.gguf -p Hi"),
    ("tokenize m.gguf Hi", "tokenize -m m.gguf -p Hi"),
    ("serve m.gguf", "serve -m m.gguf"),
    ("serve a=a.gguf b=b.gguf", "serve -m a=a.gguf -m b=b.gguf"),
    ("bench m.gguf -p 8", "bench -m m.gguf -p 8"),
    ("profile m.gguf", "profile -m m.gguf"),
    ("logits m.gguf --tokens 1,2", "logits -m m.gguf --tokens 1,2"),
    ("logits --tokens 1,2 m.gguf", "logits -m m.gguf --tokens 1,2"),
    ("diff m.gguf", "diff -m m.gguf"),
    ("pack m.gguf", "pack -m m.gguf"),
    ("imatrix m.gguf -f t", "imatrix -m m.gguf -f t"),
    ("dump m.gguf --tokens 1 out.st", "dump -m m.gguf --tokens 1 out.st"),
    ("plan-hosts m.gguf hosts.toml", "plan-hosts -m m.gguf hosts.toml"),
    ("eval perplexity m.gguf t", "eval perplexity -m m.gguf t"),
    ("eval kl m.gguf t", "eval kl -m m.gguf t"),
    ("eval choice m.gguf t", "eval choice -m m.gguf t"),
    ("eval questions m.gguf t", "eval questions -m m.gguf t"),
    ("eval routing m.gguf t", "eval routing -m m.gguf t"),
    ("eval retrieval m.gguf", "eval retrieval -m m.gguf"),
    ("eval weights m.gguf --base-model b", "eval weights -m m.gguf --base-model b"),
];

#[test]
fn the_first_positional_argument_is_the_model() {
    for (words, flags) in POSITIONAL {
        assert_eq!(parsed(words), parsed(flags), "{words}");
    }
}

#[test]
fn a_path_is_never_taken_for_a_prompt() {
    for (line, expected) in [
        ("run -m m.gguf Cargo.toml", "use -f Cargo.toml to read the text from it"),
        ("run -m m.gguf n.gguf Hi", "the model is given twice"),
        ("run Hi m.gguf", "latent run m.gguf \"Hi\""),
        ("run why is it", "latent run \"why is it\""),
        ("run m.gguf why is it", "latent run m.gguf \"why is it\""),
        ("run -m m.gguf why not", "latent run -m m.gguf \"why not\""),
        ("run -p a b", "cannot be used with"),
        ("bench -m m.gguf n.gguf", "the model is given twice"),
        ("bench m.gguf n.gguf", "one model is expected"),
        ("check m.gguf -m n.gguf", "the model is given twice"),
        ("diff m.gguf n.gguf", "latent diff m.gguf --model-b n.gguf"),
        ("dump --tokens 1 m.gguf", "OUT is missing"),
        ("eval perplexity m.gguf", "TEXT is missing"),
        ("m.gguf", "latent run m.gguf"),
        ("-m m.gguf Hi", "latent run -m m.gguf Hi"),
        ("why not", "latent run \"why not\""),
        ("rnu Hi", "'run'"),
        ("help quantise", "'quantize'"),
        ("run --flash-attn Hi", "omit the flag"),
        ("check --threads 2", "--threads has no effect on `latent check`"),
        ("eval perplexity --hosts-file x t", "--hosts-file has no effect on `latent eval perplexity`"),
    ] {
        let error = read(line).err().unwrap_or_else(|| panic!("{line}")).to_string();
        assert!(error.contains(expected), "{line}: {error}");
    }
}

#[test]
fn numbers_equal_those_of_llama_cpp() {
    for line in [
        "run -n -1 Hi",
        "run -n -2 Hi",
        "run --n-predict=-2 Hi",
        "run -s -1 Hi",
        "run -c 0 Hi",
        "run -c 4k -b 2k Hi",
        "run --repeat-last-n -1 Hi",
        "run --context-shift --keep -1 Hi",
        "run --top-k -1 Hi",
        "run -t -1 Hi",
        "run -ngl -1 Hi",
        "run -ngl 99 Hi",
        "serve -np 4 -c 0 -n -1 -s -1",
        "bench -p 1k -n 0 -d 0,4k",
        "eval retrieval --lengths 4k,16k",
    ] {
        parsed(line);
    }
    assert_eq!(parsed("run -c 4k Hi"), parsed("run -c 4096 Hi"));
    for line in ["run -n -3 Hi", "run -s -2 Hi", "run -c -1 Hi", "run --keep -2 --context-shift Hi"] {
        assert!(read(line).is_err(), "{line}");
    }
}

/// Every command with its path.
fn all(command: &clap::Command, path: &str) -> Vec<(String, clap::Command)> {
    let mut found = vec![(path.to_owned(), command.clone())];
    for inner in command.get_subcommands() {
        found.extend(all(inner, &format!("{path} {}", inner.get_name())));
    }
    found
}

#[test]
fn help_fits_80_columns_and_short_help_is_short() {
    let mut root = command();
    root.build();
    for (path, mut command) in all(&root, "latent") {
        let (short, long) = (command.render_help().to_string(), command.render_long_help().to_string());
        for line in short.lines().chain(long.lines()) {
            assert!(line.chars().count() <= 80, "{path}: {line}");
        }
        // Longer lines of examples would be broken.
        for line in command
            .get_after_help()
            .into_iter()
            .flat_map(|help| help.to_string().lines().map(str::to_owned).collect::<Vec<_>>())
        {
            assert!(line.chars().count() <= 80, "{path}: {line}");
        }
        assert!(short.lines().count() <= 80, "{path}: {} lines", short.lines().count());
        for heading in ["Several hosts", "Developer options", "Speed and memory"] {
            assert!(!short.contains(heading), "{path}: {heading}");
        }
        // What most users need comes first.
        let headings =
            ["Options", "Sampling", "Speed and memory", "Several hosts (MPI)", "Developer options"];
        let places: Vec<usize> =
            headings.iter().filter_map(|heading| long.find(&format!("\n{heading}:"))).collect();
        assert!(places.is_sorted(), "{path}: {places:?}");
    }
}

/// What would clear a screen, set a title, recolour, reorder or hide text, or forge a line.
const HOSTILE: &str =
    "x\u{1b}[2J\u{1b}]0;title\u{7}\u{1b}[35m\u{9b}1m\u{202e}\u{200f}\u{2066}\u{200b}\r\nerror: forged";

/// All command lines that a hostile word makes from a command and its subcommands: as a word, a
/// flag, and the value of every flag.
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
fn usage_errors_escape_control_sequences() {
    let mut lines = Vec::new();
    hostile_lines(&command(), &["latent".to_owned()], &mut lines);
    let (mut read, mut refused) = (0, 0);
    for words in sample_of(&lines, 0, 3) {
        read += 1;
        let Err(error) = Cli::read(words.iter().map(Into::into)) else { continue };
        refused += 1;
        // Rendered with clap's own styles, none of which is magenta.
        let said = error.render().ansi().to_string();
        let acts = |c: char| {
            !matches!(c, '\n' | '\u{1b}') && matches!(printable(c.encode_utf8(&mut [0; 4])), Cow::Owned(_))
        };
        let hostile =
            ["\u{1b}[2J", "\u{1b}]", "\u{1b}[35m"].into_iter().any(|sequence| said.contains(sequence));
        assert!(!hostile && !said.contains(acts), "{words:?}: {said:?}");
        assert!(!said.lines().any(|line| line.starts_with("error: forged")), "{words:?}: {said}");
    }
    assert!(lines.len() > 1000 && refused * 2 > read, "{refused} of {read}");
    let error = Cli::read(["latent", "run", "--ctx-size", HOSTILE].map(Into::into)).unwrap_err();
    assert!(error.render().to_string().contains(r"x\u{1b}[2J\u{1b}]0;title\u{7}"), "{error}");
}
