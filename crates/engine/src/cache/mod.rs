//! The KV cache: which blocks belong to which sequence. Where rows are stored is the backend's business (`latent_backend::KvStore`).

mod block_hash;
mod block_pool;
mod file;
mod full;
mod kv_cache;
mod sequence;

pub use block_hash::{BlockHash, block_hashes};
pub use file::{CacheFileError, MAX_ATTACHMENT, Restored};
pub use full::CacheFull;
pub use kv_cache::KvCache;
pub(crate) use kv_cache::KvError;
pub use sequence::Sequence;
