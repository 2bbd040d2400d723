//! Questions with exactly one right answer.

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

/// A question and its only accepted answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// Line number in the file.
    pub line: usize,
    /// The category of the question; empty if the file has none.
    pub kind: String,
    pub prompt: String,
    /// The answer.
    pub expected: String,
}

impl Question {
    /// Reads a file with one object per line: `question` or `prompt`, `answer` or `expected`, and
    /// optionally `kind`.
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

/// Answers a prompt by greedy decoding, with at most `most` tokens. The cached prefix in `session`
/// is reused.
pub fn answer(
    engine: &mut Engine,
    session: &mut Session,
    tokenizer: &Arc<Tokenizer>,
    (prompt, most): (Vec<u32>, usize),
    listener: &mut dyn Listener,
) -> Result<Answer, EngineError> {
    // Without randomness, two runs of the same model give the same score.
    let sampling = SamplingParams::greedy();
    let request = Request { prompt, sampling, max_tokens: Some(most), ..Request::default() };
    engine.generate(session, &request, tokenizer, listener)
}

/// Number of questions that a model answered as expected.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct QuestionAccuracy {
    pub questions: usize,
    /// Share of answers that equal the expected one, ignoring white space at both ends.
    pub exact: Estimate,
    /// Results by category, in the order of the file.
    pub kinds: Vec<QuestionKind>,
    /// The wrong answers.
    pub wrong: Vec<WrongAnswer>,
}

/// Questions of one category.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct QuestionKind {
    /// The category's name in the file.
    pub kind: String,
    /// Number of questions.
    pub questions: usize,
    /// Number of questions answered as expected.
    pub right: usize,
}

/// A wrong answer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WrongAnswer {
    /// The question's line in the file.
    pub line: usize,
    pub expected: String,
    /// The model's answer.
    pub answer: String,
}

impl QuestionAccuracy {
    pub fn add(&mut self, question: &Question, answer: &str) {
        // Models end answers with a line feed or begin them with a space.
        let right = answer.trim() == question.expected.trim();
        // A list and not a map: reports show the categories in the order of the file.
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
