//! `latent chat --url`: a server's model.

use crate::support::server::{EVENTS, MockAnswer, MockServer, deltas, events};
use crate::support::{latent, program};
use serde_json::{Value, json};
use std::time::Duration;

/// Runs a conversation of these lines: exit code, standard output, standard error.
fn chat(server: &MockServer, args: &[&str], lines: &str) -> (i32, String, String) {
    let args = [&["chat", "--url", &server.url], args].concat();
    let mut command = latent(&args);
    command.env_remove("LATENT_API_KEY");
    let output = command.write_stdin(lines.to_owned()).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    (output.status.code().unwrap(), text(&output.stdout), text(&output.stderr))
}

/// A server with two models and these answers, in order.
fn server(answers: Vec<MockAnswer>) -> MockServer {
    MockServer::new(move |path, before| match path {
        "/v1/models" => MockAnswer::Plain("200 OK", r#"{"data":[{"id":"fox"},{"id":"owl"}]}"#.into()),
        "/props?model=fox" | "/props?model=owl" => {
            MockAnswer::Plain("200 OK", r#"{"default_generation_settings":{"n_ctx":4096}}"#.into())
        }
        "/v1/chat/completions" => answers[before.min(answers.len() - 1)].clone(),
        _ => MockAnswer::Plain("404 Not Found", String::new()),
    })
}

fn contents(body: &Value) -> Vec<&str> {
    body["messages"].as_array().unwrap().iter().map(|m| m["content"].as_str().unwrap()).collect()
}

#[test]
fn a_conversation_is_sent_with_the_parameters_of_flags() {
    let server = server(vec![
        MockAnswer::Stream(events("Hm.", &["Hello", " **you**"])),
        MockAnswer::Stream(events("", &["Again"])),
        MockAnswer::Stream(events("", &["Third"])),
    ]);
    let folder = tempfile::tempdir().unwrap();
    let key = folder.path().join("key");
    std::fs::write(&key, "# mine\n s3cret \n").unwrap();
    let args = [
        "--api-key-file",
        key.to_str().unwrap(),
        "--temp",
        "0.7",
        "--seed",
        "5",
        "-n",
        "9",
        "--system-prompt",
        "Be brief.",
        "-m",
        "owl",
    ];
    let (code, stdout, stderr) =
        chat(&server, &args, "Hi\n/regen\n/edit Hi there\n/tokens\n/stats\n/undo\n/tokens\n");
    assert_eq!((code, stdout.as_str()), (0, "Hello **you**\nAgain\nThird\n"), "{stderr}");
    for said in [
        "owl at http",
        "[5 tokens, 8.0 t/s; prompt 8, 80.0 t/s; context 25 of 4096]",
        "25 of 4096 tokens (0 %), 3 messages",
        "3 answers: 15 tokens in 1.50 s",
        "36 of them cached (60 %)",
        "1 messages",
    ] {
        assert!(stderr.contains(said), "no {said:?} in {stderr}");
    }
    assert!(!stderr.contains("s3cret") && !stdout.contains("Hm."));
    let asked = server.questions();
    let bodies: Vec<&Value> = asked.iter().map(|asked| &asked.body).collect();
    assert_eq!(contents(bodies[0]), ["Be brief.", "Hi"]);
    assert_eq!(
        (contents(bodies[1]), contents(bodies[2])),
        (contents(bodies[0]), vec!["Be brief.", "Hi there"])
    );
    let body = bodies[0];
    assert_eq!(
        (&body["model"], &body["temperature"], &body["max_tokens"]),
        (&json!("owl"), &json!(0.7), &json!(9))
    );
    assert_eq!([&body["seed"], &bodies[1]["seed"], &body["stream"]], [&json!(5), &json!(6), &json!(true)]);
    assert!(body.get("top_k").is_none() && body.get("presence_penalty").is_none(), "{body}");
    for asked in server.all() {
        assert!(asked.headers.contains(&"authorization: bearer s3cret".to_owned()), "{asked:?}");
    }
}

#[test]
fn of_several_models_the_first_answers_and_tells_its_context_once_it_is_loaded() {
    let server = MockServer::new(|path, before| match path {
        "/v1/models" => {
            MockAnswer::Plain("200 OK", r#"{"data":[{"id":"fox"},{"id":"owl"},{"id":"elk"}]}"#.into())
        }
        "/props?model=fox" => {
            let context = if before == 0 { 0 } else { 4096 };
            MockAnswer::Plain(
                "200 OK",
                json!({"default_generation_settings": {"n_ctx": context}}).to_string(),
            )
        }
        _ => MockAnswer::Stream(events("", &["Hello"])),
    });
    let (code, _, stderr) = chat(&server, &[], "/tokens\nHi\n/tokens\n");
    assert!(
        code == 0 && stderr.contains(&format!("fox at {}; -m chooses another: owl, elk\n", server.url)),
        "{stderr}"
    );
    let (before, after) =
        stderr.split_once("does not report its context size").unwrap_or_else(|| panic!("{stderr}"));
    assert!(!before.contains("4096") && after.contains("4096"), "{stderr}");
    let (_, _, stderr) = chat(&server, &["-m", "owl"], "");
    assert!(!stderr.contains("another"), "{stderr}");
}

#[test]
fn every_failure_says_what_to_do_and_loses_nothing() {
    let full = r#"{"error":{"message":"all blocks are taken"}}"#;
    let server = server(vec![
        MockAnswer::Stream(events("", &["one"])),
        MockAnswer::Plain("429 Too Many Requests\r\nretry-after: 7", full.into()),
        MockAnswer::Stream(events("", &["two"])),
        MockAnswer::Plain("503 Service Unavailable", "{}".into()),
        MockAnswer::Stream(deltas("", &["thr"])),
        MockAnswer::Stream(
            deltas("", &["fo"]) + "data: {\"error\":{\"message\":\"the engine\\u001b[2J failed\"}}\n\n",
        ),
        MockAnswer::Plain("400 Bad Request", r#"{"error":"too long"}"#.into()),
        MockAnswer::Plain("302 Found\r\nlocation: http://evil/", String::new()),
        MockAnswer::Plain("200 OK", "<html>\n".into()),
        MockAnswer::Stream("data: {nonsense\n\n".into()),
        MockAnswer::Stream(events("", &["end"])),
    ]);
    let lines = "A\nB\n/regen\nC\n/regen\nD\nE\nF\nG\nH\nI\n";
    let (code, stdout, stderr) = chat(&server, &[], lines);
    assert_eq!((code, stdout.as_str()), (1, "one\ntwo\nthr\nfo\nend\n"), "{stderr}");
    for said in [
        "is busy: try again in 7 s: all blocks are taken",
        "is not ready",
        "the connection to http",
        "was lost",
        r"the engine\u{1b}[2J failed",
        "(the partial answer is kept; /regen asks again)",
        "rejected the request (status 400): too long",
        "redirects to \"http://evil/\"",
        "an event is not valid JSON",
        "6 of 11 messages",
    ] {
        assert!(stderr.contains(said), "no {said:?} in {stderr}");
    }
    let asked = server.questions();
    assert_eq!(contents(&asked[2].body), ["A", "one", "B"]);
    assert_eq!(contents(&asked[4].body), ["A", "one", "B", "two", "C"]);
    assert_eq!(contents(&asked[10].body), ["A", "one", "B", "two", "C", "thr", "D", "fo", "I"]);
}

#[test]
fn what_cannot_work_is_refused_at_once() {
    let locked =
        MockServer::new(|_, _| MockAnswer::Plain("401 Unauthorized", r#"{"error":{"message":"no"}}"#.into()));
    let (code, _, stderr) = chat(&locked, &[], "Hi\n");
    assert!(code == 1 && stderr.contains("requires a key") && stderr.contains("--api-key-file"), "{stderr}");
    let output = latent(&["chat", "--url", &locked.url])
        .env("LATENT_API_KEY", "x1y2")
        .write_stdin("")
        .output()
        .unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.contains("rejected the key") && !stderr.contains("x1y2"), "{stderr}");
    let server = server(vec![MockAnswer::Stream(events("", &["x"]))]);
    let (code, _, stderr) = chat(&server, &["-m", "crow"], "");
    assert!(code == 64 && stderr.contains("the server has fox, owl"), "{stderr}");
    for (args, word) in [
        (&["chat", "--url", "http://127.0.0.1:9"][..], "cannot reach http://127.0.0.1:9"),
        (&["chat", "--url", "gopher://x"], "http://"),
        (&["chat", "--url", &server.url, "--prompt-cache", "x"], "cannot be used with"),
        (&["chat", "--url", &server.url, "--ctx-size", "5"], "cannot be used with"),
        (&["chat", "--api-key-file", "x"], "--url"),
        (&["chat", "--url", &server.url, "--api-key-file", "/nonexistent"], "/nonexistent"),
    ] {
        let output = latent(args).env_remove("LATENT_API_KEY").write_stdin("").output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && stderr.contains(word), "{args:?}: {stderr}");
    }
}

/// Answers that never end, in several ways. Bytes outside of the answer are limited, and so is the
/// time without progress.
#[test]
fn an_answer_without_progress_times_out() {
    const EMPTY: &str = "data: {\"choices\":[{\"delta\":{\"content\":\"\"}}]}\n\n";
    const CALL: &str = "data: {\"choices\":[{\"delta\":{\"tool_calls\":[{\"index\":7,\"function\":{\"arguments\":\"x\"}}]}}]}\n\n";
    let stream = |start: &str| EVENTS.to_owned() + start;
    let (flood, drip) = (Duration::ZERO, Duration::from_millis(20));
    let idle = "more than 1048576 bytes without any answer text";
    let stalled = "sent no data for 1 s (--timeout";
    let cases = [
        (MockAnswer::Endless(stream(""), ": ping\n\n".repeat(4000), flood), idle),
        (MockAnswer::Endless(stream(""), "\n".repeat(4000), flood), idle),
        (MockAnswer::Endless(stream(""), EMPTY.repeat(4000), flood), idle),
        (MockAnswer::Endless(stream(""), CALL.repeat(4000), flood), idle),
        (
            MockAnswer::Endless(stream("data: \""), "aaaaaaaaaaaaaaaa".repeat(4000), flood),
            "a line has more than",
        ),
        (MockAnswer::Endless("HTTP/1.1 200 OK\r\n".into(), "x: y\r\n".repeat(4000), flood), "header"),
        (MockAnswer::Endless(stream(""), ": ping\n\n".into(), drip), stalled),
        (MockAnswer::Endless(stream(""), EMPTY.into(), drip), stalled),
        (MockAnswer::Endless(stream("data: \""), "a".into(), drip), stalled),
        (MockAnswer::Endless("HTTP/1.1 200 OK\r\nx: ".into(), "y".into(), drip), stalled),
        (
            MockAnswer::Endless("HTTP/1.1 500 No\r\ncontent-length: 9999\r\n\r\n".into(), " ".into(), drip),
            stalled,
        ),
        (
            MockAnswer::Endless(
                "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5;".into(),
                "a".into(),
                drip,
            ),
            stalled,
        ),
        (MockAnswer::Hanging(String::new()), stalled),
    ];
    std::thread::scope(|scope| {
        for (answer, said) in cases {
            scope.spawn(move || {
                let server = server(vec![answer, MockAnswer::Stream(events("", &["fox"]))]);
                // The limit on bytes is reached long before the timeout.
                let timeout = if said == stalled { "1" } else { "60" };
                let (code, stdout, stderr) = chat(&server, &["--timeout", timeout], "A\n/regen\n");
                assert!(stderr.contains(said) && stderr.contains("/regen asks again"), "{said}: {stderr}");
                // The conversation continues.
                assert_eq!((code, stdout.as_str()), (1, "fox\n"), "{stderr}");
            });
        }
    });
}

#[test]
fn a_timeout_keeps_the_partial_answer() {
    let server =
        server(vec![MockAnswer::Hanging(deltas("", &["half"])), MockAnswer::Stream(events("", &["x"]))]);
    let (code, stdout, stderr) = chat(&server, &["--timeout", "3"], "A\nB\n");
    assert_eq!((code, stdout.as_str()), (0, "half\nx\n"), "{stderr}");
    assert!(
        stderr.contains("sent no data for 3 s") && stderr.contains("the partial answer is kept"),
        "{stderr}"
    );
    assert_eq!(contents(&server.questions()[1].body), ["A", "half", "B"]);
    for wrong in ["0", "nan", "x"] {
        let output = latent(&["chat", "--url", &server.url, "--timeout", wrong]).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(64) && stderr.contains("--timeout"), "{wrong}: {stderr}");
    }
}

#[test]
fn names_of_a_server_are_shortened_and_escaped() {
    let fox = "fox\u{202e}\u{1b}[2J".to_owned() + &"a".repeat(1 << 20);
    let list = json!({"data": [{"id": fox}, {"id": "owl".repeat(1 << 18)}]}).to_string();
    let server = MockServer::new(move |path, _| match path {
        "/v1/models" => MockAnswer::Plain("200 OK", list.clone()),
        _ => MockAnswer::Plain("404 Not Found", String::new()),
    });
    let (_, _, stderr) = chat(&server, &[], "");
    assert!(
        stderr.len() < 1000 && stderr.contains(r"fox\u{202e}\u{1b}[2Jaaa"),
        "{} {stderr:.500}",
        stderr.len()
    );
}

#[test]
fn tool_calls_are_shown_and_thinking_is_asked_for() {
    let call =
        |delta: Value| format!("data: {}\n\n", json!({"choices": [{"delta": {"tool_calls": [delta]}}]}));
    let text = deltas("", &["Let me see."])
        + &call(json!({"index": 0, "id": "c1", "function": {"name": "weather", "arguments": "{\"city\":"}}))
        + &call(json!({"index": 0, "function": {"arguments": " \"Rome\"}"}}))
        + "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"tool_calls\"}]}\n\ndata: [DONE]\n\n";
    let server = server(vec![MockAnswer::Stream(text), MockAnswer::Stream(events("", &["ok"]))]);
    let folder = tempfile::tempdir().unwrap();
    let tools = folder.path().join("tools.json");
    std::fs::write(&tools, r#"[{"type":"function","function":{"name":"weather"}}]"#).unwrap();
    let (code, stdout, stderr) =
        chat(&server, &["--no-think", "--tools", tools.to_str().unwrap()], "Hi\nIt rains.\n");
    assert_eq!((code, stdout.as_str()), (0, "Let me see.\n→ weather {\"city\": \"Rome\"}\nok\n"), "{stderr}");
    let asked = server.questions();
    assert_eq!(asked[0].body["chat_template_kwargs"]["enable_thinking"], json!(false));
    assert_eq!(asked[0].body["tools"][0]["function"]["name"], json!("weather"));
    assert_eq!(contents(&asked[1].body)[1], "Let me see.\nweather {\"city\": \"Rome\"}");
}

#[test]
fn conversations_are_saved_as_json_and_any_model_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("talk.json").display().to_string();
    let first = server(vec![MockAnswer::Stream(events("Thought.", &["answer"]))]);
    let (code, _, stderr) = chat(&first, &[], &format!("Hi\n/save {file}\n"));
    assert!(code == 0 && stderr.contains("saved 2 messages to"), "{stderr}");
    let saved: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    assert_eq!(
        saved["messages"][1],
        json!({"role": "assistant", "content": "answer", "reasoning_content": "Thought."})
    );
    let second = server(vec![MockAnswer::Stream(events("", &["more"]))]);
    let (code, _, stderr) = chat(
        &second,
        &[],
        &format!("/load {file}\nAnd?\n/load /nonexistent\n/load {}\n/tokens\n", folder.path().display()),
    );
    assert!(code == 1 && stderr.contains("restored 2 messages") && stderr.contains("4 messages"), "{stderr}");
    // Only the text of earlier answers is sent to a server.
    assert_eq!(second.questions()[0].body["messages"][1], json!({"role": "assistant", "content": "answer"}));
    // A model in this process continues the conversation and saves it.
    let output = latent(&["chat", "-n", "4", "-t", "1"])
        .write_stdin(format!("/load {file}\nAnd?\n/save {file}\n"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let saved: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    assert_eq!(saved["messages"].as_array().unwrap().len(), 4);
    // A damaged file changes nothing.
    std::fs::write(&file, "{\"version\": 1}").unwrap();
    let (_, _, stderr) = chat(&second, &[], &format!("Hi\n/load {file}\n/tokens\n"));
    assert!(stderr.contains("no list of messages") && stderr.contains("2 messages"), "{stderr}");
}

#[cfg(unix)]
#[test]
fn ctrl_c_closes_the_connection_and_keeps_the_partial_answer() {
    use nix::sys::signal::{Signal, kill};
    use std::io::{BufRead, BufReader, Read, Write};
    use std::process::{Command, Stdio};
    let server = server(vec![MockAnswer::Hanging(deltas("", &["half an answer"]))]);
    let mut child = Command::new(program())
        .args(["chat", "--url", &server.url, "--temp", "0"])
        .env_remove("LATENT_API_KEY")
        .env_remove("LATENT_MODEL")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.as_mut().unwrap().write_all(b"Hi\n").unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut seen = [0; 14];
    out.read_exact(&mut seen).unwrap();
    assert_eq!(&seen, b"half an answer");
    kill(nix::unistd::Pid::from_raw(child.id() as i32), Signal::SIGINT).unwrap();
    let mut rest = String::new();
    out.read_line(&mut rest).unwrap();
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(130) && stderr.contains("(stopped)"), "{stderr}");
    let end = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while server.closed() == 0 && std::time::Instant::now() < end {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    assert_eq!(server.closed(), 1);
}
