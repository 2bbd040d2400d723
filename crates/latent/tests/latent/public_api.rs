//! The settings of requests take effect.

use crate::{greedy, model};
use latent::{Chat, LogitsProcessor, StopReason};
use serde_json::{Value, json};

#[test]
fn recommended_sampling_applies_unless_it_is_set() {
    let model = model();
    let options = model.generate_options();
    let recommended = model.recommended_sampling();
    assert_eq!(options.sampling.temperature, recommended.temperature);
    assert_eq!(options.sampling.top_k, recommended.top_k);
    // Each request has a random seed of its own unless one is set.
    assert_ne!(options.sampling.seed, model.generate_options().sampling.seed);
    let own = latent::SamplingParams { temperature: 0.25, ..recommended.clone() };
    let cold = latent::Model::demo().context(64).sampling(own).load().unwrap();
    assert_eq!(cold.generate_options().sampling.temperature, 0.25);
    let seeded = || model.complete("Once").temperature(1.5).seed(7).max_tokens(30).finish().unwrap().tokens;
    assert_eq!(seeded(), seeded());
}

#[test]
fn stop_strings_and_log_probabilities() {
    let model = model();
    let ask = || model.complete("Once upon a time").temperature(0.0).max_tokens(30);
    let plain = ask().finish().unwrap();
    let word = plain.text.split_whitespace().nth(3).unwrap().to_owned();
    let done = ask().stop("").stop(&word).logprobs(3).finish().unwrap();
    assert_eq!(done.stop, StopReason::StopString);
    assert!(!done.text.contains(&word) && plain.text.starts_with(&done.text));
    assert_eq!(done.logprobs.len(), done.tokens.len());
    for (logprob, token) in done.logprobs.iter().zip(&done.tokens) {
        assert_eq!((logprob.token, logprob.top.len(), logprob.top[0].id), (*token, 3, *token));
        assert!(logprob.logprob <= 0.0);
    }
}

#[test]
fn an_answer_follows_a_schema_or_a_grammar() {
    let model = model();
    let schema = json!({
        "type": "object",
        "properties": {"animal": {"enum": ["fox", "owl"]}},
        "required": ["animal"],
        "additionalProperties": false
    });
    let done = model.chat(Chat::new().user("Who?")).json_schema(schema).max_tokens(60).finish().unwrap();
    let value: Value = serde_json::from_str(&done.text).unwrap();
    assert!(value["animal"] == "fox" || value["animal"] == "owl", "{value}");
    let done = model.complete("Once").grammar(r#"root ::= "yes" | "no""#).max_tokens(9).finish().unwrap();
    assert!(done.text == "yes" || done.text == "no", "{}", done.text);
}

/// Forbids one token.
struct TokenBan(u32);

impl LogitsProcessor for TokenBan {
    fn process(&mut self, _tokens: &[u32], logits: &mut [f32]) {
        logits[self.0 as usize] = f32::NEG_INFINITY;
    }
}

fn likeliest(_tokens: &[u32], logits: &[f32]) -> u32 {
    let best = logits.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1));
    best.map_or(0, |(token, _)| token as u32)
}

#[test]
fn a_caller_can_sample_and_change_logits() {
    let model = model();
    let plain = greedy(&model, 20).logprobs(1).finish().unwrap();
    let own = greedy(&model, 20).temperature(1.0).sampler(likeliest).logprobs(1).finish().unwrap();
    assert_eq!((&own.tokens, &own.logprobs), (&plain.tokens, &plain.logprobs));
    let first = plain.tokens[0];
    let banned = greedy(&model, 1).processor(TokenBan(first)).finish().unwrap();
    assert_ne!(banned.tokens[0], first);
    // The caller's sampler gets the logits after the processors and bans of the request.
    let own = greedy(&model, 1).processor(TokenBan(first)).sampler(likeliest).finish().unwrap();
    assert_eq!(own.tokens, banned.tokens);
    let eos = model.tokenizer().eos().unwrap();
    let ends = move |_: &[u32], _: &[f32]| eos;
    let free = || model.complete(vec![1, 20, 30]).max_tokens(9);
    let done = free().sampler(ends).finish().unwrap();
    assert_eq!((done.stop, done.text.as_str()), (StopReason::End, ""));
    for wrong in [u32::MAX, eos] {
        let wrong = move |_: &[u32], _: &[f32]| wrong;
        let error = free().min_tokens(4).sampler(wrong).finish().unwrap_err();
        assert!(error.message().contains("sampler"), "{error}");
    }
}

#[test]
fn a_prompt_of_tokens_gives_the_answer_of_its_text() {
    let model = model();
    let tokens = model.text().encode("Once upon a time", true, false).unwrap();
    let by_text = model.complete("Once upon a time").temperature(0.0).max_tokens(9).finish().unwrap();
    let by_tokens = model.complete(tokens.clone()).temperature(0.0).max_tokens(9).finish().unwrap();
    assert_eq!((by_text.text, &by_text.prompt), (by_tokens.text, &tokens));
    assert_eq!(model.text().decode(&tokens, false).unwrap(), "Once upon a time");
}
