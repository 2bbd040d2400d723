//! Text around reasoning and answer, before the calls that a grammar constrains.

use crate::support::{Walk, limits, of_bytes};
use latent_grammar::{CallableTool, Grammar, GrammarSource, Grammars, Reasoning, ToolCalls, ToolRequirement};
use latent_text::{ResponseFormat, Tokenizer};
use serde_json::json;
use std::sync::Arc;

const CALLS: &str = "<|open|>tools<|sep|><|open|>call tool=\"get\" index=\"1\"<|sep|><|open|>argument key=\"city\" type=\"string\"<|sep|>Bonn\
    <|close|>argument<|sep|><|close|>call<|sep|><|close|>tools<|sep|>";

struct AnswerCase {
    grammar: Arc<Grammar>,
    tokenizer: Arc<Tokenizer>,
}

impl AnswerCase {
    fn admits(&self, text: &str) -> bool {
        let mut walk = Walk::with(&self.grammar, Arc::clone(&self.tokenizer));
        walk.text(text).is_ok() && walk.may_end()
    }

    #[track_caller]
    fn check(&self, good: &[&str], bad: &[&str]) {
        good.iter().for_each(|text| assert!(self.admits(text), "refuses {text:?}"));
        bad.iter().for_each(|text| assert!(!self.admits(text), "admits {text:?}"));
    }
}

fn kimi_k3(choice: ToolRequirement, reasoning: Option<bool>) -> AnswerCase {
    let tokenizer = Arc::new(of_bytes(
        &["think", "res", "tool"],
        &["<end>", "<stop>", "<|open|>", "<|close|>", "<|sep|>"],
    ));
    let format = ResponseFormat::named("kimi-k3").unwrap();
    let parameters =
        json!({"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]});
    let calls = ToolCalls {
        format: format.tool_grammar().unwrap().clone(),
        free_markers: format.free_markers(&format.control_tokens(&tokenizer)),
        tools: vec![CallableTool { name: "get".into(), parameters: Some(parameters), strict: true }],
        choice,
        parallel: true,
    };
    let (begin, end) = format.reasoning_markers().unwrap();
    let reasoning = reasoning.map(|open| Reasoning { begin: begin.to_owned(), end: end.to_owned(), open });
    let grammars = Grammars::new(&tokenizer, limits()).unwrap();
    let grammar = grammars.compile(&GrammarSource::Tools(Box::new(calls)), reasoning.as_ref()).unwrap();
    AnswerCase { grammar, tokenizer }
}

/// The text of a turn, as the chat template writes it.
fn turn(begin: &str, answer: &str) -> String {
    format!("{begin}Hm <b>.<|close|>think<|sep|><|open|>response<|sep|>{answer}<|close|>response<|sep|>")
}

#[test]
fn the_answer_ends_before_the_calls() {
    let answer = "I look.<|close|>response<|sep|>";
    let case = kimi_k3(ToolRequirement::Auto, None);
    case.check(
        &[
            "",
            "I look.",
            answer,
            CALLS,
            &format!("{answer}{CALLS}"),
            &format!("I look.{CALLS}"),
            &format!("{answer}<|close|>message<|sep|>"),
        ],
        &[
            "<|close|>",
            "I look.<|close|>tools<|sep|>",
            "I look.<|close|>call<|sep|>",
            "I look.<|close|>res",
            "I look.<|close|>responses<|sep|>",
            "I look.<|sep|>",
            "<|open|>call tool=\"get\" index=\"1\"<|sep|>",
            "<|open|>x<|sep|>",
            &format!("{CALLS}{answer}"),
            &format!("{answer}{}", CALLS.replace("city", "town")),
        ],
    );
}

#[test]
fn reasoning_and_an_answer_come_before_the_calls() {
    let begin = "<|open|>think<|sep|>";
    for (reasoning, begin) in [(None, begin), (Some(false), begin), (Some(true), "")] {
        let case = kimi_k3(ToolRequirement::Auto, reasoning);
        let [whole, silent] = ["It rains: 日本.\n", ""].map(|answer| turn(begin, answer));
        case.check(
            &[
                &whole,
                &format!("{whole}{CALLS}"),
                &format!("{silent}{CALLS}"),
                &format!("{begin}Hm<|close|>think<|sep|>{CALLS}"),
            ],
            &[
                &format!("{whole}<|open|>"),
                &format!("{whole}<|close|>"),
                &format!("{whole}{}", CALLS.replace("\"get\"", "\"other\"")),
            ],
        );
    }
}

#[test]
fn required_calls_have_no_answer_before_them() {
    let answer = "I look.<|close|>response<|sep|>";
    for choice in [ToolRequirement::Required, ToolRequirement::Named("get".into())] {
        kimi_k3(choice.clone(), None).check(&[CALLS], &["", answer, &format!("{answer}{CALLS}")]);
        let thought = "Hm.<|close|>think<|sep|>";
        kimi_k3(choice, Some(true))
            .check(&[&format!("{thought}{CALLS}")], &[thought, &format!("{thought}{answer}{CALLS}"), CALLS]);
    }
}
