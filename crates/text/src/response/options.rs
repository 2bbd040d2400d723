//! Options of the response parser.

/// How to parse.
#[derive(Clone, Debug)]
pub struct ParserOptions {
    /// The prompt has already opened the reasoning. [`ResponseParser::continue_prompt`](super::ResponseParser::continue_prompt) finds that out by itself.
    pub starts_in_reasoning: bool,
    /// Otherwise reasoning and its markers are content.
    pub parse_reasoning: bool,
    /// Otherwise tool calls and their markers are content.
    pub parse_tools: bool,
    /// Texts of the vocabulary's control tokens, such as `<think>`. A marker of the format that
    /// contains one is recognized only if its bytes were pushed as `special`, not if they are plain
    /// text. If empty, markers are recognized by their text.
    pub control_tokens: Vec<String>,
    /// Of this and the call's index, ids are made for formats without ids of their own.
    pub id_seed: u64,
}

impl Default for ParserOptions {
    fn default() -> ParserOptions {
        ParserOptions {
            starts_in_reasoning: false,
            parse_reasoning: true,
            parse_tools: true,
            control_tokens: Vec::new(),
            id_seed: 0,
        }
    }
}
