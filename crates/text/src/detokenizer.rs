//! Streaming detokenizer: from tokens to whole characters.

use crate::tokenizer::Tokenizer;
use std::ops::Deref;

/// Turns tokens into text one by one. A character whose bytes span several tokens is returned with
/// its last token. Invalid bytes become U+FFFD.
///
/// It borrows a tokenizer (`&Tokenizer`) or shares one (`Arc<Tokenizer>`). With an `Arc` it can
/// move to another thread.
pub struct Detokenizer<T> {
    tokenizer: T,
    special: bool,
    pending: Vec<u8>,
    first: bool,
}

impl<T: Deref<Target = Tokenizer>> Detokenizer<T> {
    /// A stream. Control tokens are omitted unless `special`.
    pub fn new(tokenizer: T, special: bool) -> Detokenizer<T> {
        Detokenizer { tokenizer, special, pending: Vec::new(), first: true }
    }

    /// The characters that this token completes.
    pub fn push(&mut self, id: u32) -> String {
        if self.tokenizer.is_control(id) && !self.special {
            return String::new();
        }
        let mut piece = self.tokenizer.piece(id).unwrap_or_default();
        // Encoding prepended this space.
        if self.first && self.tokenizer.space_prefix() {
            piece = piece.strip_prefix(b" ").unwrap_or(piece);
        }
        self.first = false;
        self.pending.extend_from_slice(piece);
        self.take(false)
    }

    /// The remaining text at the end: an incomplete character becomes U+FFFD.
    pub fn finish(&mut self) -> String {
        self.take(true)
    }

    fn take(&mut self, end: bool) -> String {
        let mut text = String::new();
        let mut rest = &self.pending[..];
        loop {
            match std::str::from_utf8(rest) {
                Ok(valid) => {
                    text.push_str(valid);
                    rest = &[];
                    break;
                }
                Err(error) => {
                    let (valid, after) = rest.split_at(error.valid_up_to());
                    text.push_str(&String::from_utf8_lossy(valid));
                    match error.error_len() {
                        Some(len) => {
                            text.push(char::REPLACEMENT_CHARACTER);
                            rest = &after[len..];
                        }
                        // An incomplete character. The next token may complete it.
                        None if !end => {
                            rest = after;
                            break;
                        }
                        None => {
                            text.push(char::REPLACEMENT_CHARACTER);
                            rest = &[];
                            break;
                        }
                    }
                }
            }
        }
        // At most three bytes: the beginning of one character.
        self.pending = rest.to_vec();
        text
    }
}

impl Tokenizer {
    /// The text of tokens. Invalid UTF-8 becomes U+FFFD. Control tokens are omitted unless
    /// `special`.
    pub fn decode(&self, ids: &[u32], special: bool) -> String {
        let mut stream = Detokenizer::new(self, special);
        let mut text = String::new();
        for id in ids {
            text.push_str(&stream.push(*id));
        }
        text + &stream.finish()
    }
}
