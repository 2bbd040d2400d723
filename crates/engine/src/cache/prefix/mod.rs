//! The prefix cache: blocks that later sequences with the same beginning reuse, in memory and on
//! disk.

mod changes;
mod disk;
mod index;
mod node;
mod salt;
mod stats;

pub use changes::PrefixChange;
pub(crate) use disk::Disk;
pub use disk::whole_blocks as whole_prefix_blocks;
pub(crate) use index::PrefixIndex;
pub use salt::CacheSalt;
pub use stats::{DiskCache, DiskStats, PrefixStats};
