//! The KV cache: bookkeeping of the blocks and recurrent states of sequences. A backend stores the
//! rows and states themselves (`latent_backend::KvStore`).

mod block_hash;
mod block_pool;
mod checked;
mod draft_rows;
mod file;
mod full;
mod kv_cache;
mod prefix;
mod recurrent;
mod sequence;
mod state_options;
mod state_pool;

pub(crate) use block_hash::HashChain;
pub use block_hash::{BlockHash, block_hashes, block_hashes_of};
pub use file::{CacheFileError, MAX_ATTACHMENT};
pub(crate) use file::{FileOwner, RestoredSequence, SavedLayers};
pub use full::{CacheFull, StatesFull};
pub use kv_cache::KvCache;
pub(crate) use kv_cache::KvError;
pub use prefix::{CacheSalt, DiskCache, DiskStats, PrefixChange, PrefixStats, whole_prefix_blocks};
pub(crate) use prefix::{Disk, PrefixIndex};
pub use sequence::Sequence;
pub use state_options::StateOptions;
