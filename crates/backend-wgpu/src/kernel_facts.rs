//! Properties of workgroups, read from a shader's text.

use latent_backend::{BankConflicts, CompiledKernel};

/// Threads and memory of a workgroup.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct KernelFacts {
    pub(crate) threads: u32,
    /// Bytes of workgroup memory.
    pub(crate) memory: u32,
    /// Bank conflicts of accesses to workgroup memory.
    pub(crate) conflicts: BankConflicts,
    /// Statistics from the driver, if they were requested.
    pub(crate) compiled: CompiledKernel,
}

/// The properties of a text. Zeros in a page, where the browser compiles shaders.
#[cfg(not(target_family = "wasm"))]
pub(crate) fn kernel_facts(text: &str) -> KernelFacts {
    use wgpu::naga::{AddressSpace, front::wgsl, proc::Layouter};
    let Ok(module) = wgsl::parse_str(text) else { return KernelFacts::default() };
    let mut layouter = Layouter::default();
    if layouter.update(module.to_ctx()).is_err() {
        return KernelFacts::default();
    }
    let shared = module.global_variables.iter().filter(|(_, v)| v.space == AddressSpace::WorkGroup);
    KernelFacts {
        threads: module.entry_points.first().map_or(0, |main| main.workgroup_size.iter().product()),
        memory: shared.map(|(_, variable)| layouter[variable.ty].size).sum(),
        conflicts: crate::bank_conflicts::bank_conflicts(&module),
        compiled: CompiledKernel::default(),
    }
}

#[cfg(target_family = "wasm")]
pub(crate) fn kernel_facts(_text: &str) -> KernelFacts {
    KernelFacts::default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workgroup_size_and_memory_are_read_from_the_text() {
        let text = "const N: u32 = 32u;
var<workgroup> a: array<f32, N * 4u>;
var<workgroup> b: array<vec4<f32>, N>;
@compute @workgroup_size(N, 2) fn main() { a[0] = b[1].x; }";
        let conflicts = BankConflicts { accesses: 2, conflicting: 0, worst: 1 };
        let compiled = CompiledKernel::default();
        assert_eq!(kernel_facts(text), KernelFacts { threads: 64, memory: 512 + 512, conflicts, compiled });
        assert_eq!(kernel_facts("no shader"), KernelFacts::default());
    }
}
