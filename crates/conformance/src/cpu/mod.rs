//! The CPU as a backend: every row of [`latent_kernels::table`] and of
//! [`latent_kernels::w4_table`], and the kernels that are plain functions.

mod attention;
mod force;
mod product;
mod rows;
mod w4;

use crate::backend::{Backend, Job, Kernel, Level};
use crate::case::{Case, Operands};
use crate::rows::RowOp;
use latent_kernels::{KernelFn, W4Kernel};
use latent_types::{KernelContract, OpKind, Tier};

/// The CPU.
pub struct Cpu {
    entries: Vec<Entry>,
}

/// A kernel and how it is called.
struct Entry {
    name: String,
    tier: Tier,
    form: Form,
}

#[derive(Clone, Copy)]
enum Form {
    /// A row of the table. `without_vnni`: the AVX2 variant without AVX-VNNI.
    Table { contract: &'static KernelContract, kernel: KernelFn, without_vnni: bool },
    /// A plain function.
    Plain(RowKind),
    /// A row of the table for 4-bit weights.
    W4(&'static W4Kernel),
}

/// The plain functions, each of which serves some row-wise operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RowKind {
    Embed,
    RmsNorm,
    Rope,
    Store,
    Load,
    QuantizeA8,
    ToBf16,
    SiluMul,
    SigmoidMul,
    Relu2,
    Add,
    Scale,
    Axpy,
    CombineSplits,
    Route,
}

impl RowKind {
    /// The function behind a row of the table that names none.
    fn of(op: OpKind) -> Option<RowKind> {
        match op {
            OpKind::Embed => Some(RowKind::Embed),
            OpKind::RmsNorm => Some(RowKind::RmsNorm),
            OpKind::Rope => Some(RowKind::Rope),
            OpKind::LatentStore => Some(RowKind::Store),
            OpKind::Route => Some(RowKind::Route),
            OpKind::SiluMul => Some(RowKind::SiluMul),
            OpKind::SigmoidMul => Some(RowKind::SigmoidMul),
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
            RowOp::SiluMul => RowKind::SiluMul,
            RowOp::SigmoidMul { .. } => RowKind::SigmoidMul,
            RowOp::Relu2 => RowKind::Relu2,
            RowOp::Add => RowKind::Add,
            RowOp::Scale => RowKind::Scale,
            RowOp::Axpy => RowKind::Axpy,
            RowOp::CombineSplits { .. } => RowKind::CombineSplits,
            RowOp::Route(_) => RowKind::Route,
        }
    }

    /// Tiers that the function is compiled for. It selects one itself; tests force it with [`latent_kernels::limit_tier`].
    fn tiers(self) -> &'static [Tier] {
        match self {
            RowKind::Embed | RowKind::Rope | RowKind::Store | RowKind::Load | RowKind::Route => {
                &[Tier::Portable]
            }
            _ if cfg!(target_arch = "x86_64") => &[Tier::Portable, Tier::Avx2, Tier::Avx512],
            _ => &[Tier::Portable],
        }
    }
}

/// Functions that no operation of a plan binds to; kernels of the table or the engine call them.
const BESIDE_THE_TABLE: [(&str, RowKind); 5] = [
    ("quantize_a8", RowKind::QuantizeA8),
    ("to_bf16", RowKind::ToBf16),
    ("axpy", RowKind::Axpy),
    ("combine_splits", RowKind::CombineSplits),
    ("latent_load", RowKind::Load),
];

impl Default for Cpu {
    fn default() -> Self {
        Cpu::new()
    }
}

impl Cpu {
    /// This machine's CPU.
    pub fn new() -> Cpu {
        let mut entries = Vec::new();
        let plain = |word: &str, kind: RowKind| {
            let word = word.to_owned();
            kind.tiers().iter().map(move |tier| Entry {
                name: format!("{tier}_{word}"),
                tier: *tier,
                form: Form::Plain(kind),
            })
        };
        for (contract, kernel) in latent_kernels::table() {
            let row_wise = matches!(kernel, KernelFn::Plain | KernelFn::Elementwise { .. });
            if let (true, Some(kind)) = (row_wise, RowKind::of(contract.op)) {
                entries.extend(plain(contract.op.name(), kind));
                continue;
            }
            let mut add = |name: String, without_vnni| {
                let form = Form::Table { contract, kernel: *kernel, without_vnni };
                entries.push(Entry { name, tier: contract.tier, form });
            };
            add(contract.name.to_owned(), false);
            if product::may_use_avx_vnni(contract) && latent_kernels::features().avx_vnni {
                add(format!("{} (no AVX-VNNI)", contract.name), true);
            }
        }
        for (word, kind) in BESIDE_THE_TABLE {
            entries.extend(plain(word, kind));
        }
        entries.extend(latent_kernels::w4_table().iter().map(|kernel| Entry {
            name: kernel.name.to_owned(),
            tier: kernel.tier,
            form: Form::W4(kernel),
        }));
        Cpu { entries }
    }
}

impl Backend for Cpu {
    fn name(&self) -> &'static str {
        "cpu"
    }

    fn levels(&self) -> Vec<Level> {
        let best = latent_kernels::features().tier();
        Tier::ALL.map(|tier| Level { name: tier.name(), available: tier <= best }).into()
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

    fn kernels(&self) -> Vec<Kernel> {
        let best = latent_kernels::features().tier();
        let kernel = |(id, entry): (usize, &Entry)| Kernel {
            name: entry.name.clone(),
            level: entry.tier.name(),
            missing: (entry.tier > best).then(|| entry.tier.name().to_owned()),
            id,
        };
        self.entries.iter().enumerate().map(kernel).collect()
    }

    fn serves(&self, kernel: &Kernel, case: &Case) -> bool {
        match (self.entries[kernel.id].form, case) {
            (Form::Table { contract, .. }, Case::Product(case)) => product::serves(contract, case),
            (Form::Table { contract, .. }, Case::Latent(case)) => {
                let op = if case.separate { OpKind::AttendSeparate } else { OpKind::AttendLatent };
                contract.op == op
                    && contract.activation == case.activation
                    && contract.cache.is_none_or(|cache| cache == case.cache)
            }
            (Form::Table { contract, .. }, Case::Expanded(case)) => {
                contract.op == OpKind::AttendExpanded && contract.activation == case.activation
            }
            (Form::Table { contract, .. }, Case::Keys(case)) => {
                contract.op == OpKind::ExpandKeys && contract.activation == case.activation
            }
            (Form::Plain(kind), Case::Row(case)) => kind.serves(case.op),
            (Form::W4(kernel), Case::W4(case)) => w4::serves(kernel, case),
            _ => false,
        }
    }

    fn prepare<'o>(
        &self,
        kernel: &Kernel,
        case: &'o Case,
        operands: &'o Operands,
    ) -> Result<Box<dyn Job + Send + 'o>, String> {
        let entry = &self.entries[kernel.id];
        Ok(match (entry.form, case, operands) {
            (
                Form::Table {
                    kernel: KernelFn::Matmul(kernel) | KernelFn::MatmulT(kernel),
                    without_vnni,
                    ..
                },
                Case::Product(case),
                Operands::Product(operands),
            ) => Box::new(product::ProductJob::new(kernel, without_vnni, case, operands)),
            (
                Form::Table {
                    kernel: KernelFn::AttendLatent(kernel) | KernelFn::AttendSeparate(kernel), ..
                },
                Case::Latent(case),
                Operands::Latent(operands),
            ) => Box::new(attention::LatentJob::new(kernel, case, operands)),
            (
                Form::Table { kernel: KernelFn::AttendExpanded(kernel), .. },
                Case::Expanded(case),
                Operands::Expanded(operands),
            ) => Box::new(attention::ExpandedJob::new(kernel, case, operands)),
            (
                Form::Table { kernel: KernelFn::ExpandKeys(kernel), .. },
                Case::Keys(case),
                Operands::Keys(operands),
            ) => Box::new(attention::KeysJob::new(kernel, case, operands)),
            (
                Form::Table { kernel: KernelFn::PrefillAttnF16(kernel), .. },
                Case::Expanded(case),
                Operands::Expanded(operands),
            ) => Box::new(attention::ExpandedJob::new(kernel, case, operands)),
            (
                Form::Table { kernel: KernelFn::ExpandKeysF16(kernel), .. },
                Case::Keys(case),
                Operands::Keys(operands),
            ) => Box::new(attention::KeysJob::new(kernel, case, operands)),
            (
                Form::Table { kernel: KernelFn::PrefillAttnBf16(kernel), .. },
                Case::Expanded(case),
                Operands::Expanded(operands),
            ) => Box::new(attention::ExpandedJob::new(kernel, case, operands)),
            (
                Form::Table { kernel: KernelFn::ExpandKeysBf16(kernel), .. },
                Case::Keys(case),
                Operands::Keys(operands),
            ) => Box::new(attention::KeysJob::new(kernel, case, operands)),
            (Form::Plain(_), Case::Row(case), Operands::Row(operands)) => {
                Box::new(rows::RowJob::new(entry.tier, case, operands))
            }
            (Form::W4(kernel), Case::W4(case), Operands::W4(operands)) => {
                Box::new(w4::W4Job::new(kernel, case, operands)?)
            }
            _ => return Err(format!("{} does not compute {}", entry.name, case.name())),
        })
    }
}
