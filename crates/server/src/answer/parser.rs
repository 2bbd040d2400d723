//! Parsing of a model's output into reasoning, content and tool calls.

use latent_text::{CallEnding, ResponseEvent, ResponseParser};

/// An increment of an answer.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum AnswerDelta {
    Reasoning(String),
    Content(String),
    CallStart { index: usize, id: String, name: String },
    CallArguments { index: usize, delta: String },
    CallEnd { index: usize, ending: CallEnding },
}

/// An incremental parser of one answer.
pub(crate) enum Parser {
    /// All text is content. Control tokens are dropped.
    Raw,
    /// A response in the model's format.
    Chat { parser: Box<ResponseParser>, events: Vec<ResponseEvent> },
}

impl Parser {
    pub(crate) fn chat(parser: ResponseParser) -> Parser {
        Parser::Chat { parser: Box::new(parser), events: Vec::new() }
    }

    /// Parses the text of ordinary tokens.
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

    /// Parses the name of a control token.
    pub(crate) fn push_control(&mut self, name: &str, pieces: &mut Vec<AnswerDelta>) {
        if let Parser::Chat { parser, events } = self {
            parser.push(name, true, events);
            pieces.extend(events.drain(..).filter_map(piece));
        }
    }

    /// Parses the end of the output. `cut`: a limit ended it, so a marker may be incomplete.
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

    /// Whether the next text is reasoning.
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
        // Fields that only a checkpoint's own response template defines. No API has a place for
        // them.
        _ => return None,
    })
}
