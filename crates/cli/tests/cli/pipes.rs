//! Pipes in place of files: every flag that takes a file refuses one at once, and says what it is.

use crate::support;
use crate::support::latent;

/// Command lines that name a file `{p}`, which is a pipe. `{m}` is the demo model, `{t}` a text.
const READERS: [&str; 36] = [
    "run -m {p} Hi",
    "run --circuit {p} Hi",
    "run --grammar {p} Hi",
    "run --json-schema {p} Hi",
    "run --prompt-cache {p} Hi",
    "run --restore {p} Hi",
    "chat --prompt-cache {p}",
    "chat --url http://127.0.0.1:9 --api-key-file {p}",
    "top --once --api-key-file {p}",
    "inspect {p}",
    "check {p}",
    "verify {p}",
    "graph {p}",
    "graph --html page.html --against {p}",
    "graph --html page.html --profile {p}",
    "tokenize -m {p} Hi",
    "convert {p}",
    "quantize -m {p} Q8_0",
    "quantize -m {m} --allow-requantize --imatrix {p} -o out.gguf Q8_0",
    "quantize -m {m} --allow-requantize --target-kl 0.1 --file {p} -o out.gguf Q8_0",
    "pack -m {p}",
    "imatrix -f {p} -o out.gguf",
    "eval perplexity {p}",
    "eval kl {p}",
    "eval kl --kl-divergence-base {p}",
    "eval choice {p}",
    "eval questions {p}",
    "eval retrieval --haystack {p}",
    "eval report page.html {p}",
    "bench --compare {p}",
    "plan-hosts {p}",
    "diff --dump {p}",
    "serve --port 0 --config {p}",
    "serve --port 0 --api-key-file {p}",
    "serve --port 0 --tls-cert {p} --tls-key {t}",
    "serve --port 0 --tls-cert {c} --tls-key {p}",
];

const CERTIFICATE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../hub/tests/tls/localhost.pem");

#[test]
fn no_command_waits_for_a_pipe() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).display().to_string();
    let pipe = at("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    std::fs::write(at("text"), "The fox carried a lantern.").unwrap();
    let model = support::demo().display().to_string();
    for line in READERS {
        let fill = |word: &str| {
            let word = word.replace("{p}", &pipe).replace("{m}", &model).replace("{t}", &at("text"));
            word.replace("{c}", CERTIFICATE)
        };
        let words: Vec<String> = line.split(' ').map(fill).collect();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        // Killed after some seconds: a process that waits to open a pipe handles no signal.
        let mut command = latent(&words);
        command.current_dir(folder.path()).env_remove("LATENT_API_KEY").write_stdin("");
        let output = command.timeout(std::time::Duration::from_secs(60)).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(matches!(output.status.code(), Some(1 | 64)), "{line}: {:?} {said}", output.status);
        assert!(said.contains("a pipe") || said.contains("neither a file nor a folder"), "{line}: {said}");
    }
    // Files named by environment variables.
    for (name, value) in
        [("SSL_CERT_FILE", pipe.clone()), ("HF_TOKEN_PATH", pipe.clone()), ("HF_HOME", at("home"))]
    {
        let token = folder.path().join("home/token");
        if name == "HF_HOME" {
            std::fs::create_dir(token.parent().unwrap()).unwrap();
            std::fs::rename(&pipe, &token).unwrap();
        }
        let mut command = latent(&["pull", "hf:o/n"]);
        command.env("HOME", folder.path()).env("HF_ENDPOINT", "http://127.0.0.1:9").env(name, value);
        for other in ["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_HUB_OFFLINE"] {
            command.env_remove(other);
        }
        let output = command.timeout(std::time::Duration::from_secs(60)).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(1) && said.contains("it is a pipe"), "{name}: {said}");
    }
}
