//! The table of all kernels.

use crate::attention_table::{self, AttentionRow};
use crate::elementwise;
use crate::kernel_fn::KernelFn;
use crate::matmul::{self, MatmulFn};
use latent_types::{ActivationType, KernelContract, OpKind, Tier, WeightLayout};
use std::sync::OnceLock;

/// Row-wise operations that are not elementwise.
const ROW_WISE: [OpKind; 11] = [
    OpKind::Embed,
    OpKind::RmsNorm,
    OpKind::Rope,
    OpKind::LatentStore,
    OpKind::Route,
    OpKind::ShortConv,
    OpKind::L2Norm,
    OpKind::SoftplusDecay,
    OpKind::BoundedDecay,
    OpKind::DeltaRule,
    OpKind::GatedNorm,
];

/// Every kernel with its contract, for all tiers. Kernels that need features beyond their tier (f16
/// or bf16 arithmetic) are listed only if the CPU has them.
pub fn table() -> &'static [(KernelContract, KernelFn)] {
    static TABLE: OnceLock<Vec<(KernelContract, KernelFn)>> = OnceLock::new();
    TABLE.get_or_init(|| {
        let matmul = |(contract, kernel): (KernelContract, MatmulFn)| match contract.op {
            OpKind::LinearT => (contract, KernelFn::MatmulT(kernel)),
            _ => (contract, KernelFn::Matmul(kernel)),
        };
        let mut table: Vec<_> = matmul::kernels().into_iter().map(matmul).collect();
        // Row-wise operations are listed once, as portable: they dispatch by ISA inside, and no
        // plan selects their tier.
        let plain = |op, name, kernel| {
            let contract = KernelContract {
                op,
                weight: None,
                layout: WeightLayout::Rows,
                activation: ActivationType::F32,
                cache: None,
                min_rows: 1,
                tier: Tier::Portable,
                name,
            };
            (contract, kernel)
        };
        for row in attention_table::rows() {
            let AttentionRow { op, tier, form, activation, cache, min_rows, kernel } = row;
            // Leaked names are `&'static str` in the contract; the table is built once per process.
            let name = format!("{tier}{form}_{}", op.name()).leak();
            let contract = KernelContract { activation, cache, min_rows, tier, ..plain(op, name, kernel).0 };
            table.push((contract, kernel));
        }
        for op in OpKind::ALL {
            let kernel = match elementwise::kernel(*op) {
                Some((kernel, overwrites)) => KernelFn::Elementwise { kernel, overwrites },
                None if ROW_WISE.contains(op) => KernelFn::Plain,
                None => continue,
            };
            let name = format!("{}_{}", Tier::Portable, op.name()).leak();
            table.push(plain(*op, name, kernel));
        }
        table
    })
}
