//! Kernel calls of operations on a device.

use serde::Serialize;

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct KernelCalls {
    /// Its name.
    pub kernel: String,
    /// How many.
    pub calls: usize,
    pub workgroups: u64,
    /// Threads of a workgroup.
    pub threads: u32,
    /// Bytes of memory that the threads of a workgroup share.
    pub memory: u32,
    /// How evenly its threads spread over the banks of that memory.
    #[serde(flatten)]
    pub conflicts: BankConflicts,
    /// What the driver makes of it.
    #[serde(flatten)]
    pub compiled: CompiledKernel,
}

/// A kernel as a driver has compiled it, as far as the driver says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CompiledKernel {
    /// Instructions in its text, each counted once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instructions: Option<u64>,
    /// Registers of a thread.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub registers: Option<u64>,
    /// Registers that were moved to memory for lack of more (NVIDIA: bytes of memory of a thread).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spilled: Option<u64>,
    /// Cycles that its instructions take a processor for a subgroup, as the driver estimates them: with some number of turns for each loop.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cycles: Option<u64>,
    /// Subgroups that a processor holds at a time, by registers and workgroup memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subgroups: Option<u64>,
}

/// Accesses of a kernel to workgroup memory, of 32 threads to 32 banks of 4 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct BankConflicts {
    /// Loads and stores in its text, of each call of a function.
    pub accesses: usize,
    /// Those with more than one address in a bank.
    pub conflicting: usize,
    /// Most addresses of one access in one bank, which are served one after the other: 1 without conflicts, 0 without accesses.
    #[serde(rename = "worst_conflict")]
    pub worst: usize,
}

/// What a node of a plan becomes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NodeCalls {
    pub stage: usize,
    /// Its index in the stage's plan.
    pub node: usize,
    /// Its kernels, in the order of their first calls.
    pub kernels: Vec<KernelCalls>,
}
