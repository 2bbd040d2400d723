//! Retrieval: one fact among many, at a chosen depth of a prompt of a chosen length.
//!
//! All texts are made from the numbers of the case alone, so that every run and every machine asks the same.

use crate::statistics::Estimate;
use serde::{Deserialize, Serialize};

const KINDS: [&str; 12] =
    ["red", "blue", "green", "yellow", "white", "black", "golden", "small", "big", "heavy", "old", "new"];

const THINGS: [&str; 12] =
    ["box", "gate", "boat", "room", "safe", "shelf", "locker", "chest", "tower", "bag", "door", "cart"];

/// One prompt: where its fact stands, and which of several texts it is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RetrievalCase {
    /// Tokens of the prompt, which it has at most.
    pub length: usize,
    /// Where the fact stands, from 0 (first) to 1 (last).
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
    /// The code that was asked for.
    pub expected: String,
    /// Facts or sentences among which it stands.
    pub sentences: usize,
}

/// Makes the tokens of a prompt from a text; none of one that is far too long.
pub type PromptEncoder<'a, E> = dyn FnMut(&str) -> Result<Option<Vec<u32>>, E> + 'a;

/// What the fact is hidden among.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Haystack {
    /// Facts of the same form about other things.
    #[default]
    SimilarFacts,
    /// Sentences of a text, again from the beginning where it ends.
    Sentences(Vec<String>),
}

impl Haystack {
    /// The sentences of a text; none where it has no sentence.
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
            // fact 0 is the one that is asked for
            Haystack::SimilarFacts => fact(case.trial, at + 1).sentence,
            Haystack::Sentences(sentences) => sentences[(at + case.trial * 97) % sentences.len()].clone(),
        }
    }

    /// The prompt with `sentences` of these.
    fn prompt(&self, case: RetrievalCase, sentences: usize) -> (String, String) {
        let RetrievalFact { sentence, key, code } = fact(case.trial, 0);
        let at = (case.depth.clamp(0.0, 1.0) * sentences as f64).round() as usize;
        let mut lines: Vec<String> = (0..sentences).map(|i| self.sentence(case, i)).collect();
        lines.insert(at.min(sentences), sentence);
        (format!("Here are some facts.\n{}\n\nWhat is the code of the {key}?", lines.join("\n")), code)
    }

    /// The longest prompt of a case: `tokens` puts the chat template around a text. None where the question alone is longer than the case allows.
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
        // a sentence has a token at least
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

/// What is known of one thing.
struct RetrievalFact {
    sentence: String,
    key: String,
    code: String,
}

/// The fact of this number in a text. No two of a text are about the same thing.
fn fact(trial: usize, number: usize) -> RetrievalFact {
    let all = KINDS.len() * THINGS.len();
    // 61 has no divisor in common with 144, so that every thing comes once before any comes again
    let thing = (number * 61 + trial * 17) % all;
    let (kind, thing) = (KINDS[thing / THINGS.len()], THINGS[thing % THINGS.len()]);
    let house = number / all;
    let key = if house == 0 { format!("{kind} {thing}") } else { format!("{kind} {thing} of house {house}") };
    let mixed = ((trial as u64) << 32 | number as u64).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let code = (1000 + (mixed >> 33) % 9000).to_string();
    RetrievalFact { sentence: format!("The code of the {key} is {code}."), key, code }
}

/// Whether an answer has the code in it, and not as a part of a longer number.
pub fn found(answer: &str, expected: &str) -> bool {
    answer.split(|c: char| !c.is_ascii_digit()).any(|number| number == expected)
}

/// What share of the facts a model found, by length and depth.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Retrieval {
    /// What the fact was hidden among: `facts` or the name of a text.
    pub haystack: String,
    /// Prompts per length and depth.
    pub trials: usize,
    /// All prompts together.
    pub found: Estimate,
    /// By length and depth.
    pub cells: Vec<RetrievalCell>,
}

/// Prompts of one length, the fact at one depth.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RetrievalCell {
    /// Tokens that a prompt has at most.
    pub length: usize,
    /// Tokens that it has, on average.
    pub tokens: f64,
    /// Where the fact stands, from 0 to 1.
    pub depth: f64,
    /// Share of the prompts whose answer has the code.
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
    fn a_prompt_is_as_long_as_it_may_be_and_the_same_every_time() {
        let case = RetrievalCase { length: 500, depth: 0.5, trial: 3 };
        let needle = hide(case, &Haystack::SimilarFacts).unwrap();
        // a fact has 8 words
        assert!((493..=500).contains(&needle.tokens.len()), "{}", needle.tokens.len());
        assert_eq!(hide(case, &Haystack::SimilarFacts).unwrap(), needle);
        assert_ne!(
            hide(RetrievalCase { trial: 4, ..case }, &Haystack::SimilarFacts).unwrap().expected,
            needle.expected
        );
        assert!(hide(RetrievalCase { length: 5, ..case }, &Haystack::SimilarFacts).is_none());
    }

    #[test]
    fn the_fact_stands_at_its_depth_and_no_other_has_its_key() {
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
    fn sentences_of_a_text_are_used_again_where_it_is_short() {
        let haystack = Haystack::of_text("One fox ran.  It was\nwarm! Why?").unwrap();
        let Haystack::Sentences(sentences) = &haystack else { panic!("a text has sentences") };
        assert_eq!(sentences, &["One fox ran.", "It was warm!", "Why?"]);
        assert!(hide(RetrievalCase { length: 100, depth: 0.3, trial: 0 }, &haystack).unwrap().sentences > 20);
        assert_eq!(Haystack::of_text(" \n"), None);
    }

    #[test]
    fn a_code_counts_as_a_whole_number_only() {
        assert!(found("The code is 4912.", "4912") && found("4912", "4912"));
        assert!(!found("14912 or 49120", "4912") && !found("", "4912"));
    }
}
