//! Flags and variables of other servers: each row of the table is translated as stated, and
//! docs/switching.md lists all of them.

use latent_cli::{CompatRow, compat_rows, read_line};
use std::fmt::Write as _;
use std::path::Path;

/// Values of flags that do not take `1`.
const VALUES: [(&str, &str); 34] = [
    ("--lora", "a.gguf:0.5"),
    ("--override-kv", "a=int:1"),
    ("--rope-scaling", "yarn"),
    ("--samplers", "top_k;temperature"),
    ("--sampler-seq", "kt"),
    ("--model", "m.gguf"),
    ("--hf-repo", "o/n:Q4_K_M"),
    ("--hf-file", "x.gguf"),
    ("--alias", "a,b"),
    ("--cache-type", "bf16"),
    ("--cache-type-v", "bf16"),
    ("--grammar", "root ::= \"a\""),
    ("--json-schema", "{}"),
    ("--chat-template", "{{ messages }}"),
    ("--chat-template-kwargs", "{\"a\": 1}"),
    ("--reasoning", "off"),
    ("--reasoning-effort", "low"),
    ("--host", "127.0.0.1,::1"),
    ("--api-prefix", "/llm"),
    ("--api-key", "secret-number-1"),
    ("--tls-key", "key.pem"),
    ("--tls-cert", "cert.pem"),
    ("--stop", "x"),
    ("--logit-bias", "15043+1"),
    ("--n-gpu-layers", "99"),
    ("--port", "9000"),
    ("--batch-size", "64"),
    ("--ctx-size", "4096"),
    ("--models-dir", "models"),
    ("--models-preset", "models.ini"),
    ("--tags", "small,fast"),
    ("--timeout", "3600"),
    ("--pooling", "last"),
    ("--reasoning-format", "none"),
];

/// Flags that require others.
const WITH: [(&str, &[&str]); 5] = [
    ("--lora-init-without-apply", &["--lora", "a.gguf"]),
    ("--reasoning-budget-message", &["--reasoning-budget", "8"]),
    ("--hf-file", &["--hf-repo", "o/n"]),
    ("--tls-key", &["--tls-cert", "c.pem"]),
    ("--tls-cert", &["--tls-key", "k.pem"]),
];

type ValueCase = (&'static str, &'static str, Result<&'static [&'static str], &'static str>);

/// Flags whose value decides: a value and Latent's equivalent words. `None`: no effect, or for
/// refused ones the error.
const BY_VALUE: [ValueCase; 40] = [
    ("--parallel", "4", Ok(&["--parallel", "4"])),
    ("--parallel", "-1", Ok(&[])),
    ("--prio", "0", Ok(&[])),
    ("--prio", "2", Err("nice")),
    ("--prio-batch", "1", Err("nice")),
    ("--numa", "distribute", Ok(&["--pin", "nodes"])),
    ("--numa", "numactl", Ok(&[])),
    ("--numa", "isolate", Err("numactl --cpunodebind")),
    ("--device", "none", Ok(&["--device", "cpu"])),
    ("--device", "CUDA0", Ok(&["--device", "gpu:0"])),
    ("--device", "gpu", Ok(&["--device", "gpu"])),
    ("--device", "CUDA0,CUDA1", Err("--partition")),
    ("--main-gpu", "0", Ok(&[])),
    ("--main-gpu", "1", Ok(&["--device", "gpu:1"])),
    ("--split-mode", "layer", Ok(&[])),
    ("--split-mode", "row", Err("--partition tensor=N")),
    ("--spec-type", "draft-mtp", Ok(&["--draft", "mtp"])),
    ("--spec-type", "ngram-mod", Ok(&[])),
    ("--spec-type", "none", Ok(&["--draft", "none"])),
    ("--spec-type", "eagle3", Err("draft-mtp")),
    ("--embd-normalize", "2", Ok(&[])),
    ("--embd-normalize", "-1", Err("length 1")),
    ("--sleep-idle-seconds", "90", Ok(&["--unload-idle", "90s"])),
    ("--cors-origins", "http://a,localhost", Ok(&["--cors", "http://a", "--cors", "localhost"])),
    ("--verbosity", "3", Ok(&["--log", "info"])),
    ("--task", "generate", Ok(&[])),
    ("--task", "score", Err("generate")),
    ("--runner", "auto", Ok(&[])),
    ("--max-model-len", "32k", Ok(&["--ctx-size", "32k"])),
    ("--max-model-len", "auto", Ok(&[])),
    ("--max-num-batched-tokens", "65536", Ok(&["--batch-size", "8192"])),
    ("--kv-cache-dtype", "bfloat16", Ok(&["--cache-type", "bf16"])),
    ("--kv-cache-dtype", "fp8_e4m3", Ok(&["--cache-type", "fp8"])),
    ("--tensor-parallel-size", "2", Err("--partition tensor=2")),
    ("--pipeline-parallel-size", "2", Err("--partition pipeline=2")),
    ("--data-parallel-size", "1", Ok(&[])),
    ("--generation-config", "vllm", Ok(&["--no-model-sampling"])),
    ("--allowed-origins", "[\"http://a\"]", Ok(&["--cors", "http://a"])),
    ("--uvicorn-log-level", "warning", Ok(&["--log", "warn"])),
    ("--kv-cache-dtype", "auto", Ok(&[])),
];

fn rows() -> Vec<CompatRow> {
    compat_rows().into_iter().flat_map(|(_, rows)| rows).collect()
}

fn long(row: &CompatRow) -> &'static str {
    row.names.iter().copied().find(|name| name.starts_with("--")).unwrap_or(row.names[0])
}

/// The flag of Latent's own that a row sets.
fn target(row: &CompatRow) -> &'static str {
    row.becomes.map_or_else(|| long(row), |words| words.split(' ').next().unwrap_or(words))
}

fn value_of(row: &CompatRow) -> &'static str {
    VALUES.iter().find(|(flag, _)| *flag == target(row)).map_or("1", |(_, value)| value)
}

/// What `latent serve` with these words is.
fn serve(words: &[&str], variables: &[(&str, &str)]) -> Result<(String, Vec<String>), String> {
    let all: Vec<&str> = ["latent", "serve"].into_iter().chain(words.iter().copied()).collect();
    read_line(&all, variables)
}

#[test]
fn every_spelling_of_every_row_is_read() {
    let mut count = 0;
    for row in rows() {
        let more = WITH.iter().find(|(flag, _)| *flag == target(&row)).map_or(&[][..], |(_, more)| more);
        let (without, _) = serve(more, &[]).unwrap();
        for name in &row.names {
            count += 1;
            let mut words = more.to_vec();
            words.push(name);
            if row.takes_value {
                words.push(value_of(&row));
            }
            let read = serve(&words, &[]);
            match row.kind {
                "same" | "becomes" => {
                    let (args, notes) = read.unwrap_or_else(|problem| panic!("{name}: {problem}"));
                    assert!(args != without && notes.is_empty(), "{name} changes nothing: {args}");
                }
                "ignored" => {
                    let (args, notes) = read.unwrap_or_else(|problem| panic!("{name}: {problem}"));
                    assert_eq!(args, without, "{name}");
                    assert_eq!(notes, [format!("note: {name} has no effect: {}", row.text)]);
                }
                "refused" => {
                    let problem = read.expect_err(name);
                    assert!(problem.contains(&format!("{name} is not available: {}", row.text)), "{problem}");
                }
                _ => assert!(BY_VALUE.iter().any(|(flag, ..)| *flag == long(&row)), "{name}: no value"),
            }
        }
    }
    assert!(count > 300, "only {count} spellings");
}

#[test]
fn flags_are_translated_by_value() {
    let (without, _) = serve(&[], &[]).unwrap();
    for (flag, value, expected) in BY_VALUE {
        let read = serve(&[flag, value], &[]);
        match expected {
            Ok(words) => {
                let (args, notes) = read.unwrap_or_else(|problem| panic!("{flag} {value}: {problem}"));
                assert_eq!(args, serve(words, &[]).unwrap().0, "{flag} {value}");
                assert_eq!(args == without, words.is_empty());
                assert_eq!(notes.len(), usize::from(words.is_empty()), "{flag} {value}: {notes:?}");
            }
            Err(text) => {
                let problem = read.expect_err(flag);
                assert!(problem.contains(text) && problem.contains(flag), "{flag} {value}: {problem}");
            }
        }
    }
}

#[test]
fn every_variable_says_what_its_flag_says() {
    let mut count = 0;
    for row in rows() {
        // a key is a secret, which `serve` reads itself: words could be repeated by messages
        let Some(variable) = row.variable.filter(|name| *name != "LLAMA_API_KEY") else { continue };
        count += 1;
        let by_value = BY_VALUE.iter().find(|(flag, _, expected)| *flag == long(&row) && expected.is_ok());
        let value = by_value.map_or_else(|| value_of(&row), |(_, value, _)| value);
        let more = WITH.iter().find(|(flag, _)| *flag == target(&row)).map_or(&[][..], |(_, more)| more);
        let mut words = more.to_vec();
        words.push(long(&row));
        let set = if row.takes_value {
            words.push(value);
            value
        } else if row.variable_is_inverted {
            "off"
        } else {
            "on"
        };
        match (serve(&words, &[]), serve(more, &[(variable, set)])) {
            (Ok((by_flag, _)), Ok((by_variable, notes))) => {
                assert_eq!(by_flag, by_variable, "{variable}");
                assert!(notes.iter().all(|note| note.contains(variable)), "{notes:?}");
            }
            (Err(_), Err(problem)) => assert!(problem.contains(variable), "{variable}: {problem}"),
            other => panic!("{variable}: {other:?}"),
        }
    }
    assert!(count > 90, "only {count} variables");
}

#[test]
fn arguments_count_before_variables() {
    let set = [("LLAMA_ARG_PORT", "9000"), ("LLAMA_ARG_MODEL", "v.gguf"), ("LLAMA_ARG_N_PARALLEL", "2")];
    let read = |words: &[&str]| serve(words, &set).unwrap().0;
    assert_eq!(
        read(&["--port", "1", "m.gguf", "-np", "4"]),
        serve(&["--port", "1", "m.gguf", "-np", "4"], &[]).unwrap().0
    );
    assert_eq!(
        read(&["--hf-repo", "o/n"]),
        serve(&["-m", "hf:o/n", "--port", "9000", "-np", "2"], &[]).unwrap().0
    );
    // a value that the flag does not take is told with the variable
    let problem = serve(&[], &[("LLAMA_ARG_PORT", "many")]).unwrap_err();
    assert!(problem.contains("--port") && problem.contains("LLAMA_ARG_PORT"), "{problem}");
}

#[test]
fn usual_command_lines_are_translated() {
    for (line, same) in [
        (
            "-m m.gguf --port 8012 -ngl 99 -fa -ub 1024 -b 2048 --ctx-size 0 --cache-reuse 256",
            "-m m.gguf --port 8012 --n-gpu-layers 99 --batch-size 1024 --batch-size 2048 -c 0",
        ),
        (
            "-hf o/n:Q4_K_M --jinja -c 0 -fa on -np 2 -ctk q8_0 -ctv q8_0 --no-mmap --mlock --no-warmup --metrics",
            "-m hf:o/n:Q4_K_M -c 0 --parallel 2 --cache-type q8_0",
        ),
        ("-hf o/n:Q8_0 -hff x/y.gguf -a a,b", "-m hf:o/n/x/y.gguf --alias a,b"),
        (
            "hf:o/n --served-model-name big --max-model-len 32768 --max-num-seqs 8 --gpu-memory-utilization 0.9 \
             --trust-remote-code --enable-auto-tool-choice --tool-call-parser kimi_k2 -tp 1",
            "hf:o/n --alias big -c 32768 --parallel 8",
        ),
        // the last one counts, as for llama-server
        ("--port 1 --port 2", "--port 2"),
        ("--ctx_size 64", "--ctx-size 64"),
    ] {
        let read = |line: &str| serve(&line.split_whitespace().collect::<Vec<_>>(), &[]);
        assert_eq!(read(line).unwrap().0, read(same).unwrap().0, "{line}");
    }
    for (words, text) in [
        (&["-ctk", "q8_0", "-ctv", "f16"][..], "keys and values must have the same type"),
        (&["-ctk", "q5_0"], "int8"),
        (&["-hf", "o/n", "-m", "m.gguf"], "cannot be used with"),
        (&["-hff", "x.gguf"], "--hf-repo"),
        (&["--cpu-moe", "--n-cpu-moe", "3"], "cannot be used with"),
    ] {
        let problem = serve(words, &[]).unwrap_err();
        assert!(problem.contains(text), "{words:?}: {problem}");
    }
}

/// A list in lines of at most 100 columns.
fn sentence(start: &str, items: impl Iterator<Item = String>) -> String {
    let (mut text, mut width) = (format!("{start}:"), start.len() + 1);
    for (at, item) in items.enumerate() {
        let comma = usize::from(at > 0);
        text += &","[..comma];
        let fits = width + comma + 1 + item.len() < 100;
        text += if fits { " " } else { "\n" };
        width = if fits { width + comma + 1 } else { 0 } + item.len();
        text += &item;
    }
    text + ".\n"
}

fn span(row: &CompatRow) -> String {
    format!("`{}`", row.names.join(", "))
}

/// A table of rows, of which those with the same text are one line.
fn grouped(title: &str, rows: &[(&CompatRow, String)]) -> String {
    let mut lines: Vec<(&str, Vec<&str>)> = Vec::new();
    for (row, text) in rows {
        match lines.iter_mut().find(|(known, _)| known == text) {
            Some((_, names)) => names.extend(&row.names),
            None => lines.push((text, row.names.clone())),
        }
    }
    let mut table = format!("| {title} | |\n|---|---|\n");
    for (text, names) in lines {
        writeln!(table, "| `{}` | {text} |", names.join(", ")).unwrap();
    }
    table
}

/// Whether the variable is `LLAMA_ARG_` and a name of the flag.
fn is_regular(row: &CompatRow) -> bool {
    let regular = |name: &&str| {
        let name = name.strip_prefix("--")?;
        let name = name.strip_prefix("no-").unwrap_or(name);
        Some(format!("LLAMA_ARG_{}", name.to_uppercase().replace('-', "_")))
    };
    row.variable.is_none_or(|variable| row.names.iter().filter_map(regular).any(|name| name == variable))
}

fn table(rows: &[CompatRow]) -> String {
    let of = |kind: &'static str| rows.iter().filter(move |row| row.kind == kind);
    let mut text = String::new();
    if of("same").next().is_some() {
        text += &sentence("The same", of("same").filter(|row| row.text.is_empty()).map(span));
        text.push('\n');
    }
    let translated = |row: &CompatRow| match (row.kind, row.becomes, row.text) {
        ("becomes", Some(words), "") => Some(format!("`{words}`")),
        ("becomes", Some(words), text) => Some(format!("`{words}`: {text}")),
        ("by value", _, text) => Some(text.to_owned()),
        ("same", _, text) if !text.is_empty() => Some(text.to_owned()),
        _ => None,
    };
    let rows_with = |of: &dyn Fn(&CompatRow) -> Option<String>| -> Vec<(&CompatRow, String)> {
        rows.iter().filter_map(|row| Some((row, of(row)?))).collect()
    };
    text += &grouped("with a remark", &rows_with(&translated));
    text.push('\n');
    text += &grouped("refused", &rows_with(&|row| (row.kind == "refused").then(|| row.text.to_owned())));
    text.push('\n');
    text += "All other flags are accepted and have no effect; `-v` says why.\n";
    let others: Vec<String> = rows
        .iter()
        .filter(|row| row.kind != "ignored" && row.kind != "refused" && !is_regular(row))
        .filter_map(|row| Some(format!("`{}` `{}`", long(row), row.variable?)))
        .collect();
    if !others.is_empty() {
        text.push('\n');
        text += &sentence("Variables that are not `LLAMA_ARG_` and a flag's name", others.into_iter());
    }
    text
}

#[test]
fn the_page_shows_every_flag_with_an_effect() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/switching.md");
    let mut page = std::fs::read_to_string(&path).unwrap();
    for (server, rows) in compat_rows() {
        let begin = format!("<!-- flags of {server} -->\n");
        let start = page.find(&begin).unwrap_or_else(|| panic!("no {begin}")) + begin.len();
        let end = start + page[start..].find("<!-- end -->").unwrap();
        let made = table(&rows);
        if std::env::var_os("UPDATE_DOCS").is_some() {
            page.replace_range(start..end, &made);
        } else {
            assert!(
                page[start..end] == made,
                "docs/switching.md is old: UPDATE_DOCS=1 cargo test --release --workspace --test cli -- switching"
            );
        }
    }
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, page).unwrap();
    }
}
