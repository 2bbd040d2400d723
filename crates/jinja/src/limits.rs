//! Limits on the work and memory of a template.

/// Limits on parsing and rendering. Reaching one ends in an
/// [`ErrorKind::Limit`](crate::ErrorKind::Limit) error.
///
/// The defaults keep any template below 256 MB of memory, two seconds of processor time and one
/// megabyte of stack, and are several times what published templates need for a conversation of a
/// million tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TemplateLimits {
    /// Maximum size of the template's source, in bytes.
    pub source: usize,
    /// Maximum nesting of parser calls; a bracket or a nested statement takes a few.
    pub parse_depth: u32,
    /// Units of work. An operation costs one unit, plus one per element or per eight bytes touched.
    pub fuel: u64,
    /// Maximum memory of values, captured texts and the output, in bytes.
    pub memory: usize,
    /// Maximum size of the output, in bytes.
    pub output: usize,
    /// Maximum nesting of evaluator calls; an expression and a statement body take one each.
    pub eval_depth: u32,
    /// Maximum nesting of lists and dictionaries.
    pub value_depth: u16,
}

impl TemplateLimits {
    pub const DEFAULT: TemplateLimits = TemplateLimits {
        source: 128 << 10,
        // The depths must also suit debug builds, which have the largest frames. tests/hostile
        // renders on a thread with a stack of two megabytes.
        parse_depth: 200,
        fuel: 20_000_000,
        memory: 96 << 20,
        output: 16 << 20,
        eval_depth: 200,
        // Printing and dropping values recurse, so the nesting of values bounds the stack too.
        value_depth: 128,
    };
}

impl Default for TemplateLimits {
    fn default() -> TemplateLimits {
        TemplateLimits::DEFAULT
    }
}
