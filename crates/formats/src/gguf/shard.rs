//! Names of the files of a set.

/// The name of shard `number` (from 0) of `count`: `NAME-00001-of-00003.gguf`.
pub fn shard_name(stem: &str, number: usize, count: usize) -> String {
    format!("{stem}-{:05}-of-{count:05}.gguf", number + 1)
}
