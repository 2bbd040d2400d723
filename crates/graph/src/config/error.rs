//! Errors of a model file's configuration.

use super::families::lacks;

/// A model file that cannot be described by a [`ModelConfig`](super::ModelConfig).
///
/// Every message names the file, the key or tensor, what was found and what was expected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    #[error("{file}: architecture {architecture:?} is not supported{}; supported: {}", lacks(architecture), known.join(", "))]
    Unsupported {
        file: String,
        architecture: String,
        /// The supported architectures, by their names in this kind of file.
        known: Vec<String>,
    },
    /// A required key or tensor is missing.
    #[error("{file}: {what} is missing: {hint}")]
    Missing { file: String, what: String, hint: String },
    #[error("{file}: {what} is {value}, expected {expected}")]
    NotComputed { file: String, what: String, value: String, expected: String },
    /// A key has an impossible value, or two places of the file contradict each other.
    #[error("{file}: {what} is {value}, expected {expected}")]
    Wrong {
        file: String,
        /// `key NAME` or `shape of tensor NAME`.
        what: String,
        value: String,
        /// What it should say, and why.
        expected: String,
    },
}

impl ConfigError {
    /// Whether the file may be intact, but of a model that Latent does not support. Exit codes
    /// depend on it.
    pub fn is_unsupported(&self) -> bool {
        matches!(self, ConfigError::Unsupported { .. } | ConfigError::NotComputed { .. })
    }
}

/// A model that a kind of file has no keys for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{file} cannot hold this model: {what}")]
pub struct InexpressibleModel {
    pub file: String,
    /// The hyper-parameter without a key.
    pub what: String,
}
