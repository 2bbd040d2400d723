//! Every command of README.md and docs/ runs, in the order of its page, in a folder with the files
//! that the pages name. What cannot run here is listed with its reason, and a block that is neither
//! a command nor listed fails.

use crate::support;
use std::collections::HashSet;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::mpsc::channel;
use std::time::Duration;

/// How to run a command.
#[derive(Clone, Copy)]
enum DocsRun {
    /// Not run, for this reason.
    Skip(&'static str),
    /// With an exit code other than 0.
    Exit(i32),
    /// As a server, until it prints its address.
    Serve,
    /// In another form that takes seconds or needs no such machine.
    Instead(&'static str, &'static str),
}

use DocsRun::{Exit, Instead, Serve, Skip};

const NETWORK: DocsRun = Skip("it needs the network; hub.rs runs it against a hub of its own");
const BUILD: DocsRun = Skip("it builds or installs something");
const MPI: DocsRun = Skip("it needs MPI; mpi.rs runs it");
const CLIENT: DocsRun = Skip("it starts another program; tests/clients runs clients that are packages");
const GPU: DocsRun = Skip("it needs a GPU; gpu.rs runs it");

/// How to run commands with these beginnings. The first match counts.
const RULES: [(&str, DocsRun); 63] = [
    ("latent pull ", NETWORK),
    ("latent run hf:", NETWORK),
    ("latent rm hf:", NETWORK),
    ("latent chat --url", Skip("it needs a server; chat_url.rs runs it")),
    ("latent top --url", Skip("it needs a server; top.rs runs it")),
    (
        "latent serve -m base.gguf --lora",
        Skip("it needs an adapter; cli/lora.rs and server/lora.rs make one"),
    ),
    ("latent convert peft-folder", Skip("it needs an adapter; lora.rs makes one")),
    ("latent serve -m model.gguf --otlp-endpoint", Skip("it needs a program with the feature `otel`")),
    ("latent serve -m MODEL --partition", MPI),
    ("latent serve", Serve),
    ("latent kernels count", GPU),
    ("VK_DRIVER_FILES=", GPU),
    ("mpirun", MPI),
    ("latent bench -m model.gguf -p 512", Instead("-p 512 -n 128 -d 0,4096", "-p 16 -n 2 -d 0,32 -r 1")),
    ("latent profile -m model.gguf", Instead("profile", "profile -p 16 -n 2")),
    ("latent imatrix", Instead("imatrix", "imatrix --chunk-size 64 --chunks 2")),
    ("latent kernels test|perf|support", Instead("test|perf|support", "support")),
    (
        "latent kernels test [WORDS]",
        Instead("[WORDS] [--isa TIER] [--cases] [--json]", "rms_norm --isa avx2 --cases"),
    ),
    (
        "latent kernels perf [WORDS]",
        Instead("[WORDS] [--isa TIER | --all] [-t N] [--json]", "rms_norm --all --millis 1 --memory 1"),
    ),
    ("latent kernels support [WORDS]", Instead("[WORDS] [--json]", "rms_norm --json")),
    ("latent kernels perf sigmoid_mul", Instead("sigmoid_mul", "sigmoid_mul --millis 1 --memory 1")),
    ("latent diff -m model.gguf --a isa=portable --b isa=avx512", Instead("isa=avx512", "isa=auto")),
    ("latent verify --circuit wrong.json", Exit(1)),
    ("latent diff --precision exact --a mla=auto --b circuit=wrong.json", Exit(1)),
    ("latent graph circuit | jq", Skip("jq may be missing; the test makes wrong.json")),
    ("latent eval perplexity", Instead("perplexity", "perplexity --ctx-size 64 --chunks 2")),
    ("latent eval kl -m model.gguf --kl-divergence-base", Exit(0)),
    ("latent eval kl", Instead("kl", "kl --ctx-size 64 --chunks 2")),
    ("latent eval routing", Instead("routing", "routing --ctx-size 64 --chunks 2")),
    (
        "latent eval retrieval",
        Instead(
            "--lengths 4096,16384 --depths 0,25,50,75,100 --trials 8",
            "--lengths 96 --depths 0 --trials 1 -n 4",
        ),
    ),
    ("latent make-model deepseek-v3 Q2_K", Instead("--sparse", "--header-only")),
    ("latent plan-hosts -m MODEL hosts.toml", Instead("MODEL", "model.gguf")),
    ("latent graph MODEL", Instead("MODEL", "model.gguf")),
    ("latent diff -m FOLDER", Instead("FOLDER", "folder")),
    (
        "python tools/dump-activations.py",
        Skip("it needs torch; the test makes theirs.safetensors by `latent dump`"),
    ),
    ("curl http://127.0.0.1:8080", Skip("the test sends it to the server of the command before it")),
    ("cargo", BUILD),
    ("UPDATE_DOCS=1 cargo", BUILD),
    ("pip", BUILD),
    ("sudo", BUILD),
    ("rustup", BUILD),
    ("cc", BUILD),
    ("make -C model-c", BUILD),
    ("model-c/model", Skip("emit_c.rs builds and runs it")),
    ("LD_LIBRARY_PATH=target/release ./generate", BUILD),
    ("LD_LIBRARY_PATH=target/release ./gemm", BUILD),
    ("export ", CLIENT),
    ("claude", CLIENT),
    ("aider", CLIENT),
    ("docker", CLIENT),
    ("python tests/llama_server/run.py", Skip("it needs the network; .ci/run runs it")),
    ("python3 -m http.server", Skip("it needs a build for browsers")),
    ("crates/web/build.sh", BUILD),
    ("packaging/container/build.sh", BUILD),
    ("packaging/release", Skip("tests/packaging/run.sh runs it")),
    ("packaging/manifests", Skip("tests/packaging/run.sh runs it")),
    ("podman", BUILD),
    ("printf 'model = ", BUILD),
    ("head -c 24 /dev/urandom | base64 | sudo", BUILD),
    ("journalctl", BUILD),
    ("openssl rand", Instead("openssl rand -hex 16", "echo 0123456789abcdef")),
    ("{", Skip("it is a line of a file that a command before it reads")),
    ("latent", Exit(0)),
];

/// Short names of models that pages use.
const SHORT_NAMES: [&str; 2] = ["youtu-llm", "glm-4.7-flash"];

/// Blocks without a language that are not commands: page, and what their first line begins with.
const OTHER_BLOCKS: [(&str, &str); 8] = [
    ("docs/ir.md", ""),
    ("docs/mla.md", ""),
    ("docs/drafts.md", ""),
    ("docs/adding-an-operation.md", "o ⊙"),
    ("docs/audit.md", "A42 "),
    ("docs/conversations.md", "[{"),
    ("docs/evaluating.md", "{"),
    ("docs/models.md", "hub/"),
];

/// Languages of blocks that are not commands.
const LANGUAGES: [&str; 10] =
    ["rust", "json", "ini", "python", "c", "text", "toml", "yaml", "vim", "patterns"];

struct CodeBlock {
    line: usize,
    language: String,
    lines: Vec<String>,
}

/// The fenced and the indented blocks of a page.
fn blocks(page: &str) -> Vec<CodeBlock> {
    let mut blocks = Vec::new();
    let mut lines = page.lines().enumerate().peekable();
    let mut blank = true;
    while let Some((number, line)) = lines.next() {
        let mut block = CodeBlock { line: number + 1, language: String::new(), lines: Vec::new() };
        if let Some(info) = line.trim_start().strip_prefix("```") {
            block.language = info.split([' ', ',']).next().unwrap_or_default().to_owned();
            let inside =
                lines.by_ref().map(|(_, line)| line).take_while(|line| !line.trim_start().starts_with("```"));
            block.lines.extend(inside.map(str::to_owned));
            blocks.push(block);
        } else if blank && line.starts_with("    ") {
            block.lines.push(line[4..].to_owned());
            while let Some((_, line)) = lines.next_if(|(_, line)| line.starts_with("    ") || line.is_empty())
            {
                block.lines.push(line.get(4..).unwrap_or_default().to_owned());
            }
            blocks.push(block);
            blank = true;
            continue;
        }
        blank = line.trim().is_empty();
    }
    blocks
}

/// The commands of a block, without their comments.
fn commands(block: &CodeBlock) -> Vec<String> {
    let mut commands: Vec<String> = Vec::new();
    let mut open = false;
    for line in block.lines.iter().filter(|line| !line.trim().is_empty()) {
        let quoted = commands.last().is_some_and(|last| last.matches('\'').count() % 2 == 1);
        let (mut end, mut quote) = (line.len(), (open && quoted).then_some('\''));
        let continued = open || line.starts_with("  ");
        let text = line.trim_start();
        for (at, c) in text.char_indices() {
            match (quote, c) {
                (None, '\'' | '"') => quote = Some(c),
                (Some(q), c) if q == c => quote = None,
                (None, ' ') if text[at..].starts_with("   ") => {
                    end = at;
                    break;
                }
                _ => {}
            }
        }
        let text = text.get(..end).unwrap_or(text).trim_end();
        match commands.last_mut().filter(|_| continued && open) {
            Some(last) => *last += &format!("\n{text}"),
            None => commands.push(text.to_owned()),
        }
        let last = commands.last().unwrap();
        open = last.matches('\'').count() % 2 == 1 || last.ends_with('\\');
    }
    commands
}

/// The rule of a command.
fn rule(command: &str) -> Option<(usize, DocsRun)> {
    let at = RULES.iter().position(|(start, _)| {
        command.strip_prefix(start).is_some_and(|rest| {
            !rest.starts_with(|c: char| c.is_alphanumeric() || c == '-')
                || start.ends_with([':', '=', '{', ' '])
        })
    })?;
    Some((at, RULES[at].1))
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// README.md and all pages below docs/.
fn pages() -> Vec<String> {
    fn below(folder: &Path, front: &str, pages: &mut Vec<String>) {
        for entry in std::fs::read_dir(folder).unwrap().map(Result::unwrap) {
            let name = format!("{front}/{}", entry.file_name().to_string_lossy());
            if entry.path().is_dir() {
                below(&entry.path(), &name, pages);
            } else if name.ends_with(".md") {
                pages.push(name);
            }
        }
    }
    let mut pages = vec!["README.md".to_owned()];
    below(&root().join("docs"), "docs", &mut pages);
    pages.sort_unstable();
    pages
}

/// A shell command in a folder, without the user's settings.
fn shell(folder: &Path, command: &str) -> Command {
    let programs = assert_cmd::cargo::cargo_bin("latent").parent().unwrap().to_owned();
    let path = std::env::var("PATH").unwrap_or_default();
    let mut shell = Command::new("sh");
    shell.args(["-c", command]).current_dir(folder).stdin(Stdio::null());
    for (name, _) in
        std::env::vars().filter(|(name, _)| name.starts_with("LATENT_") || name.starts_with("XDG_"))
    {
        shell.env_remove(name);
    }
    shell.env("PATH", format!("{}:{path}", programs.display())).env("HOME", folder);
    shell.env("HF_ENDPOINT", "http://127.0.0.1:9");
    shell
}

/// Runs a command and checks its exit code.
fn check(folder: &Path, command: &str, code: i32) -> Result<(), String> {
    let output = shell(folder, command).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    if output.status.code() == Some(code) { Ok(()) } else { Err(format!("{:?}: {said}", output.status)) }
}

/// Starts a server on any port, waits for its address, and stops it.
fn serve(folder: &Path, command: &str) -> Result<(), String> {
    let mut shell = shell(folder, &format!("exec {command} --port 0 2>&1"));
    let mut child = shell.stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let (send, receive) = channel();
    std::thread::spawn(move || lines.map_while(Result::ok).try_for_each(|line| send.send(line)));
    let mut said = String::new();
    let started = loop {
        match receive.recv_timeout(Duration::from_secs(60)) {
            Ok(line) if line.contains("http://") || line.contains("https://") => break true,
            Ok(line) => said += &line,
            Err(_) => break false,
        }
    };
    Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    let status = child.wait().unwrap();
    if started { Ok(()) } else { Err(format!("{status}: {said}")) }
}

/// Starts the server of a command, and runs a command of the page against it.
fn ask(folder: &Path, server: &str, command: &str) -> Result<(), String> {
    let mut shell_of_server = shell(folder, &format!("exec {server} --port 0 2>&1"));
    let mut child = shell_of_server.stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let (send, receive) = channel();
    std::thread::spawn(move || lines.map_while(Result::ok).try_for_each(|line| send.send(line)));
    let address = loop {
        match receive.recv_timeout(Duration::from_secs(60)) {
            Ok(line) => {
                let found = line.split_whitespace().find(|word| word.starts_with("http://127.0.0.1:"));
                if let Some(address) = found {
                    break Ok(address.trim_end_matches(['/', ',', ';']).to_owned());
                }
            }
            Err(_) => break Err("the server did not start".to_owned()),
        }
    };
    let asked = address.and_then(|address| {
        let command = command.replace("http://127.0.0.1:8080", &address);
        check(folder, &command.replace("curl ", "curl -sS --fail-with-body --max-time 120 "), 0)
    });
    Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    child.wait().unwrap();
    asked
}

/// The files that pages name: the user's models and texts.
fn files(folder: &Path, shared: &Path) {
    let copy = |from: &str, to: &str| std::fs::hard_link(shared.join(from), folder.join(to)).unwrap();
    for name in ["model.gguf", "model-BF16.gguf"] {
        copy(name, name);
    }
    for name in ["small.gguf", "base.kld"] {
        copy(if name == "small.gguf" { "model.gguf" } else { name }, name);
    }
    std::fs::write(folder.join("question.txt"), "Why is the sky blue?\n").unwrap();
    std::fs::create_dir(folder.join("folder")).unwrap();
    for entry in std::fs::read_dir(shared.join("folder")).unwrap().map(Result::unwrap) {
        std::fs::copy(entry.path(), folder.join("folder").join(entry.file_name())).unwrap();
    }
    std::fs::copy(shared.join("folder/config.json"), folder.join("config.json")).unwrap();
    let text = "The fox carried a lantern through the wood, and the owl asked it where the light came from. "
        .repeat(40);
    for name in ["text.txt", "calibration.txt", "wiki.test.raw"] {
        std::fs::write(folder.join(name), &text).unwrap();
    }
    let certificates = Path::new(env!("CARGO_MANIFEST_DIR")).join("../hub/tests/tls");
    for (from, to) in [("localhost.pem", "chain.pem"), ("localhost.key.pem", "key.pem")] {
        std::fs::copy(certificates.join(from), folder.join(to)).unwrap();
    }
    for (name, text) in [
        (
            "person.json",
            r#"{"type": "object", "properties": {"name": {"type": "string", "maxLength": 20}}, "required": ["name"]}"#,
        ),
        ("list.gbnf", r#"root ::= ("- " [a-z]+ "\n")+"#),
        (
            "hellaswag_val.jsonl",
            r#"{"ctx": "A fox is in the wood. It", "endings": ["runs.", "is a lamp."], "label": 0}"#,
        ),
        (
            "questions.jsonl",
            r#"{"kind": "sum", "prompt": "How much is 32 + 49?", "expected": "32 + 49 = 81."}"#,
        ),
        ("hosts.toml", "[[host]]\nname = \"a\"\nread_gb_per_s = 100\ngflops = 1000\n"),
    ] {
        std::fs::write(folder.join(name), text).unwrap();
    }
}

/// The circuit of docs/debugging.md, whose MLPs read what attention reads.
fn wrong_circuit(folder: &Path) {
    let output = shell(folder, "latent graph circuit --json").output().unwrap();
    let mut circuit: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let blocks = &mut circuit["blocks"];
    blocks["mla"]["out"].as_array_mut().unwrap().push("x".into());
    for name in ["dense", "moe"] {
        blocks[name]["in"].as_array_mut().unwrap().push("x".into());
        for op in blocks[name]["ops"].as_array_mut().unwrap().iter_mut().filter(|op| op["op"] == "mlp") {
            op["in"] = serde_json::json!(["x"]);
        }
    }
    std::fs::write(folder.join("wrong.json"), circuit.to_string()).unwrap();
}

/// Runs the commands of a page; returns the failures.
fn page(name: &str, shared: &Path, used: &Mutex<HashSet<usize>>) -> Vec<String> {
    let text = std::fs::read_to_string(root().join(name)).unwrap();
    let mut problems = Vec::new();
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let mut prepared = false;
    let mut server = None;
    for block in blocks(&text) {
        let place = format!("{name}:{}", block.line);
        let first = block.lines.first().map_or("", String::as_str);
        let mut commands = commands(&block);
        if name == "docs/serving.md" && block.language == "toml" {
            std::fs::write(folder.join("latent.toml"), block.lines.join("\n")).unwrap();
            commands = vec!["latent serve --config latent.toml".into()];
        } else if name == "docs/debugging.md" && first.starts_with("findings ") {
            // The output of the previous command.
            let output = shell(folder, "latent verify --circuit wrong.json").output().unwrap();
            let said = String::from_utf8_lossy(&output.stdout).into_owned();
            let missing: Vec<&String> =
                block.lines.iter().filter(|line| !said.lines().any(|own| own == *line)).collect();
            problems.extend((!missing.is_empty()).then(|| format!("{place}: the output has no {missing:?}")));
            continue;
        }
        let other = OTHER_BLOCKS
            .iter()
            .any(|(page, start)| name.starts_with(page) && first.starts_with(start))
            && commands.first().is_none_or(|command| rule(command).is_none_or(|_| command.starts_with('{')));
        // The config file of docs/serving.md is served.
        let other_language = LANGUAGES.contains(&block.language.as_str()) && block.language != "toml";
        if other || other_language || (block.language == "toml" && name != "docs/serving.md") {
            continue;
        }
        for command in commands {
            // The demo model replaces large ones.
            let small =
                SHORT_NAMES.iter().fold(command.clone(), |command, name| command.replace(name, "model.gguf"));
            let command = if command.starts_with("latent pull ") { command } else { small };
            let Some((at, run)) = rule(&command) else {
                problems.push(format!(
                    "{place}: unknown command {command:?}; add it to RULES or the block to OTHER_BLOCKS"
                ));
                continue;
            };
            used.lock().unwrap().insert(at);
            if !prepared && !matches!(run, Skip(_)) {
                files(folder, shared);
                // On other pages a command creates it.
                if name == "docs/evaluating.md" {
                    std::fs::hard_link(folder.join("model.gguf"), folder.join("model-Q4_K_M.gguf")).unwrap();
                }
                prepared = true;
            }
            if command.contains("wrong.json") && !folder.join("wrong.json").exists() {
                wrong_circuit(folder);
            }
            if command.contains("--dump theirs.safetensors") && !folder.join("theirs.safetensors").exists() {
                check(
                    folder,
                    "latent dump -m folder --precision exact --tokens 5,6,7,8 theirs.safetensors",
                    0,
                )
                .unwrap();
            }
            if command.starts_with("latent serve ") {
                server = Some(command.clone());
            }
            let ran = match run {
                Skip(_) if command.starts_with("curl ") => match &server {
                    Some(server) => ask(folder, server, &command),
                    None => Err("no command before it starts a server".into()),
                },
                Skip("") => Err("it is left out without a reason".into()),
                Skip(_) => Ok(()),
                Serve => serve(folder, &command),
                Instead(part, other) if command.contains(part) => match command.replacen(part, other, 1) {
                    command if command.starts_with("latent serve") => serve(folder, &command),
                    command => check(folder, &command, 0),
                },
                Instead(part, _) => Err(format!("it has no {part:?}, which RULES replaces")),
                Exit(code) => check(folder, &command, code),
            };
            problems.extend(ran.err().map(|problem| format!("{place}: {command}\n    {problem}")));
        }
    }
    problems
}

#[test]
fn every_command_of_the_pages_runs() {
    let shared = tempfile::tempdir().unwrap();
    let shared = shared.path();
    std::fs::copy(support::demo(), shared.join("model.gguf")).unwrap();
    std::fs::write(shared.join("text"), "The owl asked the fox where the light came from. ".repeat(40))
        .unwrap();
    for command in [
        "latent quantize -m model.gguf --allow-requantize -o model-BF16.gguf BF16",
        "latent convert model.gguf -o folder",
        "latent eval perplexity -m model.gguf text --ctx-size 64 --chunks 2 --kl-divergence-base base.kld",
    ] {
        check(shared, command, 0).unwrap();
    }
    let (used, problems) = (Mutex::new(HashSet::new()), Mutex::new(Vec::new()));
    let pages = Mutex::new(pages().into_iter());
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let Some(name) = pages.lock().unwrap().next() else { break };
                    let found = page(&name, shared, &used);
                    problems.lock().unwrap().extend(found);
                }
            });
        }
    });
    let problems = problems.into_inner().unwrap();
    assert!(problems.is_empty(), "{}", problems.join("\n"));
    let used = used.into_inner().unwrap();
    let unused: Vec<&str> = (0..RULES.len()).filter(|at| !used.contains(at)).map(|at| RULES[at].0).collect();
    assert!(unused.is_empty(), "no page has commands of these rules: {unused:?}");
}

#[test]
fn descriptions_and_continued_lines_are_not_commands() {
    let page = "# T\n\n    latent a \"x   y\"     says more\n    latent b 'one\n      two' > c   # more\n\ntext\n\n```sh\nlatent d\n```\n";
    let found: Vec<Vec<String>> = blocks(page).iter().map(commands).collect();
    assert_eq!(found, [vec!["latent a \"x   y\"", "latent b 'one\ntwo' > c"], vec!["latent d"]]);
    assert!(rule("latently").is_none() && rule("frobnicate x").is_none());
}
