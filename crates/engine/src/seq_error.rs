//! Errors of one sequence of a step.

use crate::cache::{CacheFull, StatesFull};

/// Why one sequence cannot take part in a step. The other sequences run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages name the fields")]
pub enum SeqError {
    /// The input is empty.
    #[error("the input has neither new tokens nor embeddings")]
    NoRows,
    /// A token id outside the vocabulary.
    #[error("token id {token} at position {position} is out of range: the vocabulary has {vocab} tokens")]
    Token { token: u32, position: usize, vocab: usize },
    /// Embeddings whose rows do not have the model's hidden size.
    #[error(
        "{elements} elements of embeddings in rows of {width} do not match the model's hidden size ({hidden})"
    )]
    EmbeddingWidth { elements: usize, width: usize, hidden: usize },
    /// An embedding with an element that is not finite.
    #[error("element {element} of the embedding at position {position} is not finite")]
    EmbeddingNotFinite { position: usize, element: usize },
    /// Logits of a row that does not exist.
    #[error("logits of row {row} were requested, but the input has {rows} rows")]
    Wanted { row: usize, rows: usize },
    /// The MTP layer has not run all rows of the sequence, and cannot run them any more.
    #[error(
        "cannot draft after the {rows} rows of this sequence: some were restored, are embeddings, or ran \
         without drafts; run them again"
    )]
    NoDraft { rows: usize },
    /// The rows of the sequence are not those of the tokens that its answer has run.
    #[error(
        "the sequence has {rows} rows, but its answer has run {ran} tokens, which differ from position \
         {position} on: use the same sequence in every step of an answer"
    )]
    OtherTokens { position: usize, rows: usize, ran: usize },
    /// Another engine has run the sequence.
    #[error("this sequence belongs to another engine, which has its cache: use it with that engine")]
    Foreign,
    /// The KV cache has no room for the sequence.
    #[error(transparent)]
    CacheFull(#[from] CacheFull),
    /// No slot of recurrent state is free for the sequence.
    #[error(transparent)]
    StatesFull(#[from] StatesFull),
}
