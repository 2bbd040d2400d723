//! From a model's output to what a client is told: reasoning, content, tool calls.

use latent_text::{CallEnding, ResponseEvent, ResponseParser};

/// A piece of an answer.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum AnswerDelta {
    Reasoning(String),
    Content(String),
    CallStart { index: usize, id: String, name: String },
    CallArguments { index: usize, delta: String },
    CallEnd { index: usize, ending: CallEnding },
}

/// Parses one answer, piece by piece.
pub(crate) enum Parser {
    /// The text as it is, without control tokens.
    Raw,
    /// A response in the model's format.
    Chat { parser: Box<ResponseParser>, events: Vec<ResponseEvent> },
}

impl Parser {
    pub(crate) fn chat(parser: ResponseParser) -> Parser {
        Parser::Chat { parser: Box::new(parser), events: Vec::new() }
    }

    /// Takes text of ordinary tokens.
    pub(crate) fn push(&mut self, text: &str, pieces: &mut Vec<AnswerDelta>) {
        match self {
            _ if text.is_empty() => {}
            Parser::Raw => pieces.push(AnswerDelta::Content(text.to_owned())),
            Parser::Chat { parser, events } => {
                parser.push(text, false, events);
                pieces.extend(events.drain(..).filter_map(piece));
            }
        }
    }

    /// Takes a control token.
    pub(crate) fn push_control(&mut self, name: &str, pieces: &mut Vec<AnswerDelta>) {
        if let Parser::Chat { parser, events } = self {
            parser.push(name, true, events);
            pieces.extend(events.drain(..).filter_map(piece));
        }
    }

    /// Takes the end of the output. `cut`: a limit ended the output.
    pub(crate) fn finish(&mut self, cut: bool, pieces: &mut Vec<AnswerDelta>) {
        if let Parser::Chat { parser, events } = self {
            if cut {
                parser.cut(events);
            } else {
                parser.finish(events);
            }
            pieces.extend(events.drain(..).filter_map(piece));
        }
    }

    /// Whether what comes next is reasoning.
    pub(crate) fn in_reasoning(&self) -> bool {
        matches!(self, Parser::Chat { parser, .. } if parser.in_reasoning())
    }
}

fn piece(event: ResponseEvent) -> Option<AnswerDelta> {
    Some(match event {
        ResponseEvent::Reasoning(text) => AnswerDelta::Reasoning(text),
        ResponseEvent::Content(text) => AnswerDelta::Content(text),
        ResponseEvent::ToolCallStart { index, id, name } => AnswerDelta::CallStart { index, id, name },
        ResponseEvent::ToolCallArguments { index, delta } => AnswerDelta::CallArguments { index, delta },
        ResponseEvent::ToolCallEnd { index, ending } => {
            if ending == CallEnding::Malformed {
                tracing::warn!("the model wrote a tool call that its format does not allow");
            }
            AnswerDelta::CallEnd { index, ending }
        }
        // what only one checkpoint's own template knows
        _ => return None,
    })
}
