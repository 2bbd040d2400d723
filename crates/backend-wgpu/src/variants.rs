//! Variants of product kernels: the optional device features that they use.

use crate::adapters::AdapterDescription;
use crate::coop_matrix::CoopMatrix;
use latent_graph::passes::Precision;
use std::fmt;

/// A set of kernel variants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KernelVariants {
    /// Repack weights while uploading if the block size is not a multiple of four bytes.
    pub planes: bool,
    /// Add the sums of a GEMV within subgroups, of which this is the minimum size.
    pub subgroups: Option<usize>,
    /// Quantize inputs to int8 for dot products of packed bytes, with the weight formats for which
    /// the CPU does so too.
    pub integers: bool,
    /// Use f16 tiles in a GEMM with quantized weights. Sums are f32.
    pub f16_tiles: bool,
    /// Multiply the tiles of a GEMM as cooperative matrices: with f16 factors for quantized
    /// weights, with f32 factors for all weights.
    pub matrices: Option<CoopMatrix>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelVariant {
    /// [`KernelVariants::planes`].
    Planes,
    /// [`KernelVariants::subgroups`].
    Subgroups,
    /// [`KernelVariants::integers`].
    Integers,
    /// [`KernelVariants::f16_tiles`].
    F16Tiles,
    /// [`KernelVariants::matrices`] with f16 factors.
    MatricesF16,
    /// [`KernelVariants::matrices`] with f32 factors.
    MatricesF32,
}

impl KernelVariant {
    pub const ALL: [KernelVariant; 6] = [
        KernelVariant::Planes,
        KernelVariant::Subgroups,
        KernelVariant::Integers,
        KernelVariant::F16Tiles,
        KernelVariant::MatricesF16,
        KernelVariant::MatricesF32,
    ];

    /// Whether results are those of exact f32 products.
    pub fn is_exact(self) -> bool {
        matches!(self, KernelVariant::Planes | KernelVariant::Subgroups | KernelVariant::MatricesF32)
    }

    /// The set of this variant only. None if the adapter does not support it.
    pub fn alone(self, adapter: &AdapterDescription) -> Option<KernelVariants> {
        let none = KernelVariants::default();
        match self {
            KernelVariant::Planes => Some(KernelVariants { planes: true, ..none }),
            KernelVariant::Subgroups => {
                adapter.subgroup_sums().map(|least| KernelVariants { subgroups: Some(least), ..none })
            }
            KernelVariant::Integers => {
                (!adapter.in_page()).then_some(KernelVariants { integers: true, ..none })
            }
            KernelVariant::F16Tiles => adapter.f16.then_some(KernelVariants { f16_tiles: true, ..none }),
            KernelVariant::MatricesF16 | KernelVariant::MatricesF32 => {
                let f16 = self == KernelVariant::MatricesF16;
                // The largest: they are in ascending order.
                let matrices = adapter.coop_matrices.iter().rfind(|matrix| matrix.f16 == f16).copied();
                matrices.map(|matrices| KernelVariants { matrices: Some(matrices), ..none })
            }
        }
    }
}

impl fmt::Display for KernelVariant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            KernelVariant::Planes => "repacked blocks",
            KernelVariant::Subgroups => "sums within subgroups",
            KernelVariant::Integers => "int8 dot products",
            KernelVariant::F16Tiles => "f16 tiles",
            KernelVariant::MatricesF16 => "f16 cooperative matrices",
            KernelVariant::MatricesF32 => "f32 cooperative matrices",
        })
    }
}

impl KernelVariants {
    /// The variants for an adapter and a precision. Exact products use f32 throughout.
    pub(crate) fn of(adapter: &AdapterDescription, precision: Precision) -> KernelVariants {
        // Types that round are not faster on a CPU.
        let rounds = precision == Precision::Default && !adapter.is_software();
        let used = KernelVariant::ALL.into_iter().filter(|variant| variant.is_exact() || rounds);
        let mut all = KernelVariants::default();
        // Earlier variants take precedence: f16 matrices over f32 matrices.
        for one in used.filter_map(|variant| variant.alone(adapter)) {
            all = KernelVariants {
                planes: all.planes || one.planes,
                subgroups: all.subgroups.or(one.subgroups),
                integers: all.integers || one.integers,
                f16_tiles: all.f16_tiles || one.f16_tiles,
                matrices: all.matrices.or(one.matrices),
            };
        }
        // Neither is faster on a CPU: unaligned words cost next to nothing, and software adapters
        // run cooperative matrices as plain loops.
        if adapter.is_software() { KernelVariants { planes: false, matrices: None, ..all } } else { all }
    }

    /// The variants that products on an adapter use, as a line of text.
    pub fn described(adapter: &AdapterDescription) -> String {
        let [exact, default] = [Precision::Exact, Precision::Default].map(|precision| {
            let names = KernelVariants::of(adapter, precision).names();
            if names.is_empty() { "what every device has".to_owned() } else { names.join(", ") }
        });
        if exact == default { exact } else { format!("{default}; in exact precision {exact}") }
    }

    fn names(&self) -> Vec<String> {
        let matrices = self
            .matrices
            .map(|matrix| if matrix.f16 { KernelVariant::MatricesF16 } else { KernelVariant::MatricesF32 });
        let used = [
            self.planes.then_some(KernelVariant::Planes),
            self.subgroups.map(|_| KernelVariant::Subgroups),
            self.integers.then_some(KernelVariant::Integers),
            self.f16_tiles.then_some(KernelVariant::F16Tiles),
            matrices,
        ];
        used.into_iter().flatten().map(|variant| variant.to_string()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::adapters::AdapterKind;

    fn adapter() -> AdapterDescription {
        let matrix = |side, f16| CoopMatrix { side, f16, subgroup: 32 };
        AdapterDescription {
            name: "card".into(),
            kind: AdapterKind::Discrete,
            interface: "Vulkan",
            driver: "driver".into(),
            max_buffer: 1 << 30,
            max_binding: 1 << 30,
            workgroup_memory: 32768,
            workgroup_size: 1024,
            f16: true,
            subgroups: Some((32, 32)),
            timestamps: true,
            matrices: Vec::new(),
            coop_matrices: vec![matrix(8, false), matrix(8, true), matrix(16, true)],
        }
    }

    #[test]
    fn exact_products_use_nothing_that_rounds() {
        let exact = KernelVariants::of(&adapter(), Precision::Exact);
        let f32_only = exact.matrices.is_some_and(|matrix| !matrix.f16);
        assert!(
            exact.planes && exact.subgroups == Some(32) && f32_only && !exact.integers && !exact.f16_tiles
        );
        let default = KernelVariants::of(&adapter(), Precision::Default);
        let largest = CoopMatrix { side: 16, f16: true, subgroup: 32 };
        assert!(default.integers && default.f16_tiles && default.matrices == Some(largest));
    }

    #[test]
    fn unsupported_features_are_not_used() {
        let poor = AdapterDescription { f16: false, subgroups: None, coop_matrices: Vec::new(), ..adapter() };
        let used = KernelVariants::of(&poor, Precision::Default);
        assert_eq!(used, KernelVariants { planes: true, integers: true, ..KernelVariants::default() });
        // 4 lanes, 128 lanes, and a browser's own WGSL.
        for (subgroups, interface) in [((4, 4), "Vulkan"), ((64, 128), "Vulkan"), ((32, 32), "WebGPU")] {
            let adapter = AdapterDescription { subgroups: Some(subgroups), interface, ..adapter() };
            let used = KernelVariants::of(&adapter, Precision::Default);
            assert_eq!((used.subgroups, used.integers), (None, interface != "WebGPU"));
        }
    }

    #[test]
    fn software_computes_in_f32_in_every_precision() {
        let software = AdapterDescription { kind: AdapterKind::Software, ..adapter() };
        for precision in [Precision::Exact, Precision::Default] {
            let sums = KernelVariants { subgroups: Some(32), ..KernelVariants::default() };
            assert_eq!(KernelVariants::of(&software, precision), sums);
        }
        assert_eq!(KernelVariants::described(&software), "sums within subgroups");
        let both = KernelVariants::described(&adapter());
        assert!(both.contains("f16 cooperative matrices; in exact precision repacked blocks"), "{both}");
    }
}
