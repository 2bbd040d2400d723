//! `latent chat` and features that it shares with `run`: conversations, full contexts, sampling
//! settings of models, tools and thinking.

use crate::support::{demo_with, latent};
use serde_json::{Value, json};
use std::path::Path;

const STORY: &str = "Tell me a story about a fox and a lantern.";

/// Runs a conversation of these lines: exit code, answers, and everything else.
fn chat(args: &[&str], lines: &str) -> (i32, String, String) {
    let folder = tempfile::tempdir().unwrap();
    let args = [&["chat", "--precision", "exact", "--temp", "0", "-t", "2"], args].concat();
    let output =
        latent(&args).env("XDG_STATE_HOME", folder.path()).write_stdin(lines.to_owned()).output().unwrap();
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "no history without a terminal");
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    (output.status.code().unwrap(), text(&output.stdout), text(&output.stderr))
}

/// The error of a refused usage.
fn refused(args: &[&str], code: i32) -> String {
    let output = latent(args).write_stdin("").output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(code), "{args:?}: {stderr}");
    stderr
}

#[test]
fn lines_are_messages_and_commands_answer() {
    let (code, stdout, stderr) = chat(&["-n", "20"], &format!("{STORY}\n/context\n\n/undo\n/context\n"));
    assert_eq!(code, 0, "{stderr}");
    assert_eq!(stdout.lines().count(), 1, "{stdout}");
    for said in ["t/s", "(ended by -n)", "2 messages", "removed the last question", "0 messages are left"] {
        assert!(stderr.contains(said), "no {said:?} in {stderr}");
    }
    assert!(!stdout.contains("t/s") && !stderr.contains("0/0"), "{stdout}{stderr}");
    // Two slashes, or a space before the slash, make the same message.
    let (_, two, _) = chat(&["-n", "8"], "//usr is a folder\n");
    let (_, blank, _) = chat(&["-n", "8"], " /usr is a folder\n");
    assert!(!two.trim().is_empty());
    assert_eq!(two, blank);
    let (code, stdout, stderr) =
        chat(&["-q"], "/usr is a folder\n/help\n/system Be brief.\n/system\n/system -\n/regen\n");
    assert_eq!((code, stdout.as_str()), (1, ""));
    for said in ["unknown command /usr", "/load FILE", "no question yet", "2 of 6"] {
        assert!(stderr.contains(said), "no {said:?} in {stderr}");
    }
    assert!(!stderr.contains("Be brief"), "-q says nothing but answers and errors: {stderr}");
    let (_, _, stderr) = chat(&[], "/system Be brief.\n/system\n/system -\n/system\n");
    assert!(stderr.contains("is: Be brief.") && stderr.contains("no system message is set"), "{stderr}");
}

#[test]
fn an_answer_can_be_asked_for_again() {
    let greedy = |lines: &str| chat(&["-n", "12", "-q"], lines).1;
    let twice = greedy(&format!("{STORY}\n/regen\n"));
    let answers: Vec<&str> = twice.lines().collect();
    assert_eq!((answers.len(), answers[0]), (2, answers[1]), "greedy: the same again");
    // Each answer has another seed, although --seed is given.
    let seeded = ["-n", "12", "-q", "--temp", "1.5", "--seed", "7"];
    let output =
        latent(&[&["chat"], &seeded[..]].concat()).write_stdin(format!("{STORY}\n/regen\n")).output();
    let text = String::from_utf8(output.unwrap().stdout).unwrap();
    let answers: Vec<&str> = text.lines().collect();
    assert!(answers.len() >= 2 && answers[0] != answers[1], "{text}");
}

#[test]
fn saved_conversations_continue() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("talk.kv").display().to_string();
    let follow = "And then?";
    let (code, whole, stderr) = chat(&["-q", "-n", "30"], &format!("{STORY}\n/save {file}\n{follow}\n"));
    assert_eq!(code, 0, "{stderr}");
    let (code, stdout, stderr) = chat(&["-n", "30"], &format!("/restore {file}\n/context\n{follow}\n"));
    assert_eq!(code, 0, "{stderr}");
    assert!(stderr.contains("restored") && stderr.contains("2 messages from"), "{stderr}");
    let answers: Vec<&str> = whole.lines().collect();
    assert_eq!(stdout.lines().collect::<Vec<_>>(), answers[1..], "the conversation came back with the cache");
    // Cached tokens are not computed again.
    let prompt = stderr.split("prompt ").nth(1).unwrap().split(',').next().unwrap().parse::<usize>().unwrap();
    assert!(prompt < 20, "{stderr}");
    // The same with the flag. An answer of `run` can be continued, too.
    let (_, flagged, _) = chat(&["-q", "-n", "30", "--restore", &file], &format!("{follow}\n"));
    assert_eq!(flagged, stdout);
    let run = ["run", "-q", "--precision", "exact", "--temp", "0", "-n", "30", "--save", &file, STORY];
    assert!(latent(&run).output().unwrap().status.success());
    let (_, after_run, _) = chat(&["-q", "-n", "30", "--restore", &file], &format!("{follow}\n"));
    assert_eq!(after_run, stdout);
    // `run` reuses the cache that a chat saved.
    let run = ["run", "--json", "--precision", "exact", "--temp", "0", "-n", "1", "--restore", &file, STORY];
    let output = latent(&run).output().unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(report["timings"]["cached_n"].as_u64().unwrap() > 5, "{report}");

    // A file of an older version, without an attachment behind its cache.
    let bytes = std::fs::read(&file).unwrap();
    let at = bytes.windows(8).rposition(|window| window == b"LATNTAT1").unwrap();
    std::fs::write(&file, &bytes[..at]).unwrap();
    let (code, _, stderr) = chat(&["-n", "5"], &format!("/restore {file}\n{STORY}\n"));
    assert_eq!(code, 0, "{stderr}");
    assert!(stderr.contains("contains no conversation"), "{stderr}");
    // A damaged file changes nothing.
    let mut damaged = bytes.clone();
    damaged[at + 30] ^= 1;
    std::fs::write(&file, damaged).unwrap();
    let (code, _, stderr) = chat(&["-n", "5"], &format!("{STORY}\n/restore {file}\n/context\n/save\n"));
    assert_eq!(code, 1);
    assert!(stderr.contains("not a saved Latent sequence") && stderr.contains("2 messages"), "{stderr}");
    assert!(stderr.contains("/save needs a file name") && stderr.contains("2 of 4"), "{stderr}");
}

#[test]
fn a_full_context_tells_how_to_continue() {
    let ctx = ["--ctx-size", "96", "--logit-bias", "1=-inf"];
    let (code, _, stderr) = chat(&ctx, &format!("{STORY}\n{STORY}\n/clear\n"));
    assert_eq!(code, 1, "{stderr}");
    for said in [
        "the answer is incomplete",
        "/clear or /undo",
        "--context-shift",
        "--ctx-size can be up to 2048",
        "1 of 3",
    ] {
        assert!(stderr.contains(said), "no {said:?} in {stderr}");
    }
    // At the model's limit, no larger context is suggested.
    let (_, _, stderr) = chat(&["--ctx-size", "2048"], &format!("{}\n", "fox ".repeat(3000)));
    assert!(stderr.contains("shorten the message") && !stderr.contains("--ctx-size"), "{stderr}");

    let shift = [&ctx[..], &["--context-shift", "-n", "150"]].concat();
    let (code, stdout, stderr) = chat(&shift, &format!("{STORY}\n{STORY}\n/context\n"));
    assert_eq!(code, 0, "{stderr}");
    assert!(stdout.lines().count() >= 2, "{stdout}");
    for said in
        ["[150 tokens", "older tokens were dropped", "the 2 oldest messages are dropped", "2 messages"]
    {
        assert!(stderr.contains(said), "no {said:?} in {stderr}");
    }
    // A message that exceeds the context is refused, and the conversation continues.
    let (code, stdout, stderr) = chat(&shift, &format!("{}\nHi\n", "fox ".repeat(200)));
    assert_eq!(code, 1);
    assert!(stderr.contains("shorten the message") && !stdout.trim().is_empty(), "{stderr}");
}

#[test]
fn context_shift_continues_an_answer_of_run() {
    let args = ["run", "--json", "--temp", "0", "--ctx-size", "96", "--logit-bias", "1=-inf", "-n", "300"];
    let report = |more: &[&str]| -> Value {
        let output = latent(&[&args, more, &[STORY]].concat()).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    };
    assert_eq!(report(&[])["stop"], "context");
    for keep in [&["--context-shift"][..], &["--context-shift", "--keep", "10"]] {
        let long = report(keep);
        assert_eq!((&long["stop"], long["tokens"].as_array().unwrap().len()), (&json!("length"), 300));
        assert!(long["discarded_tokens"].as_u64().unwrap() > 200, "{long}");
    }
    let shift = ["--context-shift", "--keep", "95", STORY];
    assert!(refused(&[&args[..], &shift].concat(), 1).contains("keep at most 94"));
    assert!(refused(&["run", "--keep", "3", STORY], 64).contains("--context-shift"));
}

#[test]
fn samplers_of_llama_cpp_are_flags() {
    let report = |more: &[&str]| -> Value {
        let base =
            ["run", "--json", "--seed", "5", "--temp", "2", "--top-k", "0", "--top-p", "1", "--min-p", "0"];
        let output = latent(&[&base, more, &["-n", "20", STORY]].concat()).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let plain = report(&[])["tokens"].clone();
    for more in [
        &["--top-n-sigma", "1"][..],
        &["--top-nsigma", "1"],
        &["--mirostat", "1", "--mirostat-ent", "2"],
        &["--mirostat", "2", "--mirostat-lr", "0.5"],
        &["--dynatemp-range", "1.5", "--dynatemp-exp", "2"],
        &["--adaptive-target", "0.1", "--adaptive-decay", "0.5"],
        &["--samplers", "top_n_sigma", "--top-n-sigma", "0.5"],
        &["--sampling-seq", "ts", "--top-n-sigma", "0.5"],
    ] {
        let answer = report(more);
        assert_ne!(answer["tokens"], plain, "{more:?}");
        // mirostat keeps a state
        if latent_testing::exhaustive() || more[0] == "--mirostat" {
            assert_eq!(answer["tokens"], report(more)["tokens"], "{more:?}");
        }
    }
    let wrong = refused(&["run", "--samplers", "top_q", "Hi"], 64);
    assert!(wrong.contains("unknown sampler \"top_q\"") && wrong.contains("top_n_sigma"), "{wrong}");
    let greedy = |more: &[&str]| -> Value {
        let output = latent(&[&["run", "--json", "--temp", "0"], more, &[STORY]].concat()).output().unwrap();
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let whole = greedy(&[]);
    assert_eq!(whole["stop"], "end");
    let length = whole["tokens"].as_array().unwrap().len() + 20;
    let longer = greedy(&["--ignore-eos", "-n", &length.to_string()]);
    assert_eq!((&longer["stop"], longer["tokens"].as_array().unwrap().len()), (&json!("length"), length));
    assert_eq!(greedy(&["--logit-bias", "1-100"])["sampling"], whole["sampling"]);
}

#[test]
fn flags_override_the_models_sampling() {
    let (_folder, path) = demo_with(
        None,
        &[
            ("general.sampling.temp", 0.6),
            ("general.sampling.top_p", 0.9),
            ("general.sampling.top_k", 7.0),
            ("general.sampling.penalty_repeat", 1.1),
        ],
    );
    let report = |more: &[&str]| -> Value {
        let output = latent(&[&["run", "--json", "-n", "1", "-m", &path], more, &["Hi"]].concat()).output();
        serde_json::from_slice(&output.unwrap().stdout).unwrap()
    };
    let sampling = report(&["--top-p", "0.5"])["sampling"].clone();
    assert_eq!(sampling["from_model"], json!(["temperature", "top_k", "repeat_penalty"]));
    let values =
        ["temperature", "top_p", "top_k", "min_p", "repeat_penalty"].map(|name| sampling[name].clone());
    assert_eq!(values, [json!(0.6), json!(0.5), json!(7), json!(0.05), json!(1.1)]);
    let own = report(&["--no-model-sampling"])["sampling"].clone();
    assert_eq!((&own["temperature"], &own["from_model"]), (&json!(0.8), &json!([])));
    let output = latent(&["run", "-n", "1", "-m", &path, "Hi"]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("sampling from the model: temperature 0.6, top-k 7, top-p 0.9"), "{said}");

    let (_folder, path) = demo_with(None, &[("general.sampling.temp", -3.0)]);
    let error = refused(&["run", "-n", "1", "-m", &path, "Hi"], 1);
    for word in ["model.gguf", "general.sampling", "--no-model-sampling", "temperature is -3"] {
        assert!(error.contains(word), "no {word:?} in {error}");
    }
    assert!(
        latent(&["run", "-q", "-n", "1", "-m", &path, "--no-model-sampling", "Hi"])
            .output()
            .unwrap()
            .status
            .success()
    );
}

/// A template that prints its variables.
const SHOWING: &str = "{{ bos_token }}{% if enable_thinking is defined %}think {{ enable_thinking }} {% endif %}\
{% if tools %}{{ tools | length }} {{ tools[0].function.name }} {% endif %}{{ messages[-1].content }}";

#[test]
fn tools_and_thinking_reach_the_template_or_are_refused() {
    let (folder, path) = demo_with(Some(SHOWING), &[]);
    let tools = folder.path().join("tools.json");
    std::fs::write(&tools, json!([{"type": "function", "function": {"name": "weather"}}]).to_string())
        .unwrap();
    let tools = tools.display().to_string();
    let prompt = |more: &[&str]| -> Value {
        let output =
            latent(&[&["run", "--json", "-n", "1", "-m", &path], more, &["Hi"]].concat()).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice::<Value>(&output.stdout).unwrap()["prompt_tokens"].clone()
    };
    let of = |text: &str| -> Value {
        let output = latent(&["tokenize", "--json", "-m", &path, text]).output().unwrap();
        serde_json::from_slice::<Value>(&output.stdout).unwrap()["ids"].clone()
    };
    assert_eq!(prompt(&[]), of("Hi"));
    assert_eq!(prompt(&["--think"]), of("think True Hi"));
    assert_eq!(prompt(&["--no-think"]), of("think False Hi"));
    assert_eq!(prompt(&["--tools", &tools]), of("1 weather Hi"));

    assert!(refused(&["run", "--think", "--no-think", "Hi"], 64).contains("cannot be used with"));
    assert!(refused(&["run", "--raw", "--think", "Hi"], 64).contains("cannot be used with"));
    // The demo model's own template has neither.
    assert!(
        refused(&["run", "--no-think", "Hi"], 64)
            .contains("--no-think: the model's chat template does not support it")
    );
    assert!(refused(&["chat", "--tools", &tools], 64).contains("does not support tools"));
    let given = |text: &str| {
        std::fs::write(&tools, text).unwrap();
        refused(&["run", "-m", &path, "--tools", &tools, "Hi"], 64)
    };
    for (text, word) in
        [("{}", "expected a list"), ("[", "JSON"), ("[{\"function\": {}}]", "tool 1"), ("[]", "0 tools")]
    {
        let error = given(text);
        assert!(error.contains(word) && error.contains("tools.json"), "{error}");
    }
    assert!(given(&" ".repeat(2 << 20)).contains("more than the limit"));
    let device = if Path::new("/dev/zero").exists() { "/dev/zero" } else { "." };
    assert!(refused(&["run", "-m", &path, "--tools", device, "Hi"], 64).contains("expected a regular file"));
}

#[test]
fn reasoning_is_not_part_of_the_answer() {
    let template = "{{ bos_token }}{{ messages[-1].content }}{% if messages | length > 2 %}{{ messages[1].reasoning_content }}{% endif %}<|assistant|><think>";
    let (folder, path) = demo_with(Some(template), &[]);
    let file = folder.path().join("talk.json").display().to_string();
    let (code, stdout, stderr) =
        chat(&["-m", &path, "-n", "12"], &format!("{STORY}\n/save {file}\nAnd?\n/stats\n"));
    // All of the text, because no tag closes the reasoning.
    assert_eq!((code, stdout.as_str()), (0, "\n\n"), "{stderr}");
    assert!(stderr.contains("2 answers: "), "{stderr}");
    let saved: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    let answer = &saved["messages"][1];
    assert_eq!(answer["content"], "");
    assert!(answer["reasoning_content"].as_str().unwrap().len() > 10, "{saved}");
    // A tag that the user types does not open reasoning.
    let (_, stdout, _) = chat(&["-n", "12", "-q"], "<think>\n");
    assert!(!stdout.trim().is_empty());
}

/// A folder of safetensors with random weights, the demo model's tokenizer, and a response template
/// of its own.
fn folder_with_template(template: &Value) -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("model");
    latent(&["make-model", "tiny-v3", "F32", &model.display().to_string(), "--layers", "2"])
        .assert()
        .success();
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../text/tests/data/demo");
    std::fs::copy(data.join("tokenizer.json"), model.join("tokenizer.json")).unwrap();
    let config = std::fs::read(data.join("tokenizer_config.json")).unwrap();
    let mut config: Value = serde_json::from_slice(&config).unwrap();
    config["response_template"] = template.clone();
    std::fs::write(model.join("tokenizer_config.json"), config.to_string()).unwrap();
    let path = model.display().to_string();
    (folder, path)
}

#[test]
fn the_models_own_response_template_parses_answers() {
    let planned = json!({"start_anchor": "<｜Assistant｜>", "fields": {
        "thinking": {"open": "[plan]", "close": "[/plan]", "first": true},
        "content": {"content_args": {"strip": "at_markers"}},
    }});
    let folder = tempfile::tempdir().unwrap();
    let grammar = folder.path().join("plan.gbnf");
    std::fs::write(&grammar, r#"root ::= "[plan]a fox[/plan]a lantern""#).unwrap();
    let answer = |template: &Value| {
        let (_folder, model) = folder_with_template(template);
        let (code, stdout, stderr) =
            chat(&["-m", &model, "-q", "--grammar", &grammar.display().to_string()], "Hello!\n");
        assert_eq!(code, 0, "{stderr}");
        (stdout, stderr)
    };
    assert_eq!(answer(&planned), ("a lantern\n".to_owned(), String::new()));
    // An unusable template is reported.
    let (stdout, stderr) = answer(&json!({"fields": "none"}));
    assert_eq!(stdout, "[plan]a fox[/plan]a lantern\n");
    assert!(stderr.contains("response_template is ignored: "), "{stderr}");
}

#[test]
fn the_help_of_chat_fits_80_columns() {
    let output = latent(&["help", "chat"]).output().unwrap();
    let help = String::from_utf8(output.stdout).unwrap();
    for word in
        ["//text", "Alt-Enter", "Ctrl-D", "history", "--context-shift", "--no-history", "--url", "--plain"]
    {
        assert!(help.contains(word), "no {word:?} in {help}");
    }
}
