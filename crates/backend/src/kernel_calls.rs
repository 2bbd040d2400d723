//! What operations become on a device.

use serde::Serialize;

/// Calls of one kernel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct KernelCalls {
    /// Its name.
    pub kernel: String,
    /// How many.
    pub calls: usize,
    /// Workgroups of all of them.
    pub workgroups: u64,
    /// Threads of a workgroup.
    pub threads: u32,
    /// Bytes of memory that the threads of a workgroup share.
    pub memory: u32,
    /// How evenly its threads spread over the banks of that memory.
    pub conflicts: BankConflicts,
}

/// Accesses of a kernel to workgroup memory, of 32 threads to 32 banks of 4 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct BankConflicts {
    /// Loads and stores in its text, of each call of a function.
    pub accesses: usize,
    /// Those with more than one address in a bank.
    pub conflicting: usize,
    /// Most addresses of one access in one bank, which are served one after the other: 1 without conflicts, 0 without accesses.
    pub worst: usize,
}

/// What a node of a plan becomes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NodeCalls {
    /// Its stage.
    pub stage: usize,
    /// Its index in the stage's plan.
    pub node: usize,
    /// Its kernels, in the order of their first calls.
    pub kernels: Vec<KernelCalls>,
}
