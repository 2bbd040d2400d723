//! Multiple choice: the ending of a text that a model considers likeliest.

use crate::error::EvalError;
use crate::jsonl::{self, JsonlLine};
use crate::log_softmax::LogSoftmax;
use crate::statistics::Estimate;
use latent_engine::cache::Sequence;
use latent_engine::{Engine, LogitsRequest};
use latent_text::{EncodeOptions, TextError, Tokenizer};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::path::Path;

/// A text and its possible endings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChoiceQuestion {
    /// Line number in the file.
    pub line: usize,
    /// The text.
    pub context: String,
    pub endings: Vec<String>,
    /// Index of the right ending.
    pub label: usize,
}

impl ChoiceQuestion {
    /// Reads a file with one object per line in HellaSwag's format: `ctx`, `endings` and `label` (a
    /// number, or a number as text). With `activity_label` the text is prepared as by
    /// lm-evaluation-harness.
    pub fn read(path: &Path, most: Option<usize>) -> Result<Vec<ChoiceQuestion>, EvalError> {
        jsonl::read(path, most, ChoiceQuestion::parse)
    }

    fn parse(line: &JsonlLine<'_>) -> Result<ChoiceQuestion, EvalError> {
        let context = line.text(&["ctx", "context", "query", "question"])?;
        let endings = line.value(&["endings", "choices"])?.as_array().map_or(&[][..], Vec::as_slice);
        let texts: Option<Vec<&str>> = endings.iter().map(Value::as_str).collect();
        let texts =
            texts.filter(|texts| texts.len() >= 2 && texts.iter().all(|text| !text.trim().is_empty()));
        let texts = texts.ok_or_else(|| line.wrong("endings must be a list of two or more texts".into()))?;
        let label = line.value(&["label", "gold", "answer"])?;
        // HellaSwag's JSON has the label as text, other sets as a number.
        let number = label.as_u64().or_else(|| label.as_str()?.trim().parse().ok());
        let label =
            number.map(|label| label as usize).filter(|label| *label < texts.len()).ok_or_else(|| {
                line.wrong(format!("label must be the number of the right ending, 0 to {}", texts.len() - 1))
            })?;
        // Scores are comparable only with the same text. This follows `process_docs` and
        // `preprocess` in lm_eval/tasks/hellaswag/utils.py.
        let prepared = match line.find(&["activity_label"]).and_then(Value::as_str) {
            Some(activity) => {
                let (a, b) = (line.find(&["ctx_a"]), line.find(&["ctx_b"]));
                let context = match (a.and_then(Value::as_str), b.and_then(Value::as_str)) {
                    (Some(a), Some(b)) => format!("{a} {}", capitalized(b)),
                    _ => context.to_owned(),
                };
                let endings = texts.iter().map(|text| cleaned(text)).collect();
                (cleaned(&format!("{activity}: {context}")), endings)
            }
            None => (context.to_owned(), texts.into_iter().map(str::to_owned).collect()),
        };
        Ok(ChoiceQuestion { line: line.number, context: prepared.0, endings: prepared.1, label })
    }
}

/// As Python's `str.capitalize`: the first letter in upper case, all others in lower case.
fn capitalized(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next().into_iter().flat_map(char::to_uppercase);
    first.chain(letters.flat_map(char::to_lowercase)).collect()
}

/// Removes the WikiHow markup that is left in HellaSwag's texts, such as `[title]`.
fn cleaned(text: &str) -> String {
    let text = text.trim().replace(" [title]", ". ");
    let mut out = String::with_capacity(text.len());
    let mut rest = text.as_str();
    while let Some(open) = rest.find('[') {
        let Some(close) = rest[open..].find(']') else { break };
        out.push_str(&rest[..open]);
        rest = &rest[open + close + 1..];
    }
    out.push_str(rest);
    out.replace("  ", " ")
}

/// A model's score of an ending.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct EndingScore {
    /// Sum of ln p over its tokens.
    pub ln_p: f64,
    pub tokens: usize,
    pub characters: usize,
}

/// Scores the endings of a text. Text and ending are tokenized together, separated by a space.
/// Tokens that all endings share are not scored.
pub fn score_endings(
    engine: &mut Engine,
    tokenizer: &Tokenizer,
    choice: &ChoiceQuestion,
) -> Result<Vec<EndingScore>, EvalError> {
    let texts = encoded(tokenizer, choice)?;
    let shared = shared_tokens(&texts);
    let mut sequence = Sequence::default();
    let mut first = None;
    let chunk = engine.chunk_for(shared);
    let mut on_logits = |_: usize, logits: &[f32]| first = Some(logits.to_vec());
    let before = &texts[0][..shared];
    engine.prefill(&mut sequence, before, chunk, LogitsRequest::Last, &mut on_logits, &mut |_| true)?;
    // The shared tokens run once. Each ending continues from here and is then truncated; a
    // recurrent state needs a snapshot for that.
    engine.snapshot(&mut sequence)?;
    let first = first.unwrap_or_default();
    let mut scores = Vec::with_capacity(texts.len());
    for (tokens, ending) in texts.iter().zip(&choice.endings) {
        // The logits of the last shared token score the first token of the ending.
        let mut ln_p = ln_p_of(&first, tokens[shared]);
        // After a truncation a recurrent state may be before `shared`, so its tokens run again. The
        // logits behind the last token are not needed.
        let start = sequence.len();
        let rows: Vec<usize> = (shared - start..tokens.len() - 1 - start).collect();
        let mut sum = |row: usize, logits: &[f32]| {
            ln_p = ln_p.zip(ln_p_of(logits, tokens[start + row + 1])).map(|(sum, more)| sum + more);
        };
        if !rows.is_empty() {
            let rest = &tokens[start..tokens.len() - 1];
            engine
                .prefill(&mut sequence, rest, chunk, LogitsRequest::Rows(&rows), &mut sum, &mut |_| true)?;
        }
        let _ = engine.truncate(&mut sequence, shared);
        let ln_p = ln_p.ok_or(EvalError::NoProbability { line: choice.line })?;
        scores.push(EndingScore { ln_p, tokens: tokens.len() - shared, characters: ending.chars().count() });
    }
    engine.release(sequence);
    Ok(scores)
}

/// Tokens of the text with each of its endings.
pub fn encoded(tokenizer: &Tokenizer, choice: &ChoiceQuestion) -> Result<Vec<Vec<u32>>, TextError> {
    let how = EncodeOptions { add_special: true, parse_special: false };
    choice
        .endings
        .iter()
        // Together, because a tokenizer may merge characters across the border.
        .map(|ending| tokenizer.encode(&format!("{} {ending}", choice.context), how))
        .collect()
}

/// Number of tokens that all texts begin with. At least one token of each is left to score, and one
/// before it to score it with.
fn shared_tokens(texts: &[Vec<u32>]) -> usize {
    let shortest = texts.iter().map(Vec::len).min().unwrap_or(0);
    let same = (0..shortest).take_while(|at| texts.iter().all(|text| text[*at] == texts[0][*at])).count();
    same.min(shortest.saturating_sub(1)).max(1)
}

fn ln_p_of(logits: &[f32], token: u32) -> Option<f64> {
    Some(LogSoftmax::of(logits)?.ln_p(logits[token as usize]))
}

/// Share of right choices.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ChoiceAccuracy {
    /// Number of texts.
    pub tasks: usize,
    /// Share of right choices by the sum of ln p.
    pub accuracy: Estimate,
    /// Share of right choices by ln p per token, as llama.cpp's HellaSwag score.
    pub per_token: Estimate,
    /// Share of right choices by ln p per character, as `acc_norm` of lm-evaluation-harness.
    pub per_character: Estimate,
    /// Expected share of guessing.
    pub chance: f64,
}

/// Counts right choices.
#[derive(Clone, Debug, Default)]
pub struct ChoiceCount {
    tasks: usize,
    right: [usize; 3],
    chance: f64,
}

impl ChoiceCount {
    /// Adds the scores of a text's endings.
    pub fn add(&mut self, label: usize, scores: &[EndingScore]) {
        let by: [fn(&EndingScore) -> f64; 3] = [
            |score| score.ln_p,
            |score| score.ln_p / score.tokens.max(1) as f64,
            |score| score.ln_p / score.characters.max(1) as f64,
        ];
        for (right, by) in self.right.iter_mut().zip(by) {
            // Of equal scores the first one wins, as `argmax` in NumPy, which lm-evaluation-harness
            // uses.
            let best =
                scores.iter().enumerate().max_by(|a, b| by(a.1).total_cmp(&by(b.1)).then(b.0.cmp(&a.0)));
            *right += usize::from(best.is_some_and(|(at, _)| at == label));
        }
        self.tasks += 1;
        // The texts of a file may have different numbers of endings.
        self.chance += 1.0 / scores.len().max(1) as f64;
    }

    /// The shares.
    pub fn finish(&self) -> ChoiceAccuracy {
        let [accuracy, per_token, per_character] = self.right.map(|right| Estimate::share(right, self.tasks));
        let chance = self.chance / self.tasks.max(1) as f64;
        ChoiceAccuracy { tasks: self.tasks, accuracy, per_token, per_character, chance }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<Vec<ChoiceQuestion>, String> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        ChoiceQuestion::read(file.path(), None).map_err(|error| error.to_string())
    }

    #[test]
    fn hellaswag_lines_are_prepared_as_in_lm_eval() {
        // Expected values by hand from preprocess() and process_docs() of
        // lm_eval/tasks/hellaswag/utils.py.
        let line = r#"{"activity_label": "Removing ice", "ctx_a": "A man [header] is there.", "ctx_b": "he Then", "ctx": "unused",
            "endings": ["goes. [title] On", " stays [substeps] here."], "label": "1"}"#;
        let choice = &parsed(&line.replace('\n', "")).unwrap()[0];
        assert_eq!(choice.context, "Removing ice: A man is there. He then");
        assert_eq!(
            (&choice.endings[..], choice.label),
            (&["goes.. On".to_owned(), "stays here.".into()][..], 1)
        );
    }

    #[test]
    fn errors_name_the_missing_key() {
        let refused = |line: &str| parsed(line).unwrap_err();
        assert!(refused(r#"{"ctx": "a", "endings": ["b"], "label": 0}"#).contains("two or more"));
        assert!(refused(r#"{"ctx": "a", "endings": ["b", "c"], "label": 2}"#).contains("0 to 1"));
        assert!(refused(r#"{"ctx": "a", "endings": ["b", 3], "label": 0}"#).contains("two or more"));
        assert!(refused(r#"{"endings": ["b", "c"], "label": 1}"#).contains("ctx"));
    }

    #[test]
    fn endings_are_scored_by_sum_per_token_and_per_character() {
        let score = |ln_p, tokens, characters| EndingScore { ln_p, tokens, characters };
        let mut count = ChoiceCount::default();
        // The first wins by sum, the second per token, the third per character.
        let scores = [score(-2.0, 1, 2), score(-3.0, 3, 4), score(-4.0, 2, 9)];
        (0..3).for_each(|label| count.add(label, &scores));
        let found = count.finish();
        assert_eq!((found.tasks, found.chance), (3, 1.0 / 3.0));
        for share in [found.accuracy, found.per_token, found.per_character] {
            assert!((share.value - 1.0 / 3.0).abs() < 1e-12);
        }
        let mut first = ChoiceCount::default();
        first.add(1, &scores);
        let found = first.finish();
        assert_eq!([found.accuracy.value, found.per_token.value, found.per_character.value], [0.0, 1.0, 0.0]);
    }

    #[test]
    fn one_token_of_each_text_is_left_to_score() {
        assert_eq!(shared_tokens(&[vec![0, 1, 2, 3], vec![0, 1, 5]]), 2);
        assert_eq!(shared_tokens(&[vec![0, 1, 2], vec![0, 1, 2]]), 2);
        assert_eq!(shared_tokens(&[vec![0, 1, 2], vec![0, 1]]), 1);
    }
}
