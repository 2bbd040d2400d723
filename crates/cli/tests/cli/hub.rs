//! `latent pull`, `ls`, `rm` and `-m hf:…`, against a small hub of our own on loopback.

use crate::support;
use crate::support::hub::{COMMIT, Hub, HubFile, Misdeed, large, noise, sha256, small};
use assert_cmd::Command;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::time::{Duration, Instant};

const FILE: &str = "mla-demo-Q4_K_M.gguf";

/// A separate home folder and a hub.
pub(crate) struct HubHome {
    home: tempfile::TempDir,
    pub(crate) hub: Hub,
}

impl HubHome {
    pub(crate) fn new(files: Vec<HubFile>) -> HubHome {
        HubHome { home: tempfile::tempdir().unwrap(), hub: Hub::new(files) }
    }

    /// With the demo model in the repository `o/n`, and a quant of random bytes.
    pub(crate) fn with_demo() -> (HubHome, Vec<u8>) {
        let bytes = std::fs::read(support::demo()).unwrap();
        let other = large("mla-demo-Q8_0.gguf", noise(3_000_000, 1));
        (HubHome::new(vec![small("README.md", "words"), large(FILE, bytes.clone()), other]), bytes)
    }

    /// The environment of a user without other settings.
    pub(crate) fn environment(&self) -> Vec<(&'static str, String)> {
        let home = self.home.path().display().to_string();
        vec![
            ("HOME", home.clone()),
            ("XDG_CACHE_HOME", format!("{home}/cache")),
            ("HF_ENDPOINT", self.hub.url.clone()),
        ]
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = support::latent(args);
        for name in VARIABLES {
            command.env_remove(name);
        }
        command.envs(self.environment()).current_dir(self.home.path());
        command
    }

    fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    /// Standard output of a command that must succeed.
    pub(crate) fn says(&self, args: &[&str]) -> String {
        let output = self.run(args);
        assert!(output.status.success(), "{args:?}: {}", stderr(&output));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Standard error of a command that must fail with this code, in one line that begins with
    /// "error:".
    fn fails(&self, args: &[&str], code: i32) -> String {
        let output = self.run(args);
        let text = stderr(&output);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {text}");
        assert_eq!(text.lines().filter(|line| line.starts_with("error:")).count(), 1, "{text}");
        text
    }

    pub(crate) fn folder(&self) -> PathBuf {
        self.home.path().join("cache/latent/hub/o/n")
    }

    fn part(&self, bytes: &[u8]) -> PathBuf {
        self.folder().join("parts").join(format!("{}.part", sha256(bytes)))
    }
}

/// Variables that the machine's user may have set.
const VARIABLES: [&str; 14] = [
    "HF_TOKEN",
    "HUGGING_FACE_HUB_TOKEN",
    "HF_TOKEN_PATH",
    "HF_HOME",
    "HF_HUB_CACHE",
    "HF_HUB_OFFLINE",
    "HF_HUB_DOWNLOAD_TIMEOUT",
    "LATENT_CACHE",
    "SSL_CERT_FILE",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "ALL_PROXY",
    "http_proxy",
    "all_proxy",
];

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn drafters_and_projectors_are_not_pulled_as_models() {
    let file = |name: &str| large(name, noise(1000, 1));
    let names = ["n-Q4_K_M.gguf", "n-Q8_0.gguf", "mtp-n-Q4_K_M.gguf", "mtp-n-BF16.gguf", "mmproj-n-F16.gguf"];
    let place = HubHome::new(names.map(file).into());
    assert!(place.says(&["pull", "hf:o/n"]).trim_end().ends_with("/n-Q4_K_M.gguf"));
    let said = place.fails(&["pull", "hf:o/n:BF16"], 1);
    assert!(
        said.contains("no model with quant BF16") && !said.contains("mtp") && !said.contains("mmproj"),
        "{said}"
    );
    assert!(said.contains("\n  latent pull hf:o/n:Q4_K_M  # 1.00 kB"), "{said}");
    // Named by its file it is pulled, but it is still not a model.
    assert!(place.says(&["pull", "hf:o/n/mtp-n-BF16.gguf"]).trim_end().ends_with("/mtp-n-BF16.gguf"));
    place.says(&["rm", "hf:o/n:Q4_K_M"]);
    let said = place.fails(&["inspect", "-m", "hf:o/n:BF16"], 1);
    assert!(said.contains("no model with quant BF16"), "{said}");
}

#[test]
fn several_models_of_the_preferred_quant_are_listed_with_a_command_for_each() {
    let file = |name: &str| large(name, noise(1000, 1));
    let place = HubHome::new(["a-Q4_K_M.gguf", "b-Q4_K_M.gguf", "a-Q8_0.gguf"].map(file).into());
    for reference in ["hf:o/n", "hf:o/n:Q4_K_M"] {
        let said = place.fails(&["pull", reference], 1);
        let commands: Vec<&str> =
            said.lines().filter_map(|line| line.trim().strip_prefix("latent ")).collect();
        assert_eq!(commands.len(), 2, "{said}");
        for command in commands {
            let words: Vec<&str> = command.split('#').next().unwrap().split_whitespace().collect();
            assert!(place.says(&words).trim_end().ends_with("-Q4_K_M.gguf"), "{command}");
        }
        for name in ["a-Q4_K_M.gguf", "b-Q4_K_M.gguf"] {
            place.says(&["rm", &format!("hf:o/n/{name}")]);
        }
    }
}

#[test]
fn a_model_is_pulled_run_listed_and_removed() {
    let (place, bytes) = HubHome::with_demo();
    let path = place.says(&["pull", "hf:o/n"]);
    let path = Path::new(path.trim_end());
    assert_eq!(path, place.folder().join(COMMIT).join(FILE));
    assert_eq!(std::fs::read(path).unwrap(), bytes);
    assert_eq!(place.says(&["pull", "-q", "o/n:q4_k_m"]).trim_end(), path.display().to_string());
    let again: Value = serde_json::from_str(&place.says(&["pull", "--json", "hf:o/n:Q4_K_M"])).unwrap();
    assert_eq!((&again["up_to_date"], &again["bytes"]), (&Value::Bool(true), &Value::from(bytes.len())));
    assert_eq!(place.hub.downloads(FILE).len(), 1);
    let requests = place.hub.seen().len();
    // The network is not used for cached files.
    let here = place.says(&["run", "-m", "hf:o/n", "-q", "-n", "8", "--temp", "0", "Tell me a story."]);
    let file = support::demo().display().to_string();
    assert_eq!(here, place.says(&["run", "-m", &file, "-q", "-n", "8", "--temp", "0", "Tell me a story."]));
    assert_eq!(place.hub.seen().len(), requests);
    let listed = place.says(&["ls"]);
    assert!(listed.contains("hf:o/n:Q4_K_M") && listed.contains("just now"), "{listed}");
    assert!(listed.contains(&path.display().to_string()), "{listed}");
    let json: Value = serde_json::from_str(&place.says(&["ls", "--json"])).unwrap();
    assert_eq!(json[0]["model"], "hf:o/n:Q4_K_M");
    assert_eq!(json[0]["commit"], COMMIT);
    let removed = place.says(&["rm", "n:Q4_K_M"]);
    assert!(removed.starts_with("removed hf:o/n:Q4_K_M: ") && removed.contains("MB freed"), "{removed}");
    assert!(!path.exists());
    assert!(place.fails(&["rm", "hf:o/n"], 1).contains("latent ls"));
    assert!(stderr(&place.run(&["ls"])).contains("latent pull"));
}

#[test]
fn every_command_takes_a_model_of_the_hub_and_pulls_it() {
    let (place, _) = HubHome::with_demo();
    let model = "hf:o/n:Q4_K_M";
    let output = place.run(&["tokenize", "-m", model, "fox"]);
    assert!(
        output.status.success() && stderr(&output).contains("pulling hf:o/n:Q4_K_M"),
        "{}",
        stderr(&output)
    );
    for args in [
        &["inspect", model][..],
        &["check", "-m", model],
        &["graph", model],
        &["verify", model],
        &["logits", "-m", model, "--tokens", "1,2"],
        &["diff", "-m", model, "--model-b", model, "--tokens", "1,2"],
    ] {
        place.says(args);
    }
    let mut chat = place.command(&["chat", "-q", "-m", model, "-n", "3"]);
    assert!(chat.write_stdin("Hi\n").output().unwrap().status.success());
    let by_variable =
        place.command(&["run", "-q", "-n", "2", "Hi"]).env("LATENT_MODEL", model).output().unwrap();
    assert!(by_variable.status.success(), "{}", stderr(&by_variable));
    // A packed file is not written into the cache folder, where no command looks for it.
    place.says(&["pack", "-t", "1", "-m", model]);
    assert!(place.home.path().join("n-Q4_K_M.latent").exists());
    assert_eq!(place.hub.downloads(FILE).len(), 1);
}

#[test]
fn errors_are_one_line() {
    let (place, _) = HubHome::with_demo();
    assert!(place.fails(&["pull", "hf:model"], 64).contains("hf:OWNER/NAME"));
    assert!(place.fails(&["run", "-m", "hf:../x", "Hi"], 64).contains("hf:OWNER/NAME"));
    assert!(place.fails(&["run", "-m", "hf:o/none", "Hi"], 1).contains("repository not found"));
    assert!(place.fails(&["run", "-m", "hf:o/n:Q2_K", "Hi"], 1).contains("latent pull hf:o/n:Q4_K_M  # "));
    assert!(place.fails(&["rm", "hf:o/n"], 1).contains("latent ls"));
    let offline = place.command(&["run", "-m", "hf:o/n", "Hi"]).env("HF_HUB_OFFLINE", "1").output().unwrap();
    assert!(stderr(&offline).contains("HF_HUB_OFFLINE"), "{}", stderr(&offline));
    place.hub.misbehave(FILE, [Misdeed::WrongBytes]);
    assert!(place.fails(&["pull", "hf:o/n"], 1).contains("checksum"));
    place.hub.need_token("hf_secret", true);
    let refused = place.fails(&["pull", "hf:o/n"], 1);
    assert!(refused.contains("HF_TOKEN") && refused.contains("accept its licence"), "{refused}");
    let wrong = place.command(&["pull", "hf:o/n"]).env("HF_TOKEN", "hf_guess").output().unwrap();
    assert!(!stderr(&wrong).contains("hf_guess") && wrong.status.code() == Some(1), "{}", stderr(&wrong));
    let right = place.command(&["pull", "hf:o/n"]).env("HF_TOKEN", "hf_secret").output().unwrap();
    assert!(right.status.success(), "{}", stderr(&right));
}

#[test]
fn a_short_name_is_pulled_run_served_and_removed() {
    let (place, bytes) = HubHome::with_demo();
    place.hub.rename("unsloth/GLM-4.7-Flash-GGUF");
    let output = place.run(&["run", "GLM-4.7-flash", "-n", "2", "--temp", "0", "Tell me a story."]);
    let said = stderr(&output);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("pulling hf:unsloth/GLM-4.7-Flash-GGUF: Q4_K_M, 1 file, "), "{said}");
    let path = place.says(&["pull", "-q", "glm-4.7-flash"]);
    assert_eq!(std::fs::read(path.trim_end()).unwrap(), bytes);
    let requests = place.hub.seen().len();
    for args in [
        &["inspect", "glm-4.7-flash"][..],
        &["check", "-m", "glm-4.7-flash:30b"],
        &["tokenize", "-m", "glm-4.7-flash:30b-q4_k_m", "fox"],
        &["run", "-q", "-n", "1", "-m", "glm-4.7-flash:Q4_K_M", "glm-4.7-flash"],
    ] {
        place.says(args);
    }
    let serve = ["serve", "glm-4.7-flash", "--port", "0", "-c", "64", "--stop-at-eof", "--offline"];
    let output = place.command(&serve).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(place.hub.seen().len(), requests);
    // A named quant is used, and an existing file of that name takes precedence.
    assert!(place.says(&["pull", "-q", "glm-4.7-flash:Q8_0"]).trim_end().ends_with("mla-demo-Q8_0.gguf"));
    std::fs::write(place.home.path().join("glm-4.7-flash"), "no model").unwrap();
    assert!(place.fails(&["inspect", "glm-4.7-flash"], 1).contains("glm-4.7-flash"));
    std::fs::remove_file(place.home.path().join("glm-4.7-flash")).unwrap();
    let removed = place.says(&["rm", "glm-4.7-flash:Q8_0"]);
    assert!(removed.contains("GGUF:Q8_0:"), "{removed}");
    place.says(&["rm", "glm-4.7-flash"]);
    assert!(place.fails(&["rm", "glm-4.7-flash"], 1).contains("latent ls"));
}

#[test]
fn short_names_are_listed_and_unknown_ones_list_the_nearest() {
    let place = HubHome::new(Vec::new());
    let listed = place.says(&["ls", "--short-names"]);
    let line = listed.lines().find(|line| line.starts_with("glm-4.7-flash ")).unwrap();
    assert!(line.contains("Q4_K_M") && line.contains("18.31 GB") && line.contains("unsloth/"), "{line}");
    let json: Value = serde_json::from_str(&place.says(&["ls", "--short-names", "--json"])).unwrap();
    assert_eq!(json.as_array().unwrap().len() + 1, listed.lines().count());
    for (args, code) in [
        (&["run", "glm-4.7-flsh"][..], 64),
        (&["run", "glm-4.7-flsh", "Hello"], 64),
        (&["pull", "glm-4.7-flsh"], 64),
        (&["serve", "glm-4.7-flsh"], 1),
        (&["inspect", "glm-4.7-flsh"], 1),
        (&["run", "-m", "glm-4.7-flsh", "Hello"], 1),
    ] {
        let said = place.fails(args, code);
        assert!(said.contains("glm-4.7-flash") && said.contains("latent ls --short-names"), "{said}");
    }
    // A word is a prompt for the demo model if it resembles no name.
    place.says(&["run", "-q", "-n", "1", "Hello"]);
    place.says(&["run", "-q", "-n", "1", "-p", "glm-4.7-flsh"]);
    assert!(place.hub.seen().is_empty());
}

#[test]
#[cfg(unix)]
fn a_signal_keeps_the_partial_download_and_tells_how_to_resume() {
    use std::process::{Command as Program, Stdio};
    let (place, bytes) = HubHome::with_demo();
    place.hub.misbehave(FILE, [Misdeed::Stall(4_000_000)]);
    let mut program = Program::new(assert_cmd::cargo::cargo_bin("latent"));
    program.args(["pull", "hf:o/n"]).envs(place.environment()).env_remove("LATENT_CACHE");
    let child = program.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let deadline = Instant::now() + Duration::from_secs(30);
    while std::fs::metadata(place.part(&bytes)).map_or(0, |part| part.len()) < 4_000_000 {
        assert!(Instant::now() < deadline, "nothing came");
        std::thread::sleep(Duration::from_millis(20));
    }
    let kill = Program::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(kill.success());
    let stopped = Instant::now();
    let output = child.wait_with_output().unwrap();
    assert!(stopped.elapsed() < Duration::from_secs(10), "it waited for the server");
    assert_eq!(output.status.code(), Some(130), "{}", stderr(&output));
    assert!(stderr(&output).contains("4.00 MB of hf:o/n are kept"), "{}", stderr(&output));
    let listed = place.says(&["ls"]);
    assert!(listed.contains("incomplete"), "{listed}");
    place.says(&["pull", "hf:o/n"]);
    assert_eq!(place.hub.downloads(FILE)[1].headers["range"], "bytes=4000000-");
}

/// A limit on file sizes simulates a full disk: both fail a write in the middle.
#[test]
#[cfg(target_os = "linux")]
fn a_disk_that_becomes_full_keeps_downloaded_parts() {
    use std::process::Command as Program;
    let (place, bytes) = HubHome::with_demo();
    let program = assert_cmd::cargo::cargo_bin("latent");
    // In blocks of 512 or 1024 bytes, depending on the shell.
    let line = format!("ulimit -f 3000; exec {} pull hf:o/n", program.display());
    let output = Program::new("sh")
        .args(["-c", &line])
        .envs(place.environment())
        .env_remove("LATENT_CACHE")
        .output()
        .unwrap();
    let text = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("free some space") && text.contains("again to resume"), "{text}");
    let kept = std::fs::metadata(place.part(&bytes)).unwrap().len();
    assert!(kept >= 1_000_000, "{kept}");
    place.says(&["pull", "hf:o/n"]);
    assert_eq!(place.hub.downloads(FILE)[1].headers["range"], format!("bytes={kept}-"));
}

#[test]
fn concurrent_programs_download_once() {
    let (place, bytes) = HubHome::with_demo();
    place.hub.misbehave(FILE, [Misdeed::Slow(Duration::from_millis(100))]);
    let outputs: Vec<Output> = std::thread::scope(|scope| {
        let runs: Vec<_> = (0..2).map(|_| scope.spawn(|| place.run(&["pull", "hf:o/n"]))).collect();
        runs.into_iter().map(|run| run.join().unwrap()).collect()
    });
    for output in &outputs {
        assert!(output.status.success(), "{}", stderr(output));
    }
    assert!(outputs.iter().any(|output| stderr(output).contains("waiting for it")), "no process waited");
    assert_eq!(std::fs::read(place.folder().join(COMMIT).join(FILE)).unwrap(), bytes);
    assert_eq!(place.hub.downloads(FILE).len(), 1);
}

#[test]
fn a_repository_of_llama_servers_flags_is_one_of_the_hub() {
    let (place, _) = HubHome::with_demo();
    let refused = place.fails(&["serve", "--port", "0", "-hf", "o/n", "-hff", FILE, "--offline"], 1);
    assert!(refused.contains("o/n") && refused.contains("--offline"), "{refused}");
    assert!(place.hub.seen().is_empty());
    // Cached models are served without the network, also under the names from variables.
    place.says(&["pull", &format!("hf:o/n/{FILE}")]);
    for (words, variables) in [
        (&["-hf", "o/n", "-hff", FILE, "--offline"][..], &[][..]),
        (&["--offline"], &[("LLAMA_ARG_HF_REPO", "o/n"), ("LLAMA_ARG_HF_FILE", FILE)]),
    ] {
        let serve = [&["serve", "--port", "0", "-c", "64", "--stop-at-eof"], words].concat();
        let output = place.command(&serve).envs(variables.iter().copied()).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned() + &stderr(&output);
        assert!(output.status.success() && said.contains("mla-demo-Q4_K_M at http://"), "{said}");
    }
}
