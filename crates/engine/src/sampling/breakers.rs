//! Sequence breakers of DRY: token sequences that end its search for a repetition.

use latent_text::{EncodeOptions, Tokenizer};

/// The default sequence breakers of DRY: ends of lines and clauses.
pub const DEFAULT_BREAKERS: [&str; 4] = ["\n", ":", "\"", "*"];

/// Maximum number of tokens after the first token of a breaker, which bounds the time per token.
const MAX_TAIL: usize = 20;

/// Token sequences that break repetitions, sorted by their first token.
#[derive(Clone, Debug, Default)]
pub(super) struct Breakers(Vec<(u32, Vec<u32>)>);

impl Breakers {
    /// Breakers of one token each.
    pub(super) fn of_tokens(tokens: Vec<u32>) -> Breakers {
        Breakers::sorted(tokens.into_iter().map(|token| (token, Vec::new())).collect())
    }

    /// The token sequences that spell a breaker, which may begin and end within tokens. `None`: the
    /// default breakers and all control tokens.
    pub(super) fn of_texts(tokenizer: &Tokenizer, vocab: usize, texts: Option<&[String]>) -> Breakers {
        let own: Vec<&str> = match texts {
            Some(texts) => texts.iter().map(String::as_str).filter(|text| !text.is_empty()).collect(),
            None => DEFAULT_BREAKERS.to_vec(),
        };
        // First bytes of breakers. The test rejects nearly every position of nearly every token, of
        // which a vocabulary has more than 100,000.
        let mut begins = [false; 256];
        own.iter().filter_map(|text| text.bytes().next()).for_each(|byte| begins[usize::from(byte)] = true);
        let mut found = Vec::new();
        // Logits may be padded beyond the tokenizer's vocabulary. Such tokens have no text.
        for id in 0..vocab.min(tokenizer.vocab_size()) as u32 {
            if texts.is_none() && tokenizer.is_control(id) {
                found.push((id, Vec::new()));
                continue;
            }
            let piece = tokenizer.piece(id).unwrap_or_default();
            for at in (0..piece.len()).filter(|at| begins[usize::from(piece[*at])]) {
                for text in &own {
                    found.extend(begin_of(tokenizer, &piece[at..], text).map(|tail| (id, tail)));
                }
            }
        }
        Breakers::sorted(found)
    }

    /// Breakers from pairs of a first token and the tokens after it.
    pub(super) fn sorted(mut list: Vec<(u32, Vec<u32>)>) -> Breakers {
        list.sort_unstable();
        list.dedup();
        Breakers(list)
    }

    /// The tokens after `token` in each breaker that begins with it.
    fn tails(&self, token: u32) -> impl Iterator<Item = &[u32]> {
        let first = self.0.partition_point(|(head, _)| *head < token);
        self.0[first..].iter().take_while(move |(head, _)| *head == token).map(|(_, tail)| tail.as_slice())
    }

    /// Whether the token alone is a breaker.
    pub(super) fn is_breaker(&self, token: u32) -> bool {
        self.tails(token).any(<[u32]>::is_empty)
    }

    /// The number of tokens after the last breaker in a text, or of all tokens without a breaker.
    pub(super) fn tokens_after_last(&self, seen: &[u32]) -> usize {
        for (at, token) in seen.iter().enumerate().rev() {
            let after = &seen[at + 1..];
            let longest = self.tails(*token).filter(|tail| after.starts_with(tail)).map(<[u32]>::len).max();
            if let Some(longest) = longest {
                return after.len() - longest;
            }
        }
        seen.len()
    }
}

/// The tokens that complete `text` after a token that ends with `rest`. Empty if `rest` contains
/// all of `text`; `None` if `text` does not begin with `rest`.
fn begin_of(tokenizer: &Tokenizer, rest: &[u8], text: &str) -> Option<Vec<u32>> {
    if rest.starts_with(text.as_bytes()) {
        return Some(Vec::new());
    }
    let missing = text.as_bytes().strip_prefix(rest)?;
    // If the token ends within a character, the rest is not UTF-8 and cannot be encoded.
    let missing = std::str::from_utf8(missing).ok()?;
    let how = EncodeOptions { add_special: false, parse_special: false };
    let mut tail = tokenizer.encode(missing, how).ok()?;
    tail.truncate(MAX_TAIL);
    Some(tail)
}
