//! Calls on a device, as they are counted.

use serde::Serialize;

/// Calls of one shader.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CountedCall {
    /// Its name.
    pub shader: String,
    /// How many calls.
    pub calls: usize,
    /// Workgroups of all of them.
    pub workgroups: u64,
    /// Threads of a workgroup.
    pub threads: u32,
    /// Bytes of workgroup memory.
    pub memory: u32,
    /// Loads from workgroup memory and stores to it, in its text.
    pub accesses: usize,
    /// Those with more than one address in a bank.
    pub conflicting: usize,
    /// Most addresses of one access in one bank: 1 without conflicts.
    pub worst_conflict: usize,
}
