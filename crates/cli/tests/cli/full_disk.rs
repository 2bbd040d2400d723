//! Commands that write files, on a file system without room: each fails with an error that names
//! the file, and leaves nothing behind.
//!
//! The file system is a tmpfs in a mount namespace of the test's own. Where the system grants none,
//! the tests say so; `written.rs` has a portable form with limits on the size of files.
#![allow(missing_docs, clippy::print_stdout, reason = "tests, which say what they skip")]

use crate::support::demo;
use crate::support::hub;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

/// Every command that writes a file or folder, which is to be called `{}`; behind a bar the lines
/// of its standard input. `{m}` is the demo model, `{f}` a folder of safetensors, `{t}` a text,
/// `{r}` a result of `latent eval`.
const WRITERS: [&str; 22] = [
    "run -q -n 2 -m {m} --save {} Hi",
    "run -q -n 2 -m {m} --prompt-cache {} Hi",
    "chat -q -n 2 -m {m} --prompt-cache {}|Hi",
    "chat -q -n 2 -m {m}|Hi\n/save {}",
    "chat -q -n 2 -m {m}|Hi\n/save {}.json",
    "dump -m {m} --tokens 1,2,3 {}",
    "graph -m {m} --html {}",
    "pack -t 1 -m {m} -o {}",
    "imatrix -t 1 -m {m} --chunk-size 8 --chunks 1 -f {t} -o {}",
    "quantize -t 1 -m {m} --allow-requantize -o {} F16",
    "logits -m {m} --tokens 1,2,3,4,5,6,7,8 --kl-chunk 8 --kl-divergence-base {}",
    "convert -m {f} -o {}.gguf",
    "convert -m {m} -o {}",
    "make-model tiny-dense F32 --layers 1 {}.gguf",
    "make-model tiny-dense F32 --layers 1 {}",
    "make-model tiny-dense F32 --layers 1 --shards 3 {}.gguf",
    "eval perplexity -t 1 -m {m} {t} --ctx-size 64 --chunks 1 --kl-divergence-base {}",
    "eval perplexity -t 1 -m {m} {t} --ctx-size 64 --chunks 1 --html {}",
    "eval report {} {r}",
    "bench -t 1 -m {m} -p 1 -n 1 -r 1 --save {}",
    "plan-hosts -t 1 -m {m} --measure {}",
    "man {}",
];

const FIXTURE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../engine/tests/fixtures/plm");

/// Mounts a tmpfs of one page at $0, fills it, and runs a command; what lies there at the end goes
/// to $LISTED.
const SCRIPT: &str = r#"
mount -t tmpfs -o "size=4k,$OPTIONS" full "$0" || exit 99
head -c 4096 /dev/zero >"$0/filler"
"$@"
code=$?
(cd "$0" && find . -mindepth 1 ! -name filler) >"$LISTED"
exit $code"#;

/// A folder on which a tmpfs can be mounted.
struct FullDisk {
    folder: tempfile::TempDir,
    namespace: &'static str,
}

impl FullDisk {
    fn new() -> Option<FullDisk> {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("full")).unwrap();
        let mut full = FullDisk { folder, namespace: "" };
        for namespace in ["-m", "-rm"] {
            full.namespace = namespace;
            let tried = Command::new("unshare").args([namespace, "true"]).stderr(Stdio::null()).status();
            if tried.is_ok_and(|status| status.success())
                && full.run("", "", &["true".into()]).0.status.success()
            {
                return Some(full);
            }
        }
        println!("SKIPPED: no mount namespaces");
        None
    }

    /// The command that runs a program there, and the list of files that it left.
    fn command(&self, options: &str, words: &[String]) -> (Command, PathBuf) {
        let at = |name: &str| self.folder.path().join(name);
        let mut command = Command::new("unshare");
        command.args([self.namespace, "sh", "-c", SCRIPT]).arg(at("full")).args(words);
        command.env("OPTIONS", options).env("LISTED", at("listed")).env("LATENT_CACHE", at("full/cache"));
        command.env("HOME", self.folder.path()).env_remove("LATENT_MODEL");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        (command, at("listed"))
    }

    /// Runs a program; returns the files that it left, too.
    fn run(&self, options: &str, input: &str, words: &[String]) -> (Output, String) {
        let (mut command, listed) = self.command(options, words);
        let mut child = command.spawn().unwrap();
        // A failed program no longer reads its input.
        let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
        let output = child.wait_with_output().unwrap();
        (output, std::fs::read_to_string(listed).unwrap_or_default())
    }

    fn words(&self, writer: &str) -> (Vec<String>, String) {
        let at = |name: &str| self.folder.path().join(name).display().to_string();
        std::fs::write(at("text"), "The fox carried a lantern through the wood. ".repeat(20)).unwrap();
        let (words, input) = writer.split_once('|').unwrap_or((writer, ""));
        let model = demo().display().to_string();
        let fill = |word: &str| {
            let word = word.replace("{m}", &model).replace("{f}", FIXTURE).replace("{t}", &at("text"));
            word.replace("{r}", &at("result")).replace("{}", &at("full/new"))
        };
        let program = env!("CARGO_BIN_EXE_latent").to_owned();
        (std::iter::once(program).chain(words.split(' ').map(fill)).collect(), fill(input))
    }
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn no_command_leaves_anything_on_a_full_file_system() {
    let Some(full) = FullDisk::new() else { return };
    let (words, _) = full.words("eval perplexity -t 1 -m {m} {t} --ctx-size 64 --chunks 1 --json");
    let result = Command::new(&words[0]).args(&words[1..]).env_remove("LATENT_MODEL").output().unwrap();
    assert!(result.status.success(), "{}", stderr(&result));
    std::fs::write(full.folder.path().join("result"), &result.stdout).unwrap();
    for (at, writer) in WRITERS.into_iter().enumerate() {
        let (words, input) = full.words(writer);
        // Every other time without a free inode: then the file cannot even be created.
        let (output, left) = full.run(if at % 2 == 0 { "" } else { "nr_inodes=2" }, &input, &words);
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(1), "{writer}: {said}");
        assert!(said.contains("No space left on device") && said.contains("full/new"), "{writer}: {said}");
        assert_eq!(left, "", "{writer}: {said}");
        // The temporary name means nothing to a user.
        assert!(!said.contains("panicked") && !said.contains(".latent-"), "{writer}: {said}");
    }
}

#[test]
fn a_model_is_not_pulled_onto_a_full_file_system() {
    let Some(full) = FullDisk::new() else { return };
    let hub = hub::Hub::new(vec![hub::large("m-Q4_0.gguf", hub::noise(50_000, 1))]);
    for options in ["", "nr_inodes=2"] {
        let url = format!("HF_ENDPOINT={}", hub.url);
        let words = ["env", &url, env!("CARGO_BIN_EXE_latent"), "pull", "hf:o/n"].map(str::to_owned);
        let (output, left) = full.run(options, "", &words);
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(1), "{options}: {said}");
        assert!(said.contains("full/cache: 50.00 kB are needed, but 0 B are free"), "{options}: {said}");
        assert_eq!(left, "", "{options}: {said}");
    }
}

/// A server answers without the cache that it cannot write, reports it, and leaves only the folder.
#[test]
fn a_server_leaves_no_prefixes_on_a_full_file_system() {
    let Some(full) = FullDisk::new() else { return };
    let (words, _) = full.words("serve --port 0 --ctx-size 512 -t 1 --stop-at-eof --cache-disk {}");
    let (mut command, listed) = full.command("", &words);
    let mut server = command.spawn().unwrap();
    let mut line = String::new();
    BufReader::new(server.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let (_, address) = line.trim().split_once(" at http://").unwrap_or_else(|| panic!("{line:?}"));
    let prompt = "The fox carried a lantern through the wood. ".repeat(16);
    let body = format!("{{\"prompt\": \"{prompt}\", \"max_tokens\": 2}}");
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let length = body.len();
    let head = format!(
        "POST /v1/completions HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n"
    );
    stream.write_all((head + &body).as_bytes()).unwrap();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).unwrap();
    assert!(reply.starts_with("HTTP/1.1 200"), "{reply}");
    // It ends when its input ends, after pending writes.
    drop(server.stdin.take());
    let output = server.wait_with_output().unwrap();
    let said = stderr(&output);
    assert!(said.contains("full/new/") && said.contains("No space left on device"), "{said}");
    assert_eq!(std::fs::read_to_string(listed).unwrap(), "./new\n", "{said}");
}

/// Output goes to a device that is always full.
#[test]
fn output_that_cannot_be_written_is_an_error() {
    for line in [
        "completions bash",
        "licenses",
        "--help",
        "run --help",
        "--version",
        "devices --json",
        "inspect --json",
        "inspect",
        "check",
        "graph",
        "tokenize Hi",
        "logits --tokens 1,2",
        "verify --rules",
        "kernels support",
        "run -q -n 2 Hi",
        "run -q -n 2 --json Hi",
        "bench -t 1 -p 1 -n 0 -r 1 --json",
        "profile -t 1 -p 1 -n 1 --json",
        "ls --json",
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_latent"));
        command.args(line.split(' ')).env_remove("LATENT_MODEL").stdin(Stdio::null());
        let output = command.stdout(File::options().write(true).open("/dev/full").unwrap()).output().unwrap();
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(1), "{line}: {said}");
        assert!(said.contains("standard output: No space left on device"), "{line}: {said}");
    }
}
