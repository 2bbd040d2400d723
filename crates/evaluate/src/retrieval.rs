//! Retrieval (needle in a haystack): one fact among many, at a given depth of a prompt of a given
//! length.
//!
//! All texts derive from the numbers of the case, so that every run on every machine has the same
//! prompts.

use crate::statistics::Estimate;
use serde::{Deserialize, Serialize};

const KINDS: [&str; 12] =
    ["red", "blue", "green", "yellow", "white", "black", "golden", "small", "big", "heavy", "old", "new"];

const THINGS: [&str; 12] =
    ["box", "gate", "boat", "room", "safe", "shelf", "locker", "chest", "tower", "bag", "door", "cart"];

/// A prompt: its length, the position of its fact, and the number of the text.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RetrievalCase {
    /// Maximum tokens of the prompt.
    pub length: usize,
    /// Position of the fact, from 0 (first) to 1 (last).
    pub depth: f64,
    /// The number of the text.
    pub trial: usize,
}

/// A prompt and what its answer must contain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Needle {
    /// The prompt.
    pub text: String,
    pub tokens: Vec<u32>,
    /// The code that is asked for.
    pub expected: String,
    /// Number of other facts or sentences.
    pub sentences: usize,
}

/// Encodes a text with the chat template; `None` if it is far too long.
pub type PromptEncoder<'a, E> = dyn FnMut(&str) -> Result<Option<Vec<u32>>, E> + 'a;

/// The text in which the fact is hidden.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Haystack {
    /// Facts of the same form about other things. Harder than a text, because the wording does not
    /// give the fact away.
    #[default]
    SimilarFacts,
    /// Sentences of a text, repeated if it is too short.
    Sentences(Vec<String>),
}

impl Haystack {
    /// The sentences of a text; `None` if it has none.
    pub fn of_text(text: &str) -> Option<Haystack> {
        let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
        let sentences: Vec<String> = words
            .split_inclusive(['.', '!', '?'])
            .map(|sentence| sentence.trim().to_owned())
            .filter(|sentence| sentence.len() > 1)
            .collect();
        (!sentences.is_empty()).then_some(Haystack::Sentences(sentences))
    }

    fn sentence(&self, case: RetrievalCase, at: usize) -> String {
        match self {
            // Fact 0 is the needle.
            Haystack::SimilarFacts => fact(case.trial, at + 1).sentence,
            // The offset gives each trial another part of the text.
            Haystack::Sentences(sentences) => sentences[(at + case.trial * 97) % sentences.len()].clone(),
        }
    }

    /// The prompt with `sentences` of these, and the code.
    fn prompt(&self, case: RetrievalCase, sentences: usize) -> (String, String) {
        let RetrievalFact { sentence, key, code } = fact(case.trial, 0);
        let at = (case.depth.clamp(0.0, 1.0) * sentences as f64).round() as usize;
        // The needle is added to them: `sentences` counts only the others.
        let mut lines: Vec<String> = (0..sentences).map(|i| self.sentence(case, i)).collect();
        lines.insert(at.min(sentences), sentence);
        (format!("Here are some facts.\n{}\n\nWhat is the code of the {key}?", lines.join("\n")), code)
    }

    /// The longest prompt of a case. `tokens` encodes a text with the chat template. `None` if the
    /// question alone exceeds the length.
    pub fn hide<E>(
        &self,
        case: RetrievalCase,
        tokens: &mut PromptEncoder<'_, E>,
    ) -> Result<Option<Needle>, E> {
        let mut make = |sentences: usize| -> Result<Option<Needle>, E> {
            let (text, expected) = self.prompt(case, sentences);
            let tokens = tokens(&text)?.filter(|tokens| tokens.len() <= case.length);
            Ok(tokens.map(|tokens| Needle { text, tokens, expected, sentences }))
        };
        let Some(mut best) = make(0)? else { return Ok(None) };
        // A sentence has at least one token, so `length` bounds their number.
        let (mut low, mut high) = (0, case.length);
        while low < high {
            let middle = low + (high - low).div_ceil(2);
            match make(middle)? {
                Some(needle) => (low, best) = (middle, needle),
                None => high = middle - 1,
            }
        }
        Ok(Some(best))
    }
}

/// A fact about one thing.
struct RetrievalFact {
    sentence: String,
    key: String,
    code: String,
}

/// Fact `number` of a text. No two facts of a text are about the same thing.
fn fact(trial: usize, number: usize) -> RetrievalFact {
    let all = KINDS.len() * THINGS.len();
    // 61 and 144 (12 kinds × 12 things) are coprime, so every thing occurs once before any repeats.
    let thing = (number * 61 + trial * 17) % all;
    let (kind, thing) = (KINDS[thing / THINGS.len()], THINGS[thing % THINGS.len()]);
    let house = number / all;
    let key = if house == 0 { format!("{kind} {thing}") } else { format!("{kind} {thing} of house {house}") };
    // Fibonacci hashing of trial and number: codes look random but are reproducible.
    let mixed = ((trial as u64) << 32 | number as u64).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    // Always four digits: a code must not stand out by its length.
    let code = (1000 + (mixed >> 33) % 9000).to_string();
    RetrievalFact { sentence: format!("The code of the {key} is {code}."), key, code }
}

/// Whether an answer contains the code, and not as part of a longer number.
pub fn found(answer: &str, expected: &str) -> bool {
    // Models wrap the code in a sentence or in markup such as `**4912**`.
    answer.split(|c: char| !c.is_ascii_digit()).any(|number| number == expected)
}

/// Share of facts that a model found, by length and depth.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Retrieval {
    /// The haystack: `facts` or the name of a text.
    pub haystack: String,
    /// Prompts per length and depth.
    pub trials: usize,
    /// Share over all prompts.
    pub found: Estimate,
    /// Results by length and depth.
    pub cells: Vec<RetrievalCell>,
}

/// Prompts of one length with the fact at one depth.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RetrievalCell {
    /// Maximum tokens of a prompt.
    pub length: usize,
    /// Mean tokens of the prompts.
    pub tokens: f64,
    /// Position of the fact, from 0 to 1.
    pub depth: f64,
    /// Share of prompts whose answer contains the code.
    pub found: f64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use std::convert::Infallible;

    fn words(text: &str) -> Result<Option<Vec<u32>>, Infallible> {
        Ok(Some(vec![0; text.split_whitespace().count()]))
    }

    fn hide(case: RetrievalCase, haystack: &Haystack) -> Option<Needle> {
        let Ok(needle) = haystack.hide(case, &mut words);
        needle
    }

    #[test]
    fn prompts_fill_the_length_and_are_reproducible() {
        let case = RetrievalCase { length: 500, depth: 0.5, trial: 3 };
        let needle = hide(case, &Haystack::SimilarFacts).unwrap();
        // A fact has 8 words.
        assert!((493..=500).contains(&needle.tokens.len()), "{}", needle.tokens.len());
        assert_eq!(hide(case, &Haystack::SimilarFacts).unwrap(), needle);
        assert_ne!(
            hide(RetrievalCase { trial: 4, ..case }, &Haystack::SimilarFacts).unwrap().expected,
            needle.expected
        );
        assert!(hide(RetrievalCase { length: 5, ..case }, &Haystack::SimilarFacts).is_none());
    }

    #[test]
    fn the_fact_is_at_its_depth_with_a_unique_key() {
        for (depth, line) in [(0.0, 1), (0.5, 31), (1.0, 61)] {
            let needle =
                hide(RetrievalCase { length: 500, depth, trial: 1 }, &Haystack::SimilarFacts).unwrap();
            assert_eq!(needle.sentences, 60);
            let lines: Vec<&str> = needle.text.lines().collect();
            let key =
                lines.last().unwrap().strip_prefix("What is the code of the ").unwrap().trim_end_matches('?');
            let about: Vec<usize> = (0..lines.len())
                .filter(|i| lines[*i].starts_with(&format!("The code of the {key} is")))
                .collect();
            assert_eq!(about, [line], "{depth}");
            assert!(lines[line].ends_with(&format!("{}.", needle.expected)));
        }
    }

    #[test]
    fn keys_do_not_come_twice() {
        let keys: HashSet<String> = (0..1000).map(|number| fact(5, number).key).collect();
        assert_eq!(keys.len(), 1000);
    }

    #[test]
    fn short_texts_are_repeated() {
        let haystack = Haystack::of_text("One fox ran.  It was\nwarm! Why?").unwrap();
        let Haystack::Sentences(sentences) = &haystack else { panic!("a text has sentences") };
        assert_eq!(sentences, &["One fox ran.", "It was warm!", "Why?"]);
        assert!(hide(RetrievalCase { length: 100, depth: 0.3, trial: 0 }, &haystack).unwrap().sentences > 20);
        assert_eq!(Haystack::of_text(" \n"), None);
    }

    #[test]
    fn codes_match_whole_numbers_only() {
        assert!(found("The code is 4912.", "4912") && found("4912", "4912"));
        assert!(!found("14912 or 49120", "4912") && !found("", "4912"));
    }
}
