//! From a plan to instructions: every value a place, every weight an index, every kernel a function.

use crate::expanded::{ExpandedKernels, Kernels};
use crate::weights::LoadedWeight;
use latent_backend::BackendError;
use latent_graph::Plan;
use latent_graph::ir::{
    AttentionPath, BoundKernel, Epilogue, KvLayerKind, Node, Op, RowCount, Storage, ValueId, WeightId,
};
use latent_kernels::{AttendFn, KernelFn, MatmulFn, Q8Rows};
use latent_types::{ActivationType, KernelContract};

/// Which memory a value lies in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Base {
    /// The plan's arena.
    Arena,
    /// The residual stream.
    Hidden,
    /// The logits.
    Logits,
}

/// Where a value lies, in numbers.
#[derive(Clone, Copy, Debug)]
pub struct Slot {
    /// The memory.
    pub base: Base,
    /// First number of the first row.
    pub offset: usize,
    /// Numbers between rows.
    pub stride: usize,
    /// Heads of a row.
    pub heads: usize,
    /// Numbers between heads.
    pub head_stride: usize,
    /// Numbers of a head.
    pub width: usize,
    /// How many rows it has.
    pub rows: RowCount,
}

/// A weight with the kernel that multiplies by it.
#[derive(Clone, Copy)]
pub struct Product {
    /// Index of the weight.
    pub weight: usize,
    /// The kernel.
    pub kernel: MatmulFn,
    /// How the kernel reads its input.
    pub activation: ActivationType,
    /// What multiplies calls of few rows, where the kernel is for many.
    pub few: Option<Few>,
}

/// The kernel for calls of few rows.
#[derive(Clone, Copy)]
pub struct Few {
    /// Calls of fewer rows than this.
    pub below: usize,
    /// The kernel.
    pub kernel: MatmulFn,
    /// How it reads its input.
    pub activation: ActivationType,
}

impl Product {
    /// The kernel for a call of `rows` rows, and how it reads its input.
    pub fn of(&self, rows: usize) -> (MatmulFn, ActivationType) {
        match self.few {
            Some(few) if rows < few.below => (few.kernel, few.activation),
            _ => (self.kernel, self.activation),
        }
    }

    /// How its kernels read their inputs.
    pub fn activations(&self) -> impl Iterator<Item = ActivationType> + use<> {
        std::iter::once(self.activation).chain(self.few.map(|few| few.activation))
    }
}

/// W_UK and W_UV of a layer, however they are stored.
#[derive(Clone, Copy)]
pub enum KvWeights {
    /// `k_b` and `v_b`: one matrix a head each.
    Split(Option<Product>, Option<Product>),
    /// `kv_b`: a head's keys and then its values.
    Combined(Product),
}

/// One operation, ready to run.
pub enum Instruction {
    /// Rows of the embedding.
    Embed { weight: usize, scale: f32, out: Slot },
    /// RMSNorm of every row.
    RmsNorm { input: Slot, weight: usize, out: Slot },
    /// Products with one or several weights.
    Linear { input: Slot, norm: Option<usize>, products: Vec<Product>, outs: Vec<Slot>, epilogue: Epilogue },
    /// Rotation, in place or into another value.
    Rope { input: Slot, out: Slot },
    /// A row of the latent cache.
    LatentStore { latent: Slot, norm: Option<usize>, key: Slot, rotate: bool, kv_layer: usize },
    /// A row of the expanded cache.
    ExpandedStore { latent: Slot, key: Slot, rotate: bool, kv: KvWeights, kv_layer: usize },
    /// Queries into latent space.
    AbsorbK { q_nope: Slot, q_rope: Slot, rotate: bool, kv: KvWeights, out: Slot },
    /// Attention in latent space.
    Attend { query: Slot, out: Slot, kv_layer: usize, kernel: AttendFn },
    /// Attention results into value space.
    AbsorbV { input: Slot, kv: KvWeights, out: Slot },
    /// Attention over expanded keys and values.
    AttendExpanded {
        q_nope: Slot,
        q_rope: Slot,
        kv: Option<KvWeights>,
        out: Slot,
        kv_layer: usize,
        kernels: ExpandedKernels,
    },
    /// The choice of experts: of a thread's rows, or of all rows by each thread, for its own use in this phase.
    Route { logits: Slot, bias: Option<usize>, chosen: Slot, mix: Slot, each: bool },
    /// First half of the experts.
    ExpertGateUp {
        input: Slot,
        norm: Option<usize>,
        /// None where each thread has chosen in this phase, and sorted the rows.
        chosen: Option<Slot>,
        products: Vec<Product>,
        out: Slot,
    },
    /// Second half of the experts.
    ExpertDown { input: Slot, chosen: Slot, mix: Slot, product: Product, scale: f32, add: bool, out: Slot },
    /// silu(gate) · up.
    SiluMul { gate: Slot, up: Slot, out: Slot },
    /// max(x, 0)².
    Relu2 { input: Slot, out: Slot },
    /// out += factor · term.
    Add { term: Slot, scale: f32, out: Slot },
    /// out *= factor.
    Scale { by: f32, out: Slot },
    /// LogitsRequest rows of the residual stream.
    GatherRows { out: Slot },
}

/// An instruction and the rows that it works on.
pub struct Step {
    /// The rows.
    pub path: AttentionPath,
    /// What is done.
    pub instruction: Instruction,
}

/// A plan, compiled: phases of instructions.
pub struct Program {
    /// Instructions between barriers.
    pub phases: Vec<Vec<Step>>,
    /// Which of the plan's phases each is.
    pub numbers: Vec<usize>,
    /// Numbers of the arena.
    pub arena: usize,
}

impl Program {
    /// Blocks of 32 numbers that a row's inputs of one product take at most, of the products that read them in one form.
    pub fn row_blocks(&self, weights: &[LoadedWeight], activation: ActivationType) -> usize {
        let of = |product: &Product| {
            let reads = product.activations().any(|a| a == activation);
            if reads { Q8Rows::row_blocks(weights[product.weight].inputs()) } else { 0 }
        };
        let steps = self.phases.iter().flatten();
        let blocks = steps.map(|step| match &step.instruction {
            Instruction::Linear { products, .. } | Instruction::ExpertGateUp { products, .. } => {
                products.iter().map(of).max().unwrap_or(0)
            }
            Instruction::ExpertDown { chosen, product, .. } => chosen.width * of(product),
            _ => 0,
        });
        blocks.max().unwrap_or(0)
    }
}

/// Compiles a plan. `weight_of` says which loaded weight each of the plan's weights is.
///
/// # Errors
/// When the plan holds what no instruction does: an error of Latent, not of the file.
pub fn compile(plan: &Plan, weight_of: &dyn Fn(WeightId) -> usize) -> Result<Program, BackendError> {
    let compiler = Compiler { plan, weight_of };
    let mut phases: Vec<Vec<Step>> = (0..plan.phase_count()).map(|_| Vec::new()).collect();
    for (index, node) in plan.ir.nodes.iter().enumerate() {
        if let Some(instruction) = compiler.instruction(node, index)? {
            phases[plan.phases[index]].push(Step { path: node.path, instruction });
        }
    }
    let numbers = (0..phases.len()).filter(|i| !phases[*i].is_empty()).collect();
    phases.retain(|phase| !phase.is_empty());
    Ok(Program { phases, numbers, arena: plan.arena.bytes / size_of::<f32>() })
}

struct Compiler<'a> {
    plan: &'a Plan,
    weight_of: &'a dyn Fn(WeightId) -> usize,
}

fn internal<T>(problem: String) -> Result<T, BackendError> {
    Err(BackendError::Graph(latent_graph::GraphError::Internal { pass: "compile", problem }))
}

/// Where a value of a plan lies.
///
/// # Errors
/// When the plan gives it no place: an error of Latent, not of the file.
pub fn slot(plan: &Plan, id: ValueId) -> Result<Slot, BackendError> {
    let value = plan.ir.value(id);
    let here = |base, offset| Slot {
        base,
        offset,
        stride: value.row_width(),
        heads: value.heads,
        head_stride: value.width,
        width: value.width,
        rows: value.rows,
    };
    Ok(match value.storage {
        Storage::Hidden => here(Base::Hidden, 0),
        Storage::Logits => here(Base::Logits, 0),
        Storage::Own => match plan.arena.offsets[id.0] {
            Some(byte) => here(Base::Arena, byte / size_of::<f32>()),
            None => return internal(format!("value {} has no place", value.name)),
        },
        Storage::View { of, offset } => {
            let parent = slot(plan, of)?;
            let flat = value.heads == 1 && parent.heads > 1;
            Slot {
                offset: parent.offset + offset,
                heads: value.heads,
                head_stride: if flat { value.width } else { parent.head_stride },
                width: value.width,
                ..parent
            }
        }
        Storage::Tokens => return internal("token ids are no matrix".into()),
    })
}

impl Compiler<'_> {
    fn input(&self, node: &Node, i: usize) -> Result<Slot, BackendError> {
        match node.inputs.get(i) {
            Some(id) => slot(self.plan, *id),
            None => internal(format!("{} lacks input {i}", node.op.word())),
        }
    }

    fn out(&self, node: &Node, i: usize) -> Result<Slot, BackendError> {
        match node.outputs.get(i) {
            Some(id) => slot(self.plan, *id),
            None => internal(format!("{} lacks output {i}", node.op.word())),
        }
    }

    fn one_weight(&self, node: &Node) -> Result<usize, BackendError> {
        match &node.weights[..] {
            [(_, id)] => Ok((self.weight_of)(*id)),
            _ => internal(format!("{} needs one weight", node.op.word())),
        }
    }

    fn product(&self, id: WeightId, bound: &BoundKernel) -> Result<Product, BackendError> {
        let find = |bound: &BoundKernel| -> Result<(MatmulFn, &KernelContract), BackendError> {
            let (config, function) = &latent_kernels::table()[bound.index];
            match function {
                KernelFn::Matmul(kernel) | KernelFn::MatmulT(kernel) => Ok((*kernel, config)),
                _ => internal(format!("{} is no product", config.name)),
            }
        };
        let (kernel, KernelContract { activation, min_rows, .. }) = find(bound)?;
        let few = bound.small_batch.as_ref().map(|few| {
            find(few).map(|(kernel, few)| Few { below: *min_rows, kernel, activation: few.activation })
        });
        Ok(Product { weight: (self.weight_of)(id), kernel, activation: *activation, few: few.transpose()? })
    }

    fn products(&self, node: &Node) -> Result<Vec<Product>, BackendError> {
        node.weights.iter().zip(&node.kernels).map(|((_, id), kernel)| self.product(*id, kernel)).collect()
    }

    fn kv(&self, node: &Node) -> Result<KvWeights, BackendError> {
        let find = |slot: &str| -> Result<Option<Product>, BackendError> {
            let found = node.weights.iter().zip(&node.kernels).find(|((name, _), _)| name == slot);
            // a weight that is decoded before it is used has no product
            let product = |kernel: &BoundKernel| {
                !matches!(latent_kernels::table()[kernel.index].1, KernelFn::ExpandKeys(_))
            };
            let found = found.filter(|(_, kernel)| product(kernel));
            found.map(|((_, id), kernel)| self.product(*id, kernel)).transpose()
        };
        Ok(match find("kv_b")? {
            Some(both) => KvWeights::Combined(both),
            None => KvWeights::Split(find("k_b")?, find("v_b")?),
        })
    }

    fn attend(&self, node: &Node) -> Result<AttendFn, BackendError> {
        let found = node.kernels.first().map(|kernel| &latent_kernels::table()[kernel.index].1);
        match found {
            Some(KernelFn::AttendLatent(kernel) | KernelFn::AttendSeparate(kernel)) => Ok(*kernel),
            _ => internal("no kernel for attention is bound".into()),
        }
    }

    fn expanded_kernels(&self, node: &Node) -> Result<ExpandedKernels, BackendError> {
        let weight = node.weights.iter().find(|(slot, _)| slot == "k_b" || slot == "kv_b");
        let key_weight = weight.map_or(0, |(_, id)| (self.weight_of)(*id));
        let (mut floats, mut halves, mut brains) = ((None, None), (None, None), (None, None));
        for kernel in &node.kernels {
            match latent_kernels::table()[kernel.index].1 {
                KernelFn::ExpandKeys(kernel) => floats.0 = Some(kernel),
                KernelFn::AttendExpanded(kernel) => floats.1 = Some(kernel),
                KernelFn::ExpandKeysF16(kernel) => halves.0 = Some(kernel),
                KernelFn::PrefillAttnF16(kernel) => halves.1 = Some(kernel),
                KernelFn::ExpandKeysBf16(kernel) => brains.0 = Some(kernel),
                KernelFn::PrefillAttnBf16(kernel) => brains.1 = Some(kernel),
                _ => {}
            }
        }
        match (floats, halves, brains) {
            (.., (Some(keys), Some(attend))) => {
                Ok(ExpandedKernels::Bf16(Kernels { keys, attend, key_weight }))
            }
            (_, (Some(keys), Some(attend)), _) => {
                Ok(ExpandedKernels::F16(Kernels { keys, attend, key_weight }))
            }
            ((Some(keys), Some(attend)), ..) => {
                Ok(ExpandedKernels::F32(Kernels { keys, attend, key_weight }))
            }
            _ => internal("no kernel for attention over expanded keys is bound".into()),
        }
    }

    fn kv_layer(&self, node: &Node) -> Result<usize, BackendError> {
        node.kv_layer.map(|id| id.0).map_or_else(|| internal(format!("{} has no stream", node.op.word())), Ok)
    }

    fn norm(&self, node: &Node) -> Option<usize> {
        node.prologue.norm.map(self.weight_of)
    }

    fn instruction(&self, node: &Node, index: usize) -> Result<Option<Instruction>, BackendError> {
        Ok(Some(match node.op {
            Op::Split => return Ok(None),
            Op::Embed { scale } => Instruction::Embed {
                weight: self.one_weight(node)?,
                scale: scale as f32,
                out: self.out(node, 0)?,
            },
            Op::RmsNorm => Instruction::RmsNorm {
                input: self.input(node, 0)?,
                weight: self.one_weight(node)?,
                out: self.out(node, 0)?,
            },
            Op::Linear => Instruction::Linear {
                input: self.input(node, 0)?,
                norm: self.norm(node),
                products: self.products(node)?,
                outs: (0..node.outputs.len()).map(|i| self.out(node, i)).collect::<Result<_, _>>()?,
                epilogue: node.epilogue,
            },
            Op::Rope => Instruction::Rope { input: self.input(node, 0)?, out: self.out(node, 0)? },
            Op::Route => Instruction::Route {
                logits: self.input(node, 0)?,
                bias: node.weights.first().map(|(_, id)| (self.weight_of)(*id)),
                chosen: self.out(node, 0)?,
                mix: self.out(node, 1)?,
                each: self.plan.ir.readers(node.outputs[0]).iter().any(|&n| self.together(n, index)),
            },
            Op::ExpertGateUp | Op::ExpertDown => self.experts(node, index)?,
            Op::SiluMul => Instruction::SiluMul {
                gate: self.input(node, 0)?,
                up: self.input(node, 1)?,
                out: self.out(node, 0)?,
            },
            Op::Relu2 => Instruction::Relu2 { input: self.input(node, 0)?, out: self.out(node, 0)? },
            Op::Add { scale } => {
                Instruction::Add { term: self.input(node, 1)?, scale: scale as f32, out: self.out(node, 0)? }
            }
            Op::Scale { by } => Instruction::Scale { by: by as f32, out: self.out(node, 0)? },
            Op::GatherRows => Instruction::GatherRows { out: self.out(node, 0)? },
            Op::MlaAttention | Op::ExpertMlp => {
                return internal(format!("{} was not lowered", node.op.word()));
            }
            _ => self.attention(node, index)?,
        }))
    }

    /// Whether two nodes share a phase.
    fn together(&self, a: usize, b: usize) -> bool {
        self.plan.phases[a] == self.plan.phases[b]
    }

    fn experts(&self, node: &Node, index: usize) -> Result<Instruction, BackendError> {
        let products = self.products(node)?;
        if node.op == Op::ExpertGateUp {
            let made = node.inputs.get(1).and_then(|chosen| self.plan.ir.maker(*chosen));
            let each = made.is_some_and(|maker| self.together(maker, index));
            return Ok(Instruction::ExpertGateUp {
                input: self.input(node, 0)?,
                norm: self.norm(node),
                chosen: if each { None } else { Some(self.input(node, 1)?) },
                products,
                out: self.out(node, 0)?,
            });
        }
        let (scale, add) = match node.epilogue {
            Epilogue::AddTo(scale) => (scale as f32, true),
            _ => (1.0, false),
        };
        Ok(Instruction::ExpertDown {
            input: self.input(node, 0)?,
            chosen: self.input(node, 1)?,
            mix: self.input(node, 2)?,
            product: products[0],
            scale,
            add,
            out: self.out(node, 0)?,
        })
    }

    /// Results of attention in latent space may lie in pieces until they are multiplied by W_UV (`leaves_pieces`): so nothing else reads them, and no other
    /// attention uses the memory of the pieces until then.
    fn only_absorbed(&self, node: &Node, index: usize) -> Result<(), BackendError> {
        let (nodes, phases) = (&self.plan.ir.nodes, &self.plan.phases);
        for reader in self.plan.ir.readers(node.outputs[0]) {
            let between = phases[index]..=phases[reader];
            let shared = nodes.iter().zip(phases).enumerate().any(|(i, (other, phase))| {
                let attends = matches!(other.op, Op::AttendLatent | Op::AttendSeparate);
                i != index && attends && between.contains(phase)
            });
            if nodes[reader].op != Op::AbsorbV || phases[reader] == phases[index] || shared {
                return internal(format!(
                    "{} reads results of attention that may lie in pieces",
                    nodes[reader].op.word()
                ));
            }
        }
        Ok(())
    }

    fn attention(&self, node: &Node, index: usize) -> Result<Instruction, BackendError> {
        let rotate = node.prologue.rope;
        Ok(match node.op {
            Op::LatentStore => Instruction::LatentStore {
                latent: self.input(node, 0)?,
                norm: self.norm(node),
                key: self.input(node, 1)?,
                rotate,
                kv_layer: self.kv_layer(node)?,
            },
            Op::ExpandedStore => Instruction::ExpandedStore {
                latent: self.input(node, 0)?,
                key: self.input(node, 1)?,
                rotate,
                kv: self.kv(node)?,
                kv_layer: self.kv_layer(node)?,
            },
            Op::AbsorbK => Instruction::AbsorbK {
                q_nope: self.input(node, 0)?,
                q_rope: self.input(node, 1)?,
                rotate,
                kv: self.kv(node)?,
                out: self.out(node, 0)?,
            },
            Op::AttendLatent | Op::AttendSeparate => {
                self.only_absorbed(node, index)?;
                Instruction::Attend {
                    query: self.input(node, 0)?,
                    out: self.out(node, 0)?,
                    kv_layer: self.kv_layer(node)?,
                    kernel: self.attend(node)?,
                }
            }
            Op::AbsorbV => Instruction::AbsorbV {
                input: self.input(node, 0)?,
                kv: self.kv(node)?,
                out: self.out(node, 0)?,
            },
            Op::AttendExpanded => {
                let kv_layer = self.kv_layer(node)?;
                let latent = self.plan.ir.kv_layers[kv_layer].kind == KvLayerKind::Latent;
                Instruction::AttendExpanded {
                    q_nope: self.input(node, 0)?,
                    q_rope: self.input(node, 1)?,
                    kv: if latent { Some(self.kv(node)?) } else { None },
                    out: self.out(node, 0)?,
                    kv_layer,
                    kernels: self.expanded_kernels(node)?,
                }
            }
            _ => return internal(format!("{} has no instruction", node.op.word())),
        })
    }
}
