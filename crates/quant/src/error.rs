//! Errors of decoding and encoding.

use latent_types::TensorType;

/// An error of encoding or decoding.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum QuantError {
    /// The type is not a weight format, or its layout is unknown.
    #[error("{0} cannot be decoded to numbers")]
    NotDecodable(TensorType),
    #[error("{0} cannot be encoded; supported types: {list}", list = crate::encodable().map(TensorType::name).collect::<Vec<_>>().join(", "))]
    NotEncodable(TensorType),
    #[error("{numbers} numbers of {ty} do not match {bytes} bytes")]
    Length { ty: TensorType, bytes: usize, numbers: usize },
    #[error("{importance} importances for {numbers} numbers; the counts must be equal")]
    Importance { importance: usize, numbers: usize },
}
