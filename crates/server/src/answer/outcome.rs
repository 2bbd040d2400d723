//! What an answer has come to.

use latent_text::CallEnding;

use super::{Finish, Piece, Token, What};

/// A tool call.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Call {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) arguments: String,
    /// Whether the model has written all of it, in its own form.
    pub(crate) complete: bool,
}

/// A whole answer.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) reasoning: String,
    pub(crate) content: String,
    pub(crate) calls: Vec<Call>,
    pub(crate) tokens: Vec<Token>,
    pub(crate) finish: Finish,
}

impl Outcome {
    /// Adds an update.
    pub(crate) fn add(&mut self, what: What) {
        match what {
            What::Piece(piece) => self.add_piece(piece),
            What::Token(token) => self.tokens.push(token),
            What::Finished(finish) => self.finish = *finish,
            What::Started { .. } | What::Prompt { .. } => {}
        }
    }

    fn add_piece(&mut self, piece: Piece) {
        match piece {
            Piece::Reasoning(text) => self.reasoning.push_str(&text),
            Piece::Content(text) => self.content.push_str(&text),
            Piece::CallStart { index, id, name } => {
                if self.calls.len() <= index {
                    self.calls.resize_with(index + 1, Call::default);
                }
                self.calls[index] = Call { id, name, ..Call::default() };
            }
            Piece::CallArguments { index, delta } => {
                if let Some(call) = self.calls.get_mut(index) {
                    call.arguments.push_str(&delta);
                }
            }
            Piece::CallEnd { index, ending } => {
                if let Some(call) = self.calls.get_mut(index) {
                    call.complete = ending == CallEnding::Complete;
                }
            }
        }
    }
}
