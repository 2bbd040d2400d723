//! Errors of decoding and encoding.

use latent_types::TensorType;

/// A request that cannot be met.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum QuantError {
    /// The type holds no weights, or its bits are not known.
    #[error("{0} cannot be decoded to numbers")]
    NotDecodable(TensorType),
    #[error("{0} cannot be encoded; supported types: {list}", list = crate::encodable().map(TensorType::name).collect::<Vec<_>>().join(", "))]
    NotEncodable(TensorType),
    #[error("{numbers} numbers of {ty} do not take {bytes} bytes")]
    Length { ty: TensorType, bytes: usize, numbers: usize },
    #[error("{importance} importances for {numbers} numbers; the numbers must be equal")]
    Importance { importance: usize, numbers: usize },
}
