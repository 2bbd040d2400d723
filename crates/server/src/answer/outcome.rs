//! Complete answers, collected from updates.

use latent_text::CallEnding;

use super::{AnswerDelta, AnswerEvent, AnswerFinish, TokenUpdate};

/// A tool call.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct AnswerCall {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) arguments: String,
    /// Whether the call was closed in the model's format.
    pub(crate) complete: bool,
}

/// A complete answer.
#[derive(Clone, Debug, Default)]
pub(crate) struct AnswerOutcome {
    pub(crate) reasoning: String,
    pub(crate) content: String,
    pub(crate) calls: Vec<AnswerCall>,
    pub(crate) tokens: Vec<TokenUpdate>,
    pub(crate) finish: AnswerFinish,
}

impl AnswerOutcome {
    pub(crate) fn add(&mut self, what: AnswerEvent) {
        match what {
            AnswerEvent::Delta(piece) => self.add_piece(piece),
            AnswerEvent::Token(token) => self.tokens.push(token),
            AnswerEvent::Finished(finish) => self.finish = *finish,
            AnswerEvent::Started { .. } | AnswerEvent::Prompt { .. } => {}
        }
    }

    fn add_piece(&mut self, piece: AnswerDelta) {
        match piece {
            AnswerDelta::Reasoning(text) => self.reasoning.push_str(&text),
            AnswerDelta::Content(text) => self.content.push_str(&text),
            AnswerDelta::CallStart { index, id, name } => {
                if self.calls.len() <= index {
                    self.calls.resize_with(index + 1, AnswerCall::default);
                }
                self.calls[index] = AnswerCall { id, name, ..AnswerCall::default() };
            }
            AnswerDelta::CallArguments { index, delta } => {
                if let Some(call) = self.calls.get_mut(index) {
                    call.arguments.push_str(&delta);
                }
            }
            AnswerDelta::CallEnd { index, ending } => {
                if let Some(call) = self.calls.get_mut(index) {
                    call.complete = ending == CallEnding::Complete;
                }
            }
        }
    }
}
