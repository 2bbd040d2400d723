//! The limit on reasoning tokens.

/// A limit on reasoning tokens.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ReasoningLimit {
    /// Maximum number of tokens of reasoning.
    pub tokens: usize,
    /// Text that is written before the marker that ends the reasoning.
    pub message: String,
}
