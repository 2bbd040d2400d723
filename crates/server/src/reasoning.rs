//! The limit on reasoning.

/// How long a model may reason.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ReasoningLimit {
    /// Maximum number of tokens of reasoning.
    pub tokens: usize,
    /// Text that is written before the marker that ends the reasoning.
    pub message: String,
}
