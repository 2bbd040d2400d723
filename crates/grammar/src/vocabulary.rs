//! Byte trie of a tokenizer's tokens.

use crate::error::GrammarError;
use latent_text::Tokenizer;
use llguidance::toktrie::{TokRxInfo, TokTrie, TokenId, TokenizerEnv};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Maximum length of a token in the trie, in bytes. A longer token is never sampled in constrained
/// output.
const MAX_TOKEN_BYTES: usize = 1000;

/// Maximum number of tokens that llguidance's trie can hold.
const MAX_TOKENS: usize = 1 << 22;

/// Trie of a vocabulary, and its control tokens by name.
pub(crate) struct VocabularyTrie {
    trie: TokTrie,
    /// Names and ids of control tokens, longest name first.
    controls: Vec<(Box<str>, u32)>,
}

/// A piece of a marker such as `<|tool_call_begin|>functions.`: text, or a control token.
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
            let problem = "it has no end-of-generation token, which grammars need";
            return Err(GrammarError::Vocabulary(problem.into()));
        };
        let ids = 0..size as u32;
        let words: Vec<Vec<u8>> = ids.clone().map(|id| word(tokenizer, id)).collect();
        let info = TokRxInfo::new(size as u32, *end);
        let build = || TokTrie::from(&info, &words).with_eos_tokens(ends);
        // As in `Grammars::new`: the library asserts preconditions instead of returning errors.
        let trie = catch_unwind(AssertUnwindSafe(build)).map_err(|_| {
            GrammarError::Vocabulary("no trie can be built from its tokens; please report this".to_owned())
        })?;
        // An empty name would be found at every position of a marker.
        let name = |id| tokenizer.token_text(id).filter(|text| tokenizer.is_control(id) && !text.is_empty());
        let mut controls: Vec<(Box<str>, u32)> = ids.filter_map(|id| Some((name(id)?.into(), id))).collect();
        controls.sort_by_key(|(name, id)| (std::cmp::Reverse(name.len()), *id));
        Ok(VocabularyTrie { trie, controls })
    }

    /// Splits a marker into control tokens, found by their names, and the text between them.
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

    /// Name of a control token, or "".
    pub(crate) fn name(&self, id: u32) -> &str {
        self.controls.iter().find(|(_, of)| *of == id).map_or("", |(name, _)| name)
    }

    pub(crate) fn trie(&self) -> &TokTrie {
        &self.trie
    }

    /// The first control token in a text. If several begin there, the longest.
    fn first_control(&self, text: &str) -> Option<(usize, &str, u32)> {
        let found = self.controls.iter().filter_map(|(name, id)| Some((text.find(&**name)?, &**name, *id)));
        // `min_by_key` returns the first minimum, and the list is sorted by descending length.
        found.min_by_key(|(at, ..)| *at)
    }
}

/// Bytes of a token in the trie. Control tokens begin with a marker byte, so that no text is
/// mistaken for one. Empty if no output may contain the token.
fn word(tokenizer: &Tokenizer, id: u32) -> Vec<u8> {
    let piece = tokenizer.piece(id).unwrap_or_default();
    if tokenizer.is_control(id) {
        // Truncating is safe: grammars name control tokens by id, not by their bytes.
        let mut word = vec![TokTrie::SPECIAL_TOKEN_MARKER];
        word.extend_from_slice(&piece[..piece.len().min(MAX_TOKEN_BYTES)]);
        return word;
    }
    // 0xff occurs in no UTF-8 text, but byte-level vocabularies have a token for it.
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

    /// Masks allow every tokenization of an output. The model itself prefers the usual one.
    fn tokenize_is_canonical(&self) -> bool {
        false
    }
}
