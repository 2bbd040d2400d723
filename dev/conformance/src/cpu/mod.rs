//! The CPU as a backend: every row of [`latent_kernels::table`] and of
//! [`latent_kernels::w4_table`], and the kernels that are plain functions.

mod attention;
mod force;
mod product;
mod rows;
mod w4;

use crate::backend::{CaseBackend, CaseKernel, KernelJob, KernelLevel};
use crate::case::{CaseOperands, KernelCase};
use crate::rows::RowOp;
use latent_kernels::{KernelFn, W4Kernel};
use latent_types::{KernelContract, OpKind, Tier};

pub struct CpuCaseBackend {
    entries: Vec<CpuKernel>,
}

/// A kernel and its calling convention.
struct CpuKernel {
    name: String,
    tier: Tier,
    form: CpuKernelForm,
}

#[derive(Clone, Copy)]
enum CpuKernelForm {
    /// A row of the kernel table. `without_vnni` selects the AVX2 variant without AVX-VNNI.
    Table { contract: &'static KernelContract, kernel: KernelFn, without_vnni: bool },
    /// A plain function.
    Plain(RowKind),
    /// A row of the kernel table for 4-bit weights.
    W4(&'static W4Kernel),
}

/// The plain functions. Each serves some row-wise operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RowKind {
    Embed,
    RmsNorm,
    Rope,
    Store,
    Load,
    QuantizeA8,
    ToBf16,
    Silu,
    SiluMul,
    SigmoidMul,
    L2Norm,
    SoftplusDecay,
    BoundedDecay,
    GatedNorm,
    ShortConv,
    DeltaRule,
    Relu2,
    Add,
    Scale,
    Axpy,
    CombineSplits,
    IndexScores,
    Route,
}

impl RowKind {
    /// The function of a row of the kernel table that names none.
    fn of(op: OpKind) -> Option<RowKind> {
        match op {
            OpKind::Embed => Some(RowKind::Embed),
            OpKind::RmsNorm => Some(RowKind::RmsNorm),
            OpKind::Rope => Some(RowKind::Rope),
            OpKind::LatentStore => Some(RowKind::Store),
            OpKind::Route => Some(RowKind::Route),
            OpKind::Silu => Some(RowKind::Silu),
            OpKind::SiluMul => Some(RowKind::SiluMul),
            OpKind::SigmoidMul => Some(RowKind::SigmoidMul),
            OpKind::L2Norm => Some(RowKind::L2Norm),
            OpKind::SoftplusDecay => Some(RowKind::SoftplusDecay),
            OpKind::BoundedDecay => Some(RowKind::BoundedDecay),
            OpKind::GatedNorm => Some(RowKind::GatedNorm),
            OpKind::ShortConv => Some(RowKind::ShortConv),
            OpKind::DeltaRule => Some(RowKind::DeltaRule),
            OpKind::Relu2 => Some(RowKind::Relu2),
            OpKind::Add => Some(RowKind::Add),
            OpKind::Scale => Some(RowKind::Scale),
            OpKind::Linear
            | OpKind::LinearT
            | OpKind::AttendLatent
            | OpKind::AttendSeparate
            | OpKind::AttendExpanded
            | OpKind::ExpandKeys => None,
        }
    }

    fn serves(self, op: RowOp) -> bool {
        self == match op {
            RowOp::Embed(..) => RowKind::Embed,
            RowOp::RmsNorm => RowKind::RmsNorm,
            RowOp::Rope(_) => RowKind::Rope,
            RowOp::Store(_) => RowKind::Store,
            RowOp::Load(_) => RowKind::Load,
            RowOp::QuantizeA8 => RowKind::QuantizeA8,
            RowOp::ToBf16 => RowKind::ToBf16,
            RowOp::Silu => RowKind::Silu,
            RowOp::SiluMul => RowKind::SiluMul,
            RowOp::SigmoidMul { .. } => RowKind::SigmoidMul,
            RowOp::L2Norm => RowKind::L2Norm,
            RowOp::SoftplusDecay => RowKind::SoftplusDecay,
            RowOp::BoundedDecay => RowKind::BoundedDecay,
            RowOp::GatedNorm => RowKind::GatedNorm,
            RowOp::ShortConv => RowKind::ShortConv,
            RowOp::DeltaRule | RowOp::DeltaChunks => RowKind::DeltaRule,
            RowOp::Relu2 => RowKind::Relu2,
            RowOp::Add => RowKind::Add,
            RowOp::Scale => RowKind::Scale,
            RowOp::Axpy => RowKind::Axpy,
            RowOp::CombineSplits { .. } => RowKind::CombineSplits,
            RowOp::IndexScores { .. } => RowKind::IndexScores,
            RowOp::Route(_) => RowKind::Route,
        }
    }

    /// Tiers that the function is compiled for. It selects one itself; tests force one with
    /// [`latent_kernels::limit_tier`].
    fn tiers(self) -> &'static [Tier] {
        match self {
            // These functions are compiled once, without a choice of tier.
            RowKind::Embed | RowKind::Rope | RowKind::Store | RowKind::Load | RowKind::Route => {
                &[Tier::Portable]
            }
            _ if cfg!(target_arch = "x86_64") => &[Tier::Portable, Tier::Avx2, Tier::Avx512],
            _ => &[Tier::Portable],
        }
    }
}

/// Functions that are not bound to an operation of a plan. The engine or kernels of the table call
/// them.
const UNBOUND_FUNCTIONS: [(&str, RowKind); 6] = [
    ("quantize_a8", RowKind::QuantizeA8),
    ("to_bf16", RowKind::ToBf16),
    ("axpy", RowKind::Axpy),
    ("combine_splits", RowKind::CombineSplits),
    ("latent_load", RowKind::Load),
    ("index_scores", RowKind::IndexScores),
];

impl Default for CpuCaseBackend {
    fn default() -> Self {
        CpuCaseBackend::new()
    }
}

impl CpuCaseBackend {
    /// Lists the kernels of this machine's CPU.
    pub fn new() -> CpuCaseBackend {
        let mut entries = Vec::new();
        let plain = |word: &str, kind: RowKind| {
            let word = word.to_owned();
            kind.tiers().iter().map(move |tier| CpuKernel {
                name: format!("{tier}_{word}"),
                tier: *tier,
                form: CpuKernelForm::Plain(kind),
            })
        };
        for (contract, kernel) in latent_kernels::table() {
            // The table lists a row-wise operation once, as portable. The plain function behind it
            // selects its tier when it runs, so it is listed here once per tier that it is compiled
            // for.
            let row_wise = matches!(kernel, KernelFn::Plain | KernelFn::Elementwise { .. });
            if let (true, Some(kind)) = (row_wise, RowKind::of(contract.op)) {
                entries.extend(plain(contract.op.name(), kind));
                continue;
            }
            let mut add = |name: String, without_vnni| {
                let form = CpuKernelForm::Table { contract, kernel: *kernel, without_vnni };
                entries.push(CpuKernel { name, tier: contract.tier, form });
            };
            add(contract.name.to_owned(), false);
            // Machines with AVX-VNNI must test the plain variant too.
            if product::may_use_avx_vnni(contract) && latent_kernels::features().avx_vnni {
                add(format!("{} (no AVX-VNNI)", contract.name), true);
            }
        }
        for (word, kind) in UNBOUND_FUNCTIONS {
            entries.extend(plain(word, kind));
        }
        entries.extend(latent_kernels::w4_table().iter().map(|kernel| CpuKernel {
            name: kernel.name.to_owned(),
            tier: kernel.tier,
            form: CpuKernelForm::W4(kernel),
        }));
        CpuCaseBackend { entries }
    }
}

impl CaseBackend for CpuCaseBackend {
    fn name(&self) -> &'static str {
        "cpu"
    }

    fn levels(&self) -> Vec<KernelLevel> {
        let best = latent_kernels::features().tier();
        Tier::ALL.map(|tier| KernelLevel { name: tier.name(), available: tier <= best }).into()
    }

    fn features(&self) -> Vec<(&'static str, bool)> {
        let found = latent_kernels::features();
        vec![
            ("avx2", found.avx2),
            ("avx_vnni", found.avx_vnni),
            ("avx512", found.avx512),
            ("avx512_bf16", found.avx512_bf16),
            ("avx512_fp16", found.avx512_fp16),
            ("amx", found.amx),
        ]
    }

    fn kernels(&self) -> Vec<CaseKernel> {
        let best = latent_kernels::features().tier();
        let kernel = |(id, entry): (usize, &CpuKernel)| CaseKernel {
            name: entry.name.clone(),
            level: entry.tier.name(),
            // Kernels beyond the CPU are listed as missing instead of omitted, so that reports show
            // what was not tested.
            missing: (entry.tier > best).then(|| entry.tier.name().to_owned()),
            id,
        };
        self.entries.iter().enumerate().map(kernel).collect()
    }

    fn serves(&self, kernel: &CaseKernel, case: &KernelCase) -> bool {
        match (self.entries[kernel.id].form, case) {
            (CpuKernelForm::Table { contract, .. }, KernelCase::Product(case)) => {
                product::serves(contract, case)
            }
            (CpuKernelForm::Table { contract, .. }, KernelCase::Latent(case)) => {
                let op = if case.separate { OpKind::AttendSeparate } else { OpKind::AttendLatent };
                contract.op == op
                    && contract.activation == case.activation
                    && contract.cache.is_none_or(|cache| cache == case.cache)
            }
            (CpuKernelForm::Table { contract, .. }, KernelCase::Expanded(case)) => {
                contract.op == OpKind::AttendExpanded && contract.activation == case.activation
            }
            (CpuKernelForm::Table { contract, .. }, KernelCase::Keys(case)) => {
                contract.op == OpKind::ExpandKeys && contract.activation == case.activation
            }
            (CpuKernelForm::Plain(kind), KernelCase::Row(case)) => kind.serves(case.op),
            (CpuKernelForm::W4(kernel), KernelCase::W4(case)) => w4::serves(kernel, case),
            _ => false,
        }
    }

    fn prepare<'o>(
        &self,
        kernel: &CaseKernel,
        case: &'o KernelCase,
        operands: &'o CaseOperands,
    ) -> Result<Box<dyn KernelJob + Send + 'o>, String> {
        let entry = &self.entries[kernel.id];
        Ok(match (entry.form, case, operands) {
            (
                CpuKernelForm::Table {
                    kernel: KernelFn::Matmul(kernel) | KernelFn::MatmulT(kernel),
                    without_vnni,
                    ..
                },
                KernelCase::Product(case),
                CaseOperands::Product(operands),
            ) => Box::new(product::CpuProductJob::new(kernel, without_vnni, case, operands)),
            (
                CpuKernelForm::Table {
                    kernel: KernelFn::AttendLatent(kernel) | KernelFn::AttendSeparate(kernel),
                    ..
                },
                KernelCase::Latent(case),
                CaseOperands::Latent(operands),
            ) => Box::new(attention::CpuLatentJob::new(kernel, case, operands)),
            (
                CpuKernelForm::Table { kernel: KernelFn::AttendExpanded(kernel), .. },
                KernelCase::Expanded(case),
                CaseOperands::Expanded(operands),
            ) => Box::new(attention::CpuExpandedJob::new(kernel, case, operands)),
            (
                CpuKernelForm::Table { kernel: KernelFn::ExpandKeys(kernel), .. },
                KernelCase::Keys(case),
                CaseOperands::Keys(operands),
            ) => Box::new(attention::KeysJob::new(kernel, case, operands)),
            (
                CpuKernelForm::Table { kernel: KernelFn::PrefillAttnF16(kernel), .. },
                KernelCase::Expanded(case),
                CaseOperands::Expanded(operands),
            ) => Box::new(attention::CpuExpandedJob::new(kernel, case, operands)),
            (
                CpuKernelForm::Table { kernel: KernelFn::ExpandKeysF16(kernel), .. },
                KernelCase::Keys(case),
                CaseOperands::Keys(operands),
            ) => Box::new(attention::KeysJob::new(kernel, case, operands)),
            (
                CpuKernelForm::Table { kernel: KernelFn::PrefillAttnBf16(kernel), .. },
                KernelCase::Expanded(case),
                CaseOperands::Expanded(operands),
            ) => Box::new(attention::CpuExpandedJob::new(kernel, case, operands)),
            (
                CpuKernelForm::Table { kernel: KernelFn::ExpandKeysBf16(kernel), .. },
                KernelCase::Keys(case),
                CaseOperands::Keys(operands),
            ) => Box::new(attention::KeysJob::new(kernel, case, operands)),
            (CpuKernelForm::Plain(_), KernelCase::Row(case), CaseOperands::Row(operands)) => {
                Box::new(rows::RowJob::new(entry.tier, case, operands))
            }
            (CpuKernelForm::W4(kernel), KernelCase::W4(case), CaseOperands::W4(operands)) => {
                Box::new(w4::CpuW4Job::new(kernel, case, operands)?)
            }
            _ => return Err(format!("{} does not compute {}", entry.name, case.name())),
        })
    }
}
