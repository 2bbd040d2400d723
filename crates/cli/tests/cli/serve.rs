//! `latent serve`: refusals, answers, and shutdown.

use crate::support::latent;
#[cfg(unix)]
use {
    nix::sys::signal::Signal,
    std::io::{BufRead, BufReader, Read, Write},
    std::net::TcpStream,
    std::time::{Duration, Instant},
};

/// The error of wrong usage.
pub(crate) fn misuse(args: &[&str]) -> String {
    let output = latent(args).env_remove("LATENT_API_KEY").output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(64), "{args:?}: {text}");
    text
}

/// The demo model's file.
pub(crate) fn demo() -> String {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    folder.join("../../models/mla-demo-Q4_K_M.gguf").display().to_string()
}

#[test]
fn unsafe_and_unknown_settings_are_refused() {
    assert!(misuse(&["serve", "--port", "0", "--host", "0.0.0.0"]).contains("--api-key-file"));
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let config = file("config.toml", "prot = 80\n");
    assert!(misuse(&["serve", "--port", "0", "--config", &config]).contains("prot"));
    let keys = file("keys", "brief\n");
    let refused = misuse(&["serve", "--port", "0", "--api-key-file", &keys]);
    assert!(refused.contains("line 1") && !refused.contains("brief"), "{refused}");
    assert!(misuse(&["serve", "--port", "0", "--log", "loud"]).contains("loud"));
    assert!(misuse(&["serve", "--unload-idle", "soon"]).contains("10m"));
    let demo = demo();
    let several = |more: &[&str]| misuse(&[&["serve", "-m", &format!("a={demo}")], more].concat());
    assert!(several(&["-m", &format!("a={demo}")]).contains("its own name"));
    assert!(several(&["-m", "b=/no/such.gguf"]).contains("--model b=/no/such.gguf: file not found"));
    assert!(several(&["-m", &format!("b={demo}"), "--alias", "c"]).contains("NAME=MODEL"));
    let endpoint = if cfg!(feature = "otel") { "localhost:4318" } else { "http://127.0.0.1:4318" };
    let word = if cfg!(feature = "otel") { "expected a URL" } else { "--features otel" };
    assert!(misuse(&["serve", "--port", "0", "--otlp-endpoint", endpoint]).contains(word));
    assert!(misuse(&["serve", "--port", "0", "--tls-cert", &keys]).contains("tls-key"));
}

#[test]
fn a_model_that_is_not_supported_is_refused_once_and_with_its_exit_code() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model");
    let name = path.display().to_string();
    assert!(latent(&["make-model", "tiny-v3", "F32", &name]).output().unwrap().status.success());
    let text = std::fs::read_to_string(path.join("config.json")).unwrap();
    std::fs::write(path.join("config.json"), text.replace("deepseek_v3", "llama")).unwrap();
    // A folder without a tokenizer cannot be served, either, and flags of other commands are not
    // suggested.
    for tokenizer in [None, Some(TOKENIZER)] {
        let (code, reason) = (2, "\"llama\" is not supported");
        if let Some(tokenizer) = tokenizer {
            std::fs::write(path.join("tokenizer.json"), tokenizer).unwrap();
        }
        let output = latent(&["serve", "--port", "0", "-m", &name]).output().unwrap();
        let told = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{told}");
        assert_eq!((told.matches(reason).count(), told.contains("--tokens")), (1, false), "{told}");
    }
}

const TOKENIZER: &str =
    r#"{"model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": [["a", "b"]]}}"#;

#[test]
fn impossible_restarts_are_refused() {
    assert!(misuse(&["serve", "--restart"]).contains("add --partition, or --launch"));
    assert!(misuse(&["serve", "--launch", "mpirun"]).contains("--restart"));
    assert!(
        misuse(&["serve", "--restart", "--stop-at-eof", "--partition", "pipeline=2"]).contains("--restart")
    );
    assert!(misuse(&["serve", "--restart", "--launch", " "]).contains("the command is empty"));
    // Ranks cannot start ranks: environments of Open MPI's mpirun, and of Slurm's srun with PMIx
    // and PMI.
    for launcher in ["OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_SIZE"] {
        let within = latent(&["serve", "--restart", "--partition", "pipeline=2"]).env(launcher, "2").output();
        let within = within.unwrap();
        let text = String::from_utf8(within.stderr).unwrap();
        assert!(within.status.code() == Some(64) && text.contains("--launch \"mpirun"), "{launcher}: {text}");
    }
    #[cfg(not(feature = "mpi"))]
    assert!(misuse(&["serve", "--restart", "--partition", "pipeline=2"]).contains("built without MPI"));
}

/// A program that serves the demo model.
#[cfg(unix)]
pub(crate) mod running {
    use nix::sys::signal::{Signal, kill};
    use nix::unistd::Pid;
    use std::io::{BufRead, BufReader, Read, Write};
    use std::net::TcpStream;
    use std::process::{Child, Command, Stdio};
    use std::time::{Duration, Instant};

    /// Timeout on a machine with other load.
    const PATIENCE: Duration = Duration::from_secs(60);

    pub struct ServeProcess {
        child: Child,
        /// The model's name.
        pub name: String,
        pub address: String,
    }

    impl Drop for ServeProcess {
        fn drop(&mut self) {
            // A server that has ended need not be killed.
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }

    impl ServeProcess {
        /// Starts it with this configuration file and as many file descriptors, if that is said,
        /// and waits until it answers.
        pub fn start(config: &str, files: Option<usize>) -> ServeProcess {
            ServeProcess::start_with(config, files, &[("LATENT_ALIAS", "from-the-environment")])
        }

        /// Starts it with these environment variables.
        pub fn start_with(config: &str, files: Option<usize>, environment: &[(&str, &str)]) -> ServeProcess {
            ServeProcess::start_all(config, files, environment, &[])
        }

        /// Starts it with these flags.
        pub fn start_flags(flags: &[&str]) -> ServeProcess {
            ServeProcess::start_all("", None, &[], flags)
        }

        /// Starts it with these words and variables alone, and no model from the environment.
        pub fn start_words(words: &[&str], environment: &[(&str, String)]) -> ServeProcess {
            let mut command = Command::new(crate::support::program());
            command.env_remove("LATENT_MODEL").env_remove("LATENT_API_KEY");
            command.args(["serve", "--port", "0", "--threads", "1"]).args(words);
            command.envs(environment.iter().map(|(name, value)| (name, value)));
            ServeProcess::of(&mut command)
        }

        pub fn start_all(
            config: &str,
            files: Option<usize>,
            environment: &[(&str, &str)],
            flags: &[&str],
        ) -> ServeProcess {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("config.toml");
            std::fs::write(&path, config).unwrap();
            let program = crate::support::program();
            let mut command = match files {
                None => Command::new(program),
                Some(files) => {
                    let mut shell = Command::new("sh");
                    shell.args(["-c", &format!("ulimit -n {files}; exec \"$0\" \"$@\"")]).arg(program);
                    shell
                }
            };
            command
                .args(["serve", "--port", "0", "--ctx-size", "512", "--threads", "1", "--config"])
                .arg(&path)
                .args(flags)
                .env_remove("LATENT_MODEL")
                .env_remove("LATENT_API_KEY")
                .envs(environment.iter().copied());
            ServeProcess::of(&mut command)
        }

        fn of(command: &mut Command) -> ServeProcess {
            let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
            let mut line = String::new();
            BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
            let (name, address) = line.trim().split_once(" at http://").unwrap_or_else(|| panic!("{line:?}"));
            ServeProcess { child, name: name.to_owned(), address: address.to_owned() }
        }

        pub fn connect(&self) -> TcpStream {
            let stream = TcpStream::connect(&self.address).unwrap();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            stream
        }

        /// Sends a request's head with a content length, and a part of the body.
        pub fn begin(&self, line: &str, announced: usize, body: &str) -> TcpStream {
            let mut stream = self.connect();
            let host = &self.address;
            let head = format!(
                "{line} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\nContent-Length: {announced}\r\n\r\n{body}"
            );
            stream.write_all(head.as_bytes()).unwrap();
            stream
        }

        pub fn get(&self, path: &str) -> String {
            rest(self.begin(&format!("GET {path}"), 0, ""))
        }

        pub fn post(&self, path: &str, body: &str) -> TcpStream {
            self.begin(&format!("POST {path}"), body.len(), body)
        }

        pub fn signal(&self, signal: Signal) {
            kill(Pid::from_raw(i32::try_from(self.child.id()).unwrap()), signal).unwrap();
        }

        /// Waits until it has received a signal.
        pub fn wait_draining(&self) {
            let deadline = Instant::now() + PATIENCE;
            while !self.get("/health").starts_with("HTTP/1.1 503") {
                assert!(Instant::now() < deadline, "it does not hear");
                std::thread::sleep(Duration::from_millis(5));
            }
        }

        pub fn is_running(&mut self) -> bool {
            self.child.try_wait().unwrap().is_none()
        }

        /// Waits for its exit code.
        pub fn end(&mut self) -> Option<i32> {
            let deadline = Instant::now() + PATIENCE;
            while self.is_running() {
                assert!(Instant::now() < deadline, "it does not end");
                std::thread::sleep(Duration::from_millis(5));
            }
            self.child.wait().unwrap().code()
        }
    }

    /// Everything received until the server closes the connection.
    pub fn rest(mut stream: impl Read) -> String {
        let mut reply = String::new();
        stream.read_to_string(&mut reply).unwrap();
        reply
    }
}

#[cfg(unix)]
#[test]
fn a_server_answers_until_it_is_stopped() {
    // Flag and environment override the file.
    let mut server =
        running::ServeProcess::start("alias = \"from-the-file\"\nport = 1\nparallel = 3\n", None);
    assert_eq!(server.name, "from-the-environment");
    for (path, part) in [("/props", "\"total_slots\":3"), ("/latent/graph", "<svg")] {
        let reply = server.get(path);
        assert!(reply.starts_with("HTTP/1.1 200") && reply.contains(part), "{reply}");
    }
    server.signal(Signal::SIGTERM);
    assert_eq!(server.end(), Some(143));
}

/// Flags and the same settings in a config file.
const DEFAULTS: (&str, &str) = (
    "--n-predict 7 --seed 11 --stop fox --logprobs 2 --temp 0.25 --top-k 3 --repeat-last-n -1 --dry-allowed-length 5 \
     --dry-penalty-last-n 32 --dry-sequence-breaker \\n --dry-sequence-breaker x --min-keep 2 --sampler-seq kt --mirostat 0 \
     --top-nsigma 1.5 --ignore-eos --no-model-sampling --parallel 3 --cache-tokens 1024 --keep 5",
    r#"
n_predict = 7
seed = 11
stop = "fox"
logprobs = 2
temp = 0.25
top_k = 3
repeat-last-n = -1
dry_allowed_length = 5
dry_penalty_last_n = 32
dry_sequence_breaker = ["\\n", "x"]
min_keep = 2
sampler_seq = "kt"
mirostat = 0
top_nsigma = 1.5
ignore_eos = true
no_model_sampling = true
parallel = 3
cache_tokens = 1024
keep = 5
"#,
);

#[cfg(unix)]
#[test]
fn defaults_of_requests_come_from_flags() {
    let flags: Vec<&str> = DEFAULTS.0.split_whitespace().collect();
    has_the_defaults(running::ServeProcess::start_flags(&flags));
    assert!(misuse(&["serve", "--port", "0", "--temp", "101"]).contains("temperature is 101"));
}

#[cfg(unix)]
#[test]
fn defaults_of_requests_come_from_a_file() {
    has_the_defaults(running::ServeProcess::start(DEFAULTS.1, None));
}

#[cfg(unix)]
fn has_the_defaults(mut server: running::ServeProcess) {
    let (_, props) =
        server.get("/props").split_once("\r\n\r\n").map(|(a, b)| (a.to_owned(), b.to_owned())).unwrap();
    let props: serde_json::Value = serde_json::from_str(&props).unwrap();
    let params = &props["default_generation_settings"]["params"];
    for (name, value) in [
        ("n_predict", serde_json::json!(7)),
        ("seed", serde_json::json!(11)),
        ("stop", serde_json::json!(["fox"])),
        ("n_probs", serde_json::json!(2)),
        ("temperature", serde_json::json!(0.25)),
        ("top_k", serde_json::json!(3)),
        ("repeat_last_n", serde_json::json!(-1)),
        ("dry_allowed_length", serde_json::json!(5)),
        ("dry_penalty_last_n", serde_json::json!(32)),
        ("dry_sequence_breakers", serde_json::json!(["\n", "x"])),
        ("min_keep", serde_json::json!(2)),
        ("n_keep", serde_json::json!(5)),
        ("samplers", serde_json::json!(["top_k", "temperature"])),
        ("top_n_sigma", serde_json::json!(1.5)),
        ("ignore_eos", serde_json::json!(true)),
    ] {
        assert_eq!(params[name], value, "{name}: {props}");
    }
    assert_eq!(props["total_slots"], 3);
    let stats = server.get("/latent/stats");
    let blocks = 1024 / latent_backend::KV_BLOCK;
    assert!(
        stats.contains(&format!("\"total\":{blocks}")) || stats.contains(&format!("\"free\":{blocks}")),
        "{stats}"
    );
    let answer =
        running::rest(server.post(
            CHAT,
            r#"{"messages":[{"role":"user","content":"Hi"}],"max_tokens":400,"ignore_eos":true}"#,
        ));
    assert!(
        answer.contains("\"completion_tokens\":7") || answer.contains("\"finish_reason\":\"stop\""),
        "{answer}"
    );
    assert!(answer.contains("top_logprobs"), "{answer}");
    server.signal(Signal::SIGTERM);
    assert_eq!(server.end(), Some(143));
}

#[cfg(unix)]
#[test]
fn pooling_the_cache_and_verbose_answers_are_switched_by_flags() {
    let mut server = running::ServeProcess::start_flags(&["--pooling", "none", "-v", "--no-cache-prompt"]);
    let tokens = json(&running::rest(server.post("/tokenize", r#"{"content":"A fox","add_special":true}"#)));
    let reply = json(&running::rest(server.post("/embeddings", r#"{"input":"A fox"}"#)));
    let vectors = reply[0]["embedding"].as_array().unwrap();
    assert_eq!(vectors.len(), tokens["tokens"].as_array().unwrap().len(), "{reply}");
    assert!(vectors.iter().all(|vector| {
        let square: f64 = vector.as_array().unwrap().iter().map(|x| x.as_f64().unwrap().powi(2)).sum();
        (square - 1.0).abs() > 1e-3
    }));
    let refused = running::rest(server.post("/v1/embeddings", r#"{"input":"A fox"}"#));
    assert!(refused.starts_with("HTTP/1.1 400") && refused.contains("--pooling"), "{refused}");
    let ask = |more: &str| {
        let body = format!(r#"{{"messages":[{{"role":"user","content":"Hi"}}],"max_tokens":2{more}}}"#);
        json(&running::rest(server.post("/v1/chat/completions", &body)))
    };
    let prompt = ask("")["__verbose"]["prompt"].as_str().map(str::to_owned);
    assert!(prompt.as_deref().is_some_and(|prompt| prompt.contains("Hi")), "{prompt:?}");
    assert!(ask(r#","verbose":false"#)["__verbose"].is_null());
    let cached = |more: &str| {
        let body = format!(r#"{{"prompt":"{}","n_predict":1{more}}}"#, "a fox ".repeat(60));
        json(&running::rest(server.post("/completion", &body)))["timings"]["cache_n"].as_u64()
    };
    assert_eq!([cached(""), cached("")], [Some(0); 2]);
    assert!(cached(r#","cache_prompt":true"#).is_some());
    assert!(cached(r#","cache_prompt":true"#) > Some(0));
    server.signal(Signal::SIGTERM);
    assert_eq!(server.end(), Some(143));
}

/// The JSON of a response.
#[cfg(unix)]
pub(crate) fn json(response: &str) -> serde_json::Value {
    let body = response.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{response}")).1;
    serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {response}"))
}

#[cfg(unix)]
#[test]
fn context_shift_continues_an_answer_of_chat() {
    let body = r#"{"prompt":"Once upon a time","n_predict":120,"ignore_eos":true}"#;
    for (flags, tokens) in [(&["-c", "64", "--context-shift"][..], Some(120)), (&["-c", "64"], None)] {
        let server = running::ServeProcess::start_flags(flags);
        let answer = json(&running::rest(server.post("/completion", body)));
        assert_eq!(answer["truncated"], true, "{answer}");
        let predicted = answer["tokens_predicted"].as_u64().unwrap();
        assert!(tokens.map_or(predicted < 64, |tokens| predicted == tokens), "{answer}");
    }
}

#[test]
fn flags_of_llama_server_have_their_effects() {
    const TEMPLATE: &str = "{%- for m in messages -%}[{{ m.role }}: {{ m.content }}]{%- endfor -%}\
                            {%- if add_generation_prompt -%}think={{ enable_thinking }},{{ reasoning_effort }},{{ extra }}:{%- endif -%}";
    let mut server = running::ServeProcess::start_flags(&[
        "-fa",
        "--jinja",
        "-np",
        "3",
        "-a",
        "first,second",
        "--tags",
        "small,fast",
        "--no-webui",
        "--api-prefix",
        "/llm",
        "--ignore-eos",
        "--no-prefill-assistant",
        "--special",
        "--reasoning",
        "off",
        "--reasoning-effort",
        "low",
        "--chat-template",
        TEMPLATE,
        "--chat-template-kwargs",
        "{\"extra\": 7}",
        "--grammar",
        "root ::= \"ab\"+",
        "--host",
        "127.0.0.1,::1",
        "--no-slots",
        "--pooling",
        "cls",
    ]);
    assert_eq!(server.name, "first");
    let slots = server.get("/llm/slots");
    assert!(slots.starts_with("HTTP/1.1 501") && slots.contains("--no-slots"), "{slots}");
    // All texts begin with the same token.
    let body = r#"{"input":["A fox","The lantern"]}"#;
    let vectors = json(&running::rest(server.post("/llm/v1/embeddings", body)));
    assert_eq!(vectors["data"][0]["embedding"], vectors["data"][1]["embedding"], "{vectors}");
    // Everything is below the prefix, and the page is disabled.
    let outside = server.get("/v1/models");
    assert!(outside.starts_with("HTTP/1.1 404") && outside.contains("/llm"), "{outside}");
    for page in ["/llm/", "/llm/assets/api.js", "/llm/favicon.ico"] {
        let reply = server.get(page);
        assert!(reply.starts_with("HTTP/1.1 404") && reply.contains("--no-ui"), "{page}: {reply}");
    }
    assert!(server.get("/llm").contains("location: /llm/"));
    let models = json(&server.get("/llm/v1/models"));
    let model = &models["data"][0];
    assert_eq!(model["id"], "first");
    assert_eq!(model["aliases"], serde_json::json!(["first", "second"]));
    assert_eq!(model["tags"], serde_json::json!(["small", "fast"]));
    assert_eq!(json(&server.get("/llm/v1/models/second"))["id"], "first");
    assert_eq!(json(&server.get("/llm/props"))["total_slots"], 3);
    // Templates: variables of flags, overridden by those of a request.
    let render = |body: &str| {
        let reply = json(&running::rest(server.post("/llm/apply-template", body)));
        reply["prompt"].as_str().unwrap_or_else(|| panic!("{reply}")).to_owned()
    };
    let user = r#"{"role":"user","content":"Hi"}"#;
    let prompt = render(&format!(r#"{{"messages":[{user}]}}"#));
    assert!(prompt.to_lowercase().ends_with("[user: hi]think=false,low,7:"), "{prompt}");
    let own = render(&format!(
        r#"{{"messages":[{user}],"chat_template_kwargs":{{"enable_thinking":true,"extra":8}}}}"#
    ));
    assert!(own.to_lowercase().ends_with("[user: hi]think=true,low,8:"), "{own}");
    // A final assistant message is answered, unless the request continues it.
    let messages = format!(r#""messages":[{user},{{"role":"assistant","content":"Yo"}}]"#);
    let answered = render(&format!("{{{messages}}}"));
    assert!(answered.contains("[assistant: Yo]think="), "{answered}");
    let continued =
        render(&format!(r#"{{{messages},"continue_final_message":true,"add_generation_prompt":false}}"#));
    assert!(continued.ends_with("Yo") && !continued.contains("[assistant"), "{continued}");
    // The grammar applies to all requests, and the end token is banned.
    for (path, body) in [
        ("/llm/completion", r#"{"prompt":"x","n_predict":6}"#.to_owned()),
        ("/llm/v1/chat/completions", format!(r#"{{"messages":[{user}],"max_tokens":6}}"#)),
    ] {
        let reply = json(&running::rest(server.post(path, &body)));
        let text = reply["content"].as_str().or(reply["choices"][0]["message"]["content"].as_str()).unwrap();
        assert!(text.starts_with("ab") && text.replace("ab", "").trim_end_matches('a').is_empty(), "{reply}");
        let made = reply["tokens_predicted"].as_u64().or(reply["usage"]["completion_tokens"].as_u64());
        assert_eq!(made, Some(6), "{reply}");
    }
    // A request's own grammar takes precedence.
    let own = r#"{"prompt":"x","n_predict":6,"ignore_eos":false,"grammar":"root ::= \"c\""}"#;
    assert_eq!(json(&running::rest(server.post("/llm/completion", own)))["content"], "c");
    // The other address has the same port.
    let port = server.address.rsplit_once(':').unwrap().1.parse::<u16>().unwrap();
    assert!(TcpStream::connect(("::1", port)).is_ok());
    server.signal(Signal::SIGTERM);
    assert_eq!(server.end(), Some(143));
    for (words, text) in [
        (&["--pooling", "rank"][..], "mean, last, cls or none"),
        (&["--grammar", "root ::= x"], "--grammar"),
        (&["--chat-template", "{% if %}"], "--chat-template"),
        (&["--chat-template", "llama3"], "only chatml is supported"),
        (&["--chat-template-kwargs", "[1]"], "expected a JSON object"),
        (&["--api-prefix", "llm"], "--api-prefix llm"),
        (&["--host", "127.0.0.1,0.0.0.0"], "not a loopback address"),
    ] {
        let refused = misuse(&[&["serve", "--port", "0", "-c", "64"], words].concat());
        assert!(refused.contains(text), "{words:?}: {refused}");
    }
}

#[cfg(unix)]
#[test]
fn flags_without_an_effect_are_reported_only_with_verbose() {
    let serve = |more: &[&str]| {
        let words =
            [&["serve", "--port", "0", "-c", "64", "--stop-at-eof", "--jinja", "-fa", "on"], more].concat();
        let output = latent(&words).env("LLAMA_ARG_MLOCK", "1").write_stdin("").output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{text}");
        text
    };
    assert!(!serve(&[]).contains("has no effect"));
    let told = serve(&["-v"]);
    for line in [
        "--jinja has no effect: ",
        "-fa has no effect: attention is always fused",
        "LLAMA_ARG_MLOCK has no effect",
    ] {
        assert!(told.contains(line), "{line}: {told}");
    }
}

#[cfg(unix)]
#[test]
fn a_folder_is_served_and_requests_load_nothing() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["one.gguf", "two.gguf"] {
        std::os::unix::fs::symlink(demo(), folder.path().join(name)).unwrap();
    }
    let path = folder.path().display().to_string();
    let mut server = running::ServeProcess::start_flags(&["--models-dir", &path, "--no-models-autoload"]);
    assert_eq!(server.name, "one, two");
    let ask = |server: &running::ServeProcess| {
        running::rest(server.post("/tokenize", "{\"model\":\"two\",\"content\":\"a fox\"}"))
    };
    let refused = ask(&server);
    assert!(refused.starts_with("HTTP/1.1 400") && refused.contains("POST /models/load"), "{refused}");
    assert_eq!(json(&server.get("/v1/models"))["data"][1]["status"]["value"], "unloaded");
    let loading = running::rest(server.post("/models/load", "{\"model\":\"two\"}"));
    assert!(loading.starts_with("HTTP/1.1 200"), "{loading}");
    // It waits for a model that is being loaded.
    let answered = ask(&server);
    assert!(answered.starts_with("HTTP/1.1 200"), "{answered}");
    server.signal(Signal::SIGTERM);
    assert_eq!(server.end(), Some(143));
}

#[cfg(unix)]
#[test]
fn keys_come_from_arguments_and_llama_servers_variable() {
    for (flags, variables, keys) in [
        (&["--api-key", "secret-number-1,secret-number-2"][..], &[][..], 2),
        (&[], &[("LLAMA_API_KEY", "secret-number-1,secret-number-2")], 2),
        (&[], &[("LLAMA_API_KEY", "secret-number-2"), ("LATENT_API_KEY", "secret-number-1")], 1),
    ] {
        let mut server = running::ServeProcess::start_all("", None, variables, flags);
        for key in 1..=2 {
            let line = "GET /v1/models HTTP/1.1\r\nHost: x\r\nConnection: close\r\n";
            let mut stream = server.connect();
            write!(stream, "{line}Authorization: Bearer secret-number-{key}\r\n\r\n").unwrap();
            let reply = running::rest(stream);
            let status = if key <= keys { "HTTP/1.1 200" } else { "HTTP/1.1 401" };
            assert!(reply.starts_with(status), "{flags:?} {variables:?} {key}: {reply}");
        }
        server.signal(Signal::SIGTERM);
        assert_eq!(server.end(), Some(143));
    }
    let refused = misuse(&["serve", "--port", "0", "--api-key", "short"]);
    assert!(refused.contains("--api-key") && refused.contains("other users of this machine"), "{refused}");
}

#[cfg(unix)]
#[test]
fn a_port_in_use_is_named_with_the_flag() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let output = latent(&["serve", "--port", &port, "--ctx-size", "64"]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && text.contains("--port"), "{text}");
}

#[cfg(unix)]
#[test]
fn the_cpu_takes_over_if_the_gpu_is_missing() {
    let settings = "device = \"gpu:9999\"\nn_gpu_layers = 3\ngpu_fallback = \"cpu\"\n";
    let mut server = running::ServeProcess::start(settings, None);
    let body = r#"{"messages":[{"role":"user","content":"Hi"}],"max_tokens":4}"#;
    let answer = running::rest(server.post(CHAT, body));
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    server.signal(Signal::SIGTERM);
    assert_eq!(server.end(), Some(143));
    // Without it, the error tells what to do.
    let refused = latent(&["serve", "--port", "0", "--device", "gpu:9999"]).output().unwrap();
    let message = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(1), "{message}");
    assert!(message.contains("--device cpu") || message.contains("`latent devices`"), "{message}");
    assert!(misuse(&["serve", "--gpu-fallback", "gpu"]).contains("expected cpu or none"));
}

#[cfg(unix)]
const CHAT: &str = "/v1/chat/completions";

#[cfg(unix)]
#[test]
fn answers_end_after_the_first_signal_and_others_are_refused() {
    let mut server =
        running::ServeProcess::start("[limits]\nbody_seconds = 600\ndrain_seconds = 600\n", None);
    let messages = "\"messages\": [{\"role\": \"user\", \"content\": \"Tell me a story.\"}]";
    let long =
        format!("{{{messages}, \"max_tokens\": 450, \"ignore_eos\": true, \"n\": 8, \"stream\": true}}");
    let mut stream = BufReader::new(server.post(CHAT, &long));
    let mut line = String::new();
    while !line.contains("\"content\"") {
        line.clear();
        assert!(stream.read_line(&mut line).unwrap() > 0);
    }
    // A request that the server waits for, so that it does not end before the rest of the test.
    let body = format!("{{{messages}}}");
    let (first, last) = body.split_at(10);
    let mut unfinished = server.begin(&format!("POST {CHAT}"), body.len(), first);
    server.signal(Signal::SIGTERM);
    server.wait_draining();
    let refused = running::rest(server.post(CHAT, &body));
    assert!(refused.starts_with("HTTP/1.1 503") && refused.contains("shutting down"), "{refused}");
    assert!(refused.contains("retry-after: "), "{refused}");
    let answer = running::rest(stream);
    assert_eq!(answer.matches("\"finish_reason\":\"length\"").count(), 8);
    assert!(answer.contains("data: [DONE]"), "{answer}");
    assert!(server.is_running());
    unfinished.write_all(last.as_bytes()).unwrap();
    let refused = running::rest(unfinished);
    assert!(refused.starts_with("HTTP/1.1 503"), "{refused}");
    assert_eq!(server.end(), Some(143));
}

#[cfg(unix)]
#[test]
fn the_second_signal_ends_it_at_once() {
    for (second, code) in [(Signal::SIGTERM, 143), (Signal::SIGINT, 130)] {
        let mut server =
            running::ServeProcess::start("[limits]\nbody_seconds = 600\ndrain_seconds = 600\n", None);
        let unfinished = server.begin(&format!("POST {CHAT}"), 100, "{");
        // The request's headers have been read when another one is answered.
        assert!(server.get("/health").starts_with("HTTP/1.1 200"));
        server.signal(Signal::SIGTERM);
        server.wait_draining();
        assert!(server.is_running());
        server.signal(second);
        assert_eq!(server.end(), Some(code));
        drop(unfinished);
    }
}

#[cfg(unix)]
#[test]
fn several_models_come_from_the_environment_and_are_not_loaded_at_once() {
    let demo = demo();
    let models = format!("one={demo},two={demo}");
    let environment = [("LATENT_MODEL", models.as_str()), ("LATENT_UNLOAD_IDLE", "10m")];
    let mut server = running::ServeProcess::start_with("models_max = 1\n", None, &environment);
    assert_eq!(server.name, "one, two");
    let list = server.get("/v1/models");
    assert!(
        list.contains("\"id\":\"two\"") && list.contains("unloaded") && !list.contains("\"n_ctx\""),
        "{list}"
    );
    assert!(server.get("/latent/graph?model=two").contains("<svg"));
    let reply = running::rest(server.post("/tokenize", "{\"model\":\"two\",\"content\":\"a fox\"}"));
    assert!(reply.starts_with("HTTP/1.1 200"), "{reply}");
    assert!(server.get("/props?model=two").contains("\"is_sleeping\":false"));
    server.signal(Signal::SIGTERM);
    assert_eq!(server.end(), Some(143));
}

#[cfg(unix)]
#[test]
fn connections_beyond_the_file_descriptors_do_not_block_clients() {
    let mut server = running::ServeProcess::start("", Some(128));
    let mut idle: Vec<TcpStream> = (0..800).map(|_| server.connect()).collect();
    let start = Instant::now();
    assert!(server.get("/health").starts_with("HTTP/1.1 200"));
    // It does not wait for idle connections.
    assert!(start.elapsed() < Duration::from_secs(8), "{:?}", start.elapsed());
    // Most connections have been closed.
    assert_eq!(idle[0].read(&mut [0]).unwrap(), 0);
    assert!(server.is_running());
}
