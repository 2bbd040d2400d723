//! Options of the response parser.

#[derive(Clone, Debug)]
pub struct ParserOptions {
    /// The prompt has already opened the reasoning. Callers that use
    /// [`ResponseParser::continue_prompt`](super::ResponseParser::continue_prompt) need not set it.
    pub starts_in_reasoning: bool,
    /// Whether to separate reasoning. If not, reasoning and its markers are content.
    pub parse_reasoning: bool,
    /// Whether to separate tool calls. If not, they and their markers are content.
    pub parse_tools: bool,
    /// Texts of the vocabulary's control tokens, such as `<think>`. A marker of the format that
    /// contains one is recognized only if its bytes were pushed as `special`, not if they are plain
    /// text. If empty, markers are recognized by their text.
    pub control_tokens: Vec<String>,
    /// Ids of calls are derived from this and the call's index, unless the model writes ids.
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
