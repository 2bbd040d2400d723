//! Questions with one right answer.

use crate::error::EvalError;
use crate::jsonl::{self, JsonlLine};
use crate::statistics::Estimate;
use latent_engine::sampling::SamplingParams;
use latent_engine::{Answer, Engine, EngineError, Listener, Request, Session};
use latent_text::Tokenizer;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::path::Path;
use std::sync::Arc;

/// A question, and the only answer that counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// Its line in the file.
    pub line: usize,
    /// What sort of question it is; empty where the file does not say.
    pub kind: String,
    pub prompt: String,
    /// The answer.
    pub expected: String,
}

impl Question {
    /// Reads a file of one object per line: `question` or `prompt`, `answer` or `expected`, and perhaps `kind`.
    pub fn read(path: &Path, most: Option<usize>) -> Result<Vec<Question>, EvalError> {
        jsonl::read(path, most, Question::parse)
    }

    fn parse(line: &JsonlLine<'_>) -> Result<Question, EvalError> {
        Ok(Question {
            line: line.number,
            kind: line.find(&["kind", "category"]).and_then(Value::as_str).unwrap_or_default().to_owned(),
            prompt: line.text(&["prompt", "question"])?.to_owned(),
            expected: line.text(&["expected", "answer"])?.to_owned(),
        })
    }
}

/// Answers a prompt by greedy decoding, with `most` tokens at most. What `session` has cached of it is not computed again.
pub fn answer(
    engine: &mut Engine,
    session: &mut Session,
    tokenizer: &Arc<Tokenizer>,
    (prompt, most): (Vec<u32>, usize),
    listener: &mut dyn Listener,
) -> Result<Answer, EngineError> {
    let sampling = SamplingParams::greedy();
    let request = Request { prompt, sampling, max_tokens: Some(most), ..Request::default() };
    engine.generate(session, &request, tokenizer, listener)
}

/// How many questions a model answered as expected.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct QuestionAccuracy {
    pub questions: usize,
    /// Share of the answers that are the expected one, white space at both ends aside.
    pub exact: Estimate,
    /// The same by sort of question, in the order of the file.
    pub kinds: Vec<QuestionKind>,
    /// The other answers.
    pub wrong: Vec<WrongAnswer>,
}

/// Questions of one sort.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct QuestionKind {
    /// What the file calls them.
    pub kind: String,
    /// How many there are.
    pub questions: usize,
    /// How many were answered as expected.
    pub right: usize,
}

/// An answer that is not the expected one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WrongAnswer {
    /// The question's line in the file.
    pub line: usize,
    pub expected: String,
    /// The model's.
    pub answer: String,
}

impl QuestionAccuracy {
    pub fn add(&mut self, question: &Question, answer: &str) {
        let right = answer.trim() == question.expected.trim();
        let at = self.kinds.iter().position(|kind| kind.kind == question.kind).unwrap_or_else(|| {
            self.kinds.push(QuestionKind { kind: question.kind.clone(), ..QuestionKind::default() });
            self.kinds.len() - 1
        });
        self.kinds[at].questions += 1;
        self.kinds[at].right += usize::from(right);
        if !right {
            let (expected, answer) = (question.expected.clone(), answer.to_owned());
            self.wrong.push(WrongAnswer { line: question.line, expected, answer });
        }
        self.questions += 1;
        self.exact = Estimate::share(self.questions - self.wrong.len(), self.questions);
    }
}
