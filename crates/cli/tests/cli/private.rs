//! Files about conversations are readable by their owner alone, whatever the umask, the folder and
//! the replaced file.

use crate::support::demo;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Commands that write tokens of conversations to `{}`. Behind a bar, the lines of their standard
/// input.
const KEEPERS: [&str; 7] = [
    "run -q -n 2 -m {m} --save {} Hi",
    "run -q -n 2 -m {m} --prompt-cache {} Hi",
    "chat -q -n 2 -m {m} --prompt-cache {}|Hi\n",
    "chat -q -n 2 -m {m}|Hi\n/save {}\n/save {}.json\n",
    "dump --force -m {m} --tokens 1,2,3 {}",
    "logits --force -m {m} --tokens 1,2,3,4,5,6,7,8 --kl-chunk 8 --kl-divergence-base {}",
    "eval perplexity --force -t 1 -m {m} {t} --ctx-size 64 --chunks 1 --kl-divergence-base {}",
];

/// `latent` with an umask that leaves every permission.
fn open_to_all(words: &[&str]) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", "umask 0; exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_latent")]).args(words);
    command.env_remove("LATENT_MODEL").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn run(words: &[&str], input: &str) -> Output {
    let mut child = open_to_all(words).spawn().unwrap();
    // A command that reads nothing may have ended.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    child.wait_with_output().unwrap()
}

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o777
}

fn open_folder(path: &Path) {
    std::fs::DirBuilder::new().mode(0o777).create(path).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o777)).unwrap();
}

#[test]
fn saved_conversations_are_private() {
    let folder = tempfile::tempdir().unwrap();
    let text = folder.path().join("text").display().to_string();
    std::fs::write(&text, "The fox carried a lantern through the wood. ".repeat(20)).unwrap();
    let model = demo().display().to_string();
    for (at, keeper) in KEEPERS.iter().enumerate() {
        let place = folder.path().join(at.to_string());
        open_folder(&place);
        for replaced in [false, true] {
            let target = place.join("kept");
            if replaced && !keeper.contains("--prompt-cache") {
                std::fs::write(&target, "an older file").unwrap();
            }
            if replaced {
                std::fs::set_permissions(&target, std::fs::Permissions::from_mode(0o666)).unwrap();
            }
            let (words, input) = keeper.split_once('|').unwrap_or((keeper, ""));
            let fill = |word: &str| {
                let word = word.replace("{m}", &model).replace("{t}", &text);
                word.replace("{}", &target.display().to_string())
            };
            let words: Vec<String> = words.split(' ').map(fill).collect();
            let output = run(&words.iter().map(String::as_str).collect::<Vec<_>>(), &fill(input));
            assert!(output.status.success(), "{keeper}: {}", String::from_utf8_lossy(&output.stderr));
            for entry in std::fs::read_dir(&place).unwrap() {
                let path = entry.unwrap().path();
                assert_eq!(mode(&path), 0o600, "{keeper}, replaced: {replaced}: {}", path.display());
            }
        }
    }
}

/// A server that ends with the test.
struct PrivateServer(Child);

impl Drop for PrivateServer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn prefixes_on_disk_are_private() {
    let folder = tempfile::tempdir().unwrap();
    let there = folder.path().join("there");
    open_folder(&there);
    for (path, expected) in [(there, 0o777), (folder.path().join("made/here"), 0o700)] {
        let shown = path.display().to_string();
        let words = ["serve", "--port", "0", "--ctx-size", "512", "-t", "1", "--cache-disk", &shown];
        let mut server = PrivateServer(open_to_all(&words).stderr(Stdio::null()).spawn().unwrap());
        let mut line = String::new();
        BufReader::new(server.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let (_, address) = line.trim().split_once(" at http://").unwrap_or_else(|| panic!("{line:?}"));
        let prompt = "The fox carried a lantern through the wood. ".repeat(16);
        let body = format!("{{\"prompt\": \"{prompt}\", \"max_tokens\": 2}}");
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let head = format!(
            "POST /v1/completions HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all((head + &body).as_bytes()).unwrap();
        let mut reply = String::new();
        stream.read_to_string(&mut reply).unwrap();
        assert!(reply.starts_with("HTTP/1.1 200"), "{reply}");
        // Files are written after the answer.
        let deadline = Instant::now() + Duration::from_secs(60);
        let files = loop {
            let files: Vec<_> =
                std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()).collect();
            if files.iter().any(|file| file.extension().is_some_and(|end| end == "kv")) {
                break files;
            }
            assert!(Instant::now() < deadline, "nothing is kept");
            std::thread::sleep(Duration::from_millis(20));
        };
        for file in files.iter().filter(|file| file.exists()) {
            assert_eq!(mode(file), 0o600, "{}", file.display());
        }
        assert_eq!(mode(&path), expected, "{shown}");
    }
}
