//! `latent serve` as a router: presets, cached models, downloads, and lists that are read again.

use crate::hub::HubHome;
use crate::serve::running::{ServeProcess, rest};
use crate::serve::{demo, json, misuse};
use crate::support::hub::{large, noise};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Lines};
use std::net::TcpStream;
use std::path::Path;

const FILE: &str = "mla-demo-Q4_K_M.gguf";
const NAME: &str = "o/n:Q4_K_M";

fn names(reply: &str) -> Vec<String> {
    assert!(reply.starts_with("HTTP/1.1 200"), "{reply}");
    let list = json(reply);
    list["data"].as_array().unwrap().iter().map(|one| one["id"].as_str().unwrap().to_owned()).collect()
}

fn post(server: &ServeProcess, path: &str, body: &Value) -> Value {
    json(&rest(server.post(path, &body.to_string())))
}

/// Tokenizes with a model, which loads it. The context of the model afterwards.
fn context(server: &ServeProcess, model: &str) -> Value {
    let tokens = post(server, "/tokenize", &json!({"model": model, "content": "a fox"}));
    assert!(tokens["tokens"].is_array(), "{model}: {tokens}");
    let list = json(&server.get("/models"));
    let all = list["data"].as_array().unwrap();
    all.iter().find(|one| one["id"] == model).map_or(Value::Null, |one| one["meta"]["n_ctx"].clone())
}

/// The events of a server. Reads have a timeout.
struct Events(Lines<BufReader<TcpStream>>);

impl Events {
    fn of(server: &ServeProcess) -> Events {
        let mut lines = BufReader::new(server.begin("GET /models/sse", 0, "")).lines();
        assert!(lines.any(|line| line.unwrap().is_empty()));
        Events(lines)
    }

    /// The kinds of the events up to one of these kinds, and that one's data.
    fn until(&mut self, kinds: &[&str]) -> (Vec<String>, Value) {
        let mut seen = Vec::new();
        loop {
            let data = self.0.find_map(|line| Some(line.unwrap().strip_prefix("data: ")?.to_owned()));
            let event: Value = serde_json::from_str(&data.expect("the stream continues")).unwrap();
            seen.push(event["event"].as_str().unwrap().to_owned());
            if kinds.contains(&seen[seen.len() - 1].as_str()) {
                return (seen, event["data"].clone());
            }
        }
    }
}

fn write(path: &Path, text: &str) {
    std::fs::write(path, text.replace("DEMO", &demo())).unwrap();
}

#[test]
fn presets_are_models_with_their_own_settings() {
    let place = HubHome::new(Vec::new());
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("models.ini");
    let path = file.display().to_string();
    write(
        &file,
        "version = 1\n; for all\n[*]\nc = 256\nport = 1\n[a]\nmodel = DEMO\nLLAMA_ARG_CTX_SIZE = 128\nalias = first, second\ntags = x\n\
         [b]\nmodel = DEMO\nload-on-startup = true\n[given]\nctx-size = 64\n",
    );
    let given = format!("given={}", demo());
    let mut server =
        ServeProcess::start_words(&["-m", &given, "--models-preset", &path], &place.environment());
    assert_eq!(server.name, "given, a, b");
    assert_eq!(context(&server, "a"), 128);
    assert_eq!(context(&server, "b"), 256);
    assert_eq!(context(&server, "given"), 64);
    assert_eq!(context(&server, "second"), Value::Null);
    assert_eq!(json(&server.get("/v1/models/a"))["tags"], json!(["x"]));
    // `a` is removed, `b` stays loaded, `given` changes, `c` is added.
    write(&file, "[*]\nc = 256\n[b]\nmodel = DEMO\n[given]\nctx-size = 32\n[c]\nmodel = DEMO\n");
    assert_eq!(names(&server.get("/models?reload=1")), ["b", "given", "c"]);
    let status = |name: &str| json(&server.get(&format!("/v1/models/{name}")))["status"]["value"].clone();
    assert_eq!((status("b"), status("given")), (json!("loaded"), json!("unloaded")));
    assert_eq!(context(&server, "given"), 32);
    let gone = post(&server, "/tokenize", &json!({"model": "a", "content": "a fox"}));
    assert_eq!(gone["error"]["code"], 404, "{gone}");
    // A faulty file changes nothing.
    write(&file, "[b]\nmodel = DEMO\nctx-sise = 1\n");
    let refused = server.get("/models?reload=1");
    assert!(refused.starts_with("HTTP/1.1 500"), "{refused}");
    for part in ["models.ini", "line 3", "ctx-size"] {
        assert!(refused.contains(part), "{part}: {refused}");
    }
    assert_eq!(names(&server.get("/models")), ["b", "given", "c"]);
    server.signal(Signal::SIGTERM);
    assert_eq!(server.end(), Some(143));
}

#[test]
fn the_command_line_comes_before_presets() {
    let place = HubHome::new(Vec::new());
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("models.ini");
    write(&file, "[a]\nmodel = DEMO\nctx-size = 128\nn-predict = 3\n");
    let mut variables = place.environment();
    variables.push(("LLAMA_ARG_MODELS_PRESET", file.display().to_string()));
    let server = ServeProcess::start_words(&["-c", "64"], &variables);
    assert_eq!(server.name, "a");
    assert_eq!(context(&server, "a"), 64);
    let answer = post(&server, "/completion", &json!({"model": "a", "prompt": "a fox", "ignore_eos": true}));
    assert_eq!(answer["tokens_predicted"], 3, "{answer}");
}

#[test]
fn errors_in_presets_name_the_line() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("models.ini");
    let path = file.display().to_string();
    for (text, parts) in [
        ("[a]\nmodel = DEMO\nctx-sise = 1\n", &["line 3", "`ctx-sise`", "`ctx-size`"][..]),
        ("[a]\nmodel = DEMO\nctx-size = many\n", &["line 3: `ctx-size`", "many"]),
        ("[a]\nmodel = DEMO\ncontrol-vector = x\n", &["line 3", "control vectors"]),
        ("[*]\nunknown-key = 1\n[a]\nmodel = DEMO\n", &["line 2", "`unknown-key` of [*]"]),
        ("\n[a]\nc = 1\n", &["line 2", "[a] has no model: add"]),
        ("[a]\nmodel = /nowhere.gguf\n", &["line 1", "/nowhere.gguf: file not found"]),
        ("[a]\nhf-repo = o\n", &["OWNER/NAME"]),
        ("[a\n", &["line 1", "expected [NAME]"]),
    ] {
        write(&file, text);
        let said = misuse(&["serve", "--port", "0", "--models-preset", &path]);
        assert!(said.contains(&path), "{text}: {said}");
        for part in parts {
            assert!(said.contains(part), "{text}: {part}: {said}");
        }
    }
    let said = misuse(&["serve", "--port", "0", "--models-preset", "/nowhere.ini"]);
    assert!(said.contains("--models-preset") && said.contains("/nowhere.ini"), "{said}");
}

#[test]
fn models_are_pulled_and_removed_while_the_server_runs() {
    let (place, _) = HubHome::with_demo();
    let mut server = ServeProcess::start_words(&["--models-cache", "-c", "64"], &place.environment());
    assert_eq!(server.name, "no models yet");
    let mut events = Events::of(&server);
    let download = |name: &str| post(&server, "/models", &json!({"model": name}));
    for (name, part) in [("n", "OWNER/NAME"), ("../n", "OWNER/NAME"), ("", "1 to")] {
        let refused = download(name);
        assert!(refused["error"]["message"].as_str().unwrap().contains(part), "{name}: {refused}");
    }
    assert_eq!(download("o/none")["success"], true);
    let (_, failed) = events.until(&["download_failed"]);
    assert!(failed["problem"].as_str().unwrap().contains("repository not found"), "{failed}");
    assert_eq!(download(NAME)["success"], true);
    let (seen, _) = events.until(&["download_finished", "download_failed"]);
    assert!(seen.iter().any(|kind| kind == "download_progress"), "{seen:?}");
    assert_eq!(seen.last().map(String::as_str), Some("download_finished"));
    assert_eq!(names(&server.get("/models")), [NAME]);
    assert!(download(NAME)["error"]["message"].as_str().unwrap().contains("already"));
    assert_eq!(context(&server, NAME), 64);
    // A loaded model stays.
    let delete = || server.begin(&format!("DELETE /models?model={NAME}"), 0, "");
    let refused = rest(delete());
    assert!(refused.starts_with("HTTP/1.1 400") && refused.contains("in memory"), "{refused}");
    assert_eq!(post(&server, "/models/unload", &json!({"model": NAME}))["success"], true);
    loop {
        let (_, status) = events.until(&["model_status"]);
        if status["status"] == "unloaded" {
            break;
        }
    }
    assert_eq!(json(&rest(delete()))["success"], true);
    events.until(&["model_remove"]);
    assert!(names(&server.get("/models")).is_empty() && !place.folder().exists());
    server.signal(Signal::SIGTERM);
    assert_eq!(server.end(), Some(143));
}

#[test]
fn presets_hide_the_cached_models_that_they_use() {
    let (place, _) = HubHome::with_demo();
    for quant in ["Q4_K_M", "Q8_0"] {
        place.says(&["pull", &format!("hf:o/n:{quant}")]);
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("models.ini");
    let path = file.display().to_string();
    write(&file, "[mine]\nhf-repo = o/n:Q4_K_M\ndedup-cache-models = 1\n[o/n:q8_0]\nmodel = DEMO\nc = 32\n");
    let server =
        ServeProcess::start_words(&["--models-preset", &path, "-c", "64", "--offline"], &place.environment());
    assert_eq!(names(&server.get("/models")), ["o/n:Q8_0", "mine"]);
    // A hidden model is still there.
    assert_eq!(context(&server, NAME), Value::Null);
    assert_eq!(context(&server, "mine"), 64);
    post(&server, "/models/unload", &json!({"model": NAME}));
    // Its files are those of a loaded model.
    let delete = |name: &str| rest(server.begin(&format!("DELETE /models?model={name}"), 0, ""));
    let mut refused = delete(NAME);
    while refused.contains("POST /models/unload first") && !refused.contains("it shares files with") {
        // It is being unloaded. The connection's timeout bounds a server that hangs.
        std::thread::sleep(std::time::Duration::from_millis(5));
        refused = delete(NAME);
    }
    assert!(refused.starts_with("HTTP/1.1 400") && refused.contains("it shares files with"), "{refused}");
    assert!(delete("mine").contains("its files are kept"));
    assert!(place.folder().exists());
    // Without the key, and for all models.
    for (text, shown) in [
        ("[mine]\nhf-repo = o/n:Q4_K_M\n", true),
        ("[*]\ndedup-cache-models = 1\n[mine]\nhf-repo = o/n:Q4_K_M\n", false),
    ] {
        write(&file, text);
        let listed = names(&server.get("/models?reload=1"));
        assert_eq!(listed.contains(&NAME.to_owned()), shown, "{text}: {listed:?}");
    }
    let offline = post(&server, "/models", &json!({"model": "o/other"}));
    assert!(offline["error"]["message"].as_str().unwrap().contains("--offline"), "{offline}");
}

#[test]
fn folders_and_files_of_settings_are_read_again() {
    let folder = tempfile::tempdir().unwrap();
    let link = |name: &str| std::os::unix::fs::symlink(demo(), folder.path().join(name)).unwrap();
    link("one.gguf");
    let path = folder.path().display().to_string();
    let server = ServeProcess::start_words(&["--models-dir", &path, "-c", "64"], &[]);
    assert_eq!(server.name, "one");
    // A single model is loaded and has every name.
    assert!(post(&server, "/tokenize", &json!({"model": "any", "content": "a"}))["tokens"].is_array());
    assert_eq!(names(&server.get("/models?reload=1")), ["one"]);
    assert_eq!(json(&server.get("/v1/models/one"))["status"]["value"], "loaded");
    link("two.gguf");
    assert_eq!(names(&server.get("/models?reload=1")), ["one", "two"]);
    assert_eq!(json(&server.get("/v1/models/one"))["status"]["value"], "loaded");
    assert_eq!(context(&server, "two"), 64);
    let refused = post(&server, "/models", &json!({"model": "o/n"}));
    assert_eq!(refused["error"]["code"], 501, "{refused}");
    // Sections of the config file.
    let file = folder.path().join("config.toml");
    let path = file.display().to_string();
    let section = |name: &str| format!("[[models]]\nname = \"{name}\"\nmodel = \"{}\"\n", demo());
    std::fs::write(&file, section("a") + &section("b")).unwrap();
    let server = ServeProcess::start_words(&["--config", &path, "-c", "64"], &[]);
    std::fs::write(&file, section("b") + &section("c")).unwrap();
    assert_eq!(names(&server.get("/models?reload=1")), ["b", "c"]);
}

#[test]
fn a_slow_download_ends_with_the_server() {
    let place = HubHome::new(vec![large(FILE, noise(3_000_000, 1))]);
    place.hub.misbehave(FILE, [crate::support::hub::Misdeed::Stall(1_000_000)]);
    let mut server = ServeProcess::start_words(&["--models-cache"], &place.environment());
    let mut events = Events::of(&server);
    assert_eq!(post(&server, "/models", &json!({"model": NAME}))["success"], true);
    events.until(&["download_progress"]);
    server.signal(Signal::SIGTERM);
    assert_eq!(server.end(), Some(143));
}
