//! Kernel calls of operations on a device.

use serde::Serialize;

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct KernelCalls {
    /// Name of the kernel.
    pub kernel: String,
    /// Number of calls.
    pub calls: usize,
    pub workgroups: u64,
    /// Threads per workgroup.
    pub threads: u32,
    /// Bytes of workgroup memory (shared memory).
    pub memory: u32,
    /// Bank conflicts in that memory.
    #[serde(flatten)]
    pub conflicts: BankConflicts,
    /// Statistics of the driver's compiler.
    #[serde(flatten)]
    pub compiled: CompiledKernel,
}

/// Statistics of a compiled kernel, as far as the driver reports them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CompiledKernel {
    /// Static instruction count.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instructions: Option<u64>,
    /// Registers per thread.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub registers: Option<u64>,
    /// Registers spilled to memory (NVIDIA: bytes of local memory per thread).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spilled: Option<u64>,
    /// The driver's estimate of cycles per subgroup, which assumes some iteration count for each
    /// loop.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cycles: Option<u64>,
    /// Resident subgroups per processor, limited by registers and workgroup memory (occupancy).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subgroups: Option<u64>,
}

/// Accesses of a kernel to workgroup memory, by 32 threads to 32 banks of 4 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct BankConflicts {
    /// Static loads and stores, counted per call of a function.
    pub accesses: usize,
    /// Accesses with more than one address in a bank.
    pub conflicting: usize,
    /// Maximum addresses of one access in one bank, which are served serially. 1 without conflicts,
    /// 0 without accesses.
    #[serde(rename = "worst_conflict")]
    pub worst: usize,
}

/// The kernel calls of one node of a plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NodeCalls {
    pub stage: usize,
    /// Index of the node in the stage's plan.
    pub node: usize,
    /// Its kernels, in the order of their first calls.
    pub kernels: Vec<KernelCalls>,
}
