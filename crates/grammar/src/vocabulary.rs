//! A tokenizer's tokens as a trie of bytes.

use crate::error::GrammarError;
use latent_text::Tokenizer;
use llguidance::toktrie::{SimpleVob, TokRxInfo, TokTrie, TokenId, TokenizerEnv};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Longest token in bytes; the trie holds no deeper ones. A longer token is never chosen in a constrained output.
const MAX_TOKEN_BYTES: usize = 1000;

/// Most tokens that the trie can hold.
const MAX_TOKENS: usize = 1 << 22;

/// The trie of a vocabulary, and its control tokens by name.
pub(crate) struct VocabularyTrie {
    trie: TokTrie,
    /// Control tokens: their names, the longest first, and ids.
    controls: Vec<(Box<str>, u32)>,
}

/// A piece of a marker such as `<|tool_call_begin|>functions.`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum MarkerPiece<'a> {
    Text(&'a str),
    Control(u32),
}

impl VocabularyTrie {
    pub(crate) fn new(tokenizer: &Tokenizer) -> Result<VocabularyTrie, GrammarError> {
        let size = tokenizer.vocab_size();
        if size > MAX_TOKENS {
            let problem = format!("it has {size} tokens, more than {MAX_TOKENS}");
            return Err(GrammarError::Vocabulary(problem));
        }
        let ends = tokenizer.end_of_generation();
        let Some(end) = ends.first() else {
            let problem = "it has no token that ends generation, which the end of a grammar needs";
            return Err(GrammarError::Vocabulary(problem.into()));
        };
        let ids = 0..size as u32;
        let words: Vec<Vec<u8>> = ids.clone().map(|id| word(tokenizer, id)).collect();
        let info = TokRxInfo::new(size as u32, *end);
        let build = || TokTrie::from(&info, &words).with_eos_tokens(ends);
        let trie = catch_unwind(AssertUnwindSafe(build)).map_err(|_| {
            GrammarError::Vocabulary("its tokens make no trie; please report this".to_owned())
        })?;
        let name = |id| tokenizer.token_text(id).filter(|text| tokenizer.is_control(id) && !text.is_empty());
        let mut controls: Vec<(Box<str>, u32)> = ids.filter_map(|id| Some((name(id)?.into(), id))).collect();
        controls.sort_by_key(|(name, id)| (std::cmp::Reverse(name.len()), *id));
        Ok(VocabularyTrie { trie, controls })
    }

    /// Cuts a marker at the names of control tokens in it, which stand for these tokens; the rest is text.
    pub(crate) fn pieces<'a>(&self, marker: &'a str) -> Vec<MarkerPiece<'a>> {
        let mut pieces = Vec::new();
        let mut rest = marker;
        while let Some((at, name, id)) = self.first_control(rest) {
            if at > 0 {
                pieces.push(MarkerPiece::Text(&rest[..at]));
            }
            pieces.push(MarkerPiece::Control(id));
            rest = &rest[at + name.len()..];
        }
        if !rest.is_empty() {
            pieces.push(MarkerPiece::Text(rest));
        }
        pieces
    }

    /// The name of a control token.
    pub(crate) fn name(&self, id: u32) -> &str {
        self.controls.iter().find(|(_, of)| *of == id).map_or("", |(name, _)| name)
    }

    pub(crate) fn trie(&self) -> &TokTrie {
        &self.trie
    }

    /// Allows all tokens that end generation.
    pub(crate) fn allow_ends(&self, mask: &mut SimpleVob) {
        self.trie.eos_tokens().iter().for_each(|end| mask.allow_token(*end));
    }

    /// The first control token in a text, the longest of those that begin there.
    fn first_control(&self, text: &str) -> Option<(usize, &str, u32)> {
        let found = self.controls.iter().filter_map(|(name, id)| Some((text.find(&**name)?, &**name, *id)));
        // ties go to the longest, which comes first
        found.min_by_key(|(at, ..)| *at)
    }
}

/// The bytes of a token in the trie: control tokens are marked, so that no text can be taken for one. Empty where no output may hold it.
fn word(tokenizer: &Tokenizer, id: u32) -> Vec<u8> {
    let piece = tokenizer.piece(id).unwrap_or_default();
    if tokenizer.is_control(id) {
        // of any length: control tokens are found by id
        let mut word = vec![TokTrie::SPECIAL_TOKEN_MARKER];
        word.extend_from_slice(&piece[..piece.len().min(MAX_TOKEN_BYTES)]);
        return word;
    }
    // no text holds this byte, but the trie would take it for the mark
    let marked = piece.first() == Some(&TokTrie::SPECIAL_TOKEN_MARKER);
    if piece.len() > MAX_TOKEN_BYTES || marked { Vec::new() } else { piece.to_vec() }
}

impl TokenizerEnv for VocabularyTrie {
    fn tok_trie(&self) -> &TokTrie {
        &self.trie
    }

    fn tokenize_bytes(&self, bytes: &[u8]) -> Vec<TokenId> {
        self.trie.greedy_tokenize(bytes)
    }

    /// Masks hold every way to cut an output into tokens; the model chooses the usual one by itself.
    fn tokenize_is_canonical(&self) -> bool {
        false
    }
}
