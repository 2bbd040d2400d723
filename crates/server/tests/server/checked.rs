//! Checks of requests without an engine: the jobs that it would get.

use crate::support::{CONTEXT, ask, demo, without_engine};
use latent_server::{CheckedRequest, RequestCheck};
use serde_json::{Value, json};

fn post(check: &RequestCheck, path: &str, body: &Value) -> CheckedRequest {
    check.ask(path, Some(body.to_string().as_bytes()))
}

fn value(checked: &CheckedRequest) -> Value {
    serde_json::from_slice(&checked.body).unwrap()
}

#[test]
fn a_check_reports_prompt_and_sampling_of_every_choice() {
    let check = without_engine();
    let body = ask(
        json!({"n": 3, "seed": 7, "temperature": 0.5, "stop": ["x"], "logprobs": true, "top_logprobs": 2}),
    );
    let checked = post(&check, "/v1/chat/completions", &body);
    assert_eq!(checked.status, 200);
    let [job] = checked.jobs.as_slice() else { panic!("{:?}", checked.jobs) };
    assert_eq!((job.choices, job.embed, job.request.max_tokens), (3, false, Some(12)));
    assert_eq!((job.request.sampling.seed, job.request.sampling.temperature), (7, 0.5));
    assert_eq!((job.request.stop.as_slice(), job.request.logprobs), (["x".to_owned()].as_slice(), Some(2)));
    let tokens = job.request.prompt.len();
    assert_eq!(value(&checked)["usage"]["prompt_tokens"], tokens);
    assert_eq!(value(&checked)["choices"].as_array().unwrap().len(), 3);
    // The server counts the same number.
    let whole = demo().post("/v1/chat/completions", &ask(json!({"max_tokens": 1}))).ok();
    assert_eq!(whole["usage"]["prompt_tokens"], tokens);
}

#[test]
fn several_prompts_and_embeddings_are_several_jobs() {
    let check = without_engine();
    let checked = post(&check, "/v1/completions", &json!({"prompt": ["a b", [5, 6, 7]], "stream": true}));
    assert_eq!(checked.status, 200);
    assert_eq!(checked.jobs.len(), 2);
    assert_eq!(checked.jobs[1].request.prompt, [5, 6, 7]);
    assert!(checked.body.ends_with(b"data: [DONE]\n\n"));
    let checked = post(&check, "/v1/embeddings", &json!({"input": ["a", "b", "c"]}));
    assert_eq!((checked.status, checked.jobs.len()), (200, 3));
    assert!(checked.jobs.iter().all(|job| job.embed));
}

#[test]
fn a_check_refuses_what_the_scheduler_refuses() {
    let check = without_engine();
    let long = vec![5; CONTEXT];
    for (body, word) in [
        (json!({"prompt": long, "max_tokens": 1}), "context"),
        (json!({"prompt": "a", "top_p": 1.5}), "top_p"),
        (json!({"prompt": "a", "logit_bias": {"99999999": 1}}), "99999999"),
        (json!({"prompt": "a", "temperature": "hot"}), "temperature"),
    ] {
        let checked = post(&check, "/v1/completions", &body);
        assert_eq!(checked.status, 400, "{body}");
        assert!(checked.jobs.is_empty());
        let message = value(&checked)["error"]["message"].to_string();
        assert!(message.contains(word), "{message}");
    }
    assert_eq!(check.ask("/health", None).status, 200);
    assert_eq!(check.ask("/v1/nothing", None).status, 404);
}
