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
    /// As the driver has compiled it, as far as the driver says: instructions in its text,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instructions: Option<u64>,
    /// registers of a thread,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub registers: Option<u64>,
    /// registers that were moved to memory,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spilled: Option<u64>,
    /// cycles of a subgroup, as the driver estimates them,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cycles: Option<u64>,
    /// and subgroups that a processor holds at a time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subgroups: Option<u64>,
}
