//! Limits on the work and memory of a template.

/// Limits on parsing and rendering. Reaching one ends in an [`ErrorKind::Limit`](crate::ErrorKind::Limit) error.
///
/// The defaults keep any template below 256 MB of memory, two seconds of processor time and one megabyte of stack, and are
/// several times what published templates need for a conversation of a million tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TemplateLimits {
    /// Bytes of the template's source.
    pub source: usize,
    /// Nested calls of the parser; brackets and nested statements take a few each.
    pub parse_depth: u32,
    /// Units of work. An operation pays one unit, and one more per element or per eight bytes that it touches.
    pub fuel: u64,
    /// Bytes that values, captured texts and the output may occupy at one time.
    pub memory: usize,
    /// Bytes of the output.
    pub output: usize,
    /// Nested calls of the evaluator; an expression, a body of statements and a macro call take one each.
    pub eval_depth: u32,
    /// Levels of lists and dictionaries inside each other.
    pub value_depth: u16,
}

impl TemplateLimits {
    pub const DEFAULT: TemplateLimits = TemplateLimits {
        source: 128 << 10,
        parse_depth: 200,
        fuel: 20_000_000,
        memory: 96 << 20,
        output: 16 << 20,
        eval_depth: 200,
        value_depth: 128,
    };
}

impl Default for TemplateLimits {
    fn default() -> TemplateLimits {
        TemplateLimits::DEFAULT
    }
}
