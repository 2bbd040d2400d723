//! `latent eval`, and `latent bench --save` and `--compare`.

use crate::support::{demo, latent, lookup_model};
use serde_json::Value;
use std::path::Path;

const USAGE: i32 = 64;

struct EvalFolder(tempfile::TempDir);

impl EvalFolder {
    fn new() -> EvalFolder {
        EvalFolder(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> String {
        self.0.path().join(name).display().to_string()
    }

    fn file(&self, name: &str, text: impl AsRef<[u8]>) -> String {
        std::fs::write(self.0.path().join(name), text).unwrap();
        self.path(name)
    }

    /// Prompts and answers of some held-out questions.
    fn text(&self) -> String {
        let questions = std::fs::read_to_string(questions()).unwrap();
        let lines = questions.lines().take(8).map(|line| serde_json::from_str::<Value>(line).unwrap());
        let text: String = lines
            .map(|line| {
                format!("{}\n{}\n\n", line["prompt"].as_str().unwrap(), line["expected"].as_str().unwrap())
            })
            .collect();
        self.file("text", text)
    }
}

fn questions() -> String {
    demo().with_file_name("eval.jsonl").display().to_string()
}

fn json(args: &[&str]) -> Value {
    let output = latent(args).args(["-t", "2", "--json"]).output().unwrap();
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn refused(args: &[&str], code: i32, words: &[&str]) {
    let output = latent(args).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{args:?}: {stderr}");
    for word in words {
        assert!(stderr.contains(word), "{args:?}: no {word:?} in {stderr}");
    }
    assert_eq!(stderr.lines().filter(|line| line.starts_with("error:")).count(), 1, "{stderr}");
}

#[test]
fn a_logits_file_is_written_and_compared_with() {
    let folder = EvalFolder::new();
    let (text, base, page) = (folder.text(), folder.path("base.kld"), folder.path("kl.html"));
    let found = json(&["eval", "perplexity", "-c", "128", "--kl-divergence-base", &base, &text]);
    assert_eq!((&found["evaluation"], &found["context"]), (&"perplexity".into(), &128.into()));
    assert_eq!(found["positions"].as_u64().unwrap(), 63 * found["chunks"].as_u64().unwrap());
    assert_eq!(found["model"]["precision"], "default");
    let same = json(&["eval", "kl", "--kl-divergence-base", &base, "--html", &page]);
    assert_eq!((&same["evaluation"], &same["chunks"]), (&"kl".into(), &found["chunks"]));
    assert!(same["kl"]["value"].as_f64().unwrap().abs() < 1e-5, "{}", same["kl"]);
    assert_eq!(same["perplexity"], found["perplexity"]);
    assert!(std::fs::read_to_string(&page).unwrap().contains("<svg"));
    // Compared with exact precision, which runs first.
    let exact = json(&["eval", "kl", "-c", "128", "--chunks", "2", &text]);
    assert_eq!((&exact["chunks"], exact["positions"].as_u64()), (&2.into(), Some(126)));
    assert!(exact["kl"]["value"].as_f64().unwrap() > 0.0);
    assert!(exact["model"]["base"].as_str().unwrap().contains("precision exact"));
}

#[test]
fn questions_are_counted_by_kind() {
    let found = json(&["eval", "questions", "-n", "64", "--limit", "6", &questions()]);
    assert_eq!((&found["questions"], &found["kinds"][0]["kind"]), (&6.into(), &"story".into()));
    assert!(found["kinds"][0]["right"].as_u64().unwrap() >= 3, "{found}");
    assert_eq!(
        found["wrong"].as_array().unwrap().len() as u64 + found["kinds"][0]["right"].as_u64().unwrap(),
        6
    );
}

#[test]
fn endings_facts_experts_and_weights_are_measured_and_drawn_on_one_page() {
    let folder = EvalFolder::new();
    let text = folder.text();
    let choices = folder.file(
        "choices",
        "{\"ctx\": \"One two three\", \"endings\": [\"four.\", \"qxz qxz.\"], \"label\": 0}\n",
    );
    let model = demo().display().to_string();
    let commands: [(&str, &[&str]); 4] = [
        ("choice", &[&choices]),
        ("retrieval", &["--lengths", "128", "--depths", "0,100", "--trials", "2"]),
        ("routing", &["-c", "256", "--rows", "1,2,4", &text]),
        ("weights", &["--base-model", &model]),
    ];
    let mut results = Vec::new();
    for (command, args) in commands {
        let found = json(&[&["eval", command], args].concat());
        assert_eq!(found["evaluation"], command);
        results.push(folder.file(command, found.to_string()));
    }
    let page = folder.path("report.html");
    let mut report = vec!["eval", "report", &page];
    report.extend(results.iter().map(String::as_str));
    latent(&report).assert().success();
    let html = std::fs::read_to_string(&page).unwrap();
    for heading in ["Multiple choice", "Retrieval by depth", "Expert load by layer", "Error by tensor type"] {
        assert!(html.contains(&format!("<h2>{heading}</h2>")), "{heading}");
    }
    assert!(html.matches("<svg").count() >= 6 && !html.contains("<script"));
    refused(&["eval", "report", "--force", &page, &text], USAGE, &["not a result"]);
}

#[test]
fn short_facts_are_found_at_every_depth() {
    let found = json(&["eval", "retrieval", "--lengths", "96,192", "--depths", "0,50,100", "--trials", "2"]);
    assert_eq!(found["cells"].as_array().unwrap().len(), 6);
    for cell in found["cells"].as_array().unwrap() {
        let (length, tokens) = (cell["length"].as_f64().unwrap(), cell["tokens"].as_f64().unwrap());
        assert!(tokens <= length && tokens > 0.7 * length, "{cell}");
    }
    assert!(found["found"]["value"].as_f64().unwrap() >= 0.5, "{found}");
}

/// A prompt of 900 tokens, of which each row attends to 32: the indexer has to find the fact.
#[test]
fn sparse_attention_finds_facts_as_attention_to_all_tokens_does() {
    let folder = EvalFolder::new();
    let found = |model: &str, how: &str| -> Vec<f64> {
        let model = folder.path(model);
        let found = json(&[
            "eval",
            "retrieval",
            "-m",
            &model,
            "-n",
            "1",
            "--lengths",
            "300,900",
            "--depths",
            "0,50,100",
            "--trials",
            "3",
            "--sparse-attention",
            how,
        ]);
        let cells = found["cells"].as_array().unwrap();
        assert!(cells[3]["tokens"].as_f64().unwrap() > 800.0, "{found}");
        cells.iter().map(|cell| cell["found"].as_f64().unwrap()).collect()
    };
    lookup_model::write(&folder.0.path().join("model"), 32, false);
    lookup_model::write(&folder.0.path().join("blind"), 32, true);
    for how in ["on", "off"] {
        assert_eq!(found("model", how), [1.0; 6], "--sparse-attention {how}");
    }
    // The same facts with an indexer that does not look for them.
    assert_eq!(found("blind", "off"), [1.0; 6]);
    let blind = found("blind", "on");
    assert!(blind.iter().sum::<f64>() <= 3.0, "{blind:?}");
}

#[test]
fn inputs_that_cannot_be_measured_are_named() {
    let folder = EvalFolder::new();
    let (empty, short) = (folder.file("empty", " \n"), folder.file("short", "A short text."));
    refused(&["eval", "perplexity", &empty], USAGE, &["empty"]);
    refused(&["eval", "perplexity", &short], USAGE, &["fewer than a chunk of 512", "--ctx-size"]);
    refused(&["eval", "perplexity", "-c", "2", &short], USAGE, &["--ctx-size 4"]);
    refused(&["eval", "perplexity", &folder.path("none")], 1, &["none"]);
    refused(&["eval", "perplexity", &folder.file("binary", [0xff, 0xfe])], 1, &["UTF-8"]);
    refused(&["eval", "kl"], USAGE, &["TEXT (or --kl-divergence-base FILE) is missing"]);
    refused(&["eval", "kl", "--kl-divergence-base", &short], 1, &["logits file"]);
    for command in ["choice", "questions"] {
        refused(&["eval", command, &folder.file("blank", "\n\n")], 1, &["empty"]);
        refused(&["eval", command, &folder.file("lines", "\n{\"prompt\": \n")], 1, &["line 2", "JSON"]);
        refused(&["eval", command, &folder.file("keys", "{\"text\": 1}\n")], 1, &["line 1", "found text"]);
    }
    refused(&["eval", "retrieval", "--lengths", "4000"], USAGE, &["4000", "2048"]);
    refused(&["eval", "retrieval", "--lengths", "5"], USAGE, &["--lengths 5"]);
    refused(
        &["eval", "retrieval", "--haystack", &folder.file("words", "x"), "--lengths", "64"],
        USAGE,
        &["sentence"],
    );
    let dense = folder.path("dense.gguf");
    latent(&["make-model", "tiny-dense", "Q8_0", &dense, "--layers", "1"]).assert().success();
    refused(&["eval", "routing", "-m", &dense, &folder.text()], 1, &["no routed experts"]);
    let hf = folder.path("hf");
    latent(&["make-model", "tiny-dense", "BF16", &hf, "--layers", "1"]).assert().success();
    refused(&["eval", "weights", "--base-model", &hf], 1, &["no tensor with the same name"]);
    // A logits file of another vocabulary.
    let (text, base) = (folder.text(), folder.path("base"));
    latent(&["eval", "perplexity", "-c", "64", "--chunks", "1", "--kl-divergence-base", &base, &text])
        .assert()
        .success();
    refused(
        &["eval", "kl", "-m", &dense, "--kl-divergence-base", &base],
        1,
        &["1024 tokens", "same tokenizer"],
    );
    let bytes = std::fs::read(&base).unwrap();
    let cut = folder.file("cut", &bytes[..bytes.len() - 9]);
    refused(&["eval", "kl", "--kl-divergence-base", &cut], 1, &["damaged or incomplete"]);
}

#[cfg(unix)]
#[test]
fn pipes_and_devices_are_not_waited_for() {
    let folder = EvalFolder::new();
    let pipe = folder.path("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    for (input, kind) in [(pipe.as_str(), "a pipe"), ("/dev/zero", "a device")] {
        refused(&["eval", "perplexity", input], 1, &[kind]);
        refused(&["eval", "questions", input], 1, &[kind]);
        refused(&["eval", "kl", "--kl-divergence-base", input], 1, &[kind]);
        refused(&["bench", "--compare", input], 1, &[kind]);
    }
}

#[test]
fn a_bench_is_kept_and_compared_with() {
    let folder = EvalFolder::new();
    let kept = folder.path("bench.json");
    let bench = ["bench", "-p", "16", "-n", "2", "-r", "2"];
    json(&[&bench[..], &["--save", &kept]].concat());
    let found = json(&[&["bench", "-p", "16,32", "-n", "0", "-r", "2"][..], &["--compare", &kept]].concat());
    let before = &found[0]["before"];
    assert!(
        before["ratio"].as_f64().unwrap() > 0.0 && before["other_machine"].as_array().unwrap().is_empty()
    );
    assert!(found[1]["before"].is_null(), "a test that was not measured before");
    let text = std::fs::read_to_string(Path::new(&kept)).unwrap().replace("\"cpu\": \"", "\"cpu\": \"Other ");
    std::fs::write(&kept, text).unwrap();
    let output = latent(&[&bench[..], &["-t", "2", "--compare", &kept]].concat()).output().unwrap();
    let table = String::from_utf8(output.stdout).unwrap();
    assert!(table.contains("cannot compare different machines") && table.contains("cpu: Other "), "{table}");
    refused(&["bench", "--compare", &folder.file("other", "{}")], USAGE, &["--save"]);
}
