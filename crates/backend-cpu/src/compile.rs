//! Compiles a plan to a program: values become operands, weights become indices, and bound kernels
//! become function pointers.

use crate::program::{
    AbsorbK, AbsorbV, AdapterHeads, AdapterSide, AdapterSum, AttendExpanded, AttendLatent, Bias, Buffer,
    CollectiveKind, Concat, DeltaRule, Elementwise, Embed, ExpandedKernels, ExpandedStore, ExpertAdapter,
    ExpertDown, ExpertGateUp, GatedNorm, GatherRows, IndexSelect, IndexStore, Instruction, KvWeights, L2Norm,
    LatentStore, Linear, LogDecay, NaiveMlaKernels, OperandView, Program, ProgramStep, RankCollective,
    RmsNorm, Rope, Route, ShortConv, SmallBatchKernel, WeightKernel,
};
use latent_backend::BackendError;
use latent_graph::Plan;
use latent_graph::ir::{BoundKernel, Epilogue, KvLayerKind, Node, Op, ValueId, ValueStorage, WeightId};
use latent_graph::ops::adapted_slot;
use latent_kernels::{AttendFn, KernelFn, MatmulFn};
use latent_types::KernelContract;

/// Compiles a plan. `weight_of` maps a weight of the plan to the index of the loaded weight. The
/// plan's first KV layer is the layer `first_kv_layer` of the cache.
///
/// # Errors
/// If a node of the plan has no instruction. This is a fault of Latent, not of the file.
pub(crate) fn compile(
    plan: &Plan,
    weight_of: &dyn Fn(WeightId) -> usize,
    first_kv_layer: usize,
) -> Result<Program, BackendError> {
    let compiler = Compiler { plan, weight_of, first_kv_layer };
    let mut phases: Vec<Vec<ProgramStep>> = (0..plan.phase_count()).map(|_| Vec::new()).collect();
    for (index, node) in plan.ir.nodes.iter().enumerate() {
        if let Some(instruction) = compiler.instruction(node, index)? {
            phases[plan.phases[index]].push(ProgramStep { node: index, path: node.path, instruction });
        }
    }
    let numbers = (0..phases.len()).filter(|i| !phases[*i].is_empty()).collect();
    phases.retain(|phase| !phase.is_empty());
    Ok(Program { phases, numbers, arena: plan.arena.bytes / size_of::<f32>() })
}

struct Compiler<'a> {
    plan: &'a Plan,
    weight_of: &'a dyn Fn(WeightId) -> usize,
    first_kv_layer: usize,
}

fn internal<T>(problem: String) -> Result<T, BackendError> {
    Err(BackendError::Graph(latent_graph::GraphError::Internal { pass: "compile", problem }))
}

/// The operand of a value.
///
/// # Errors
/// If the plan gives the value no offset. This is a fault of Latent, not of the file.
pub(crate) fn operand(plan: &Plan, id: ValueId) -> Result<OperandView, BackendError> {
    let value = plan.ir.value(id);
    let here = |buffer, offset| OperandView {
        buffer,
        offset,
        stride: value.row_width(),
        heads: value.heads,
        head_stride: value.width,
        width: value.width,
        rows: value.rows,
    };
    Ok(match value.storage {
        ValueStorage::Hidden => here(Buffer::Hidden, 0),
        ValueStorage::Logits => here(Buffer::Logits, 0),
        ValueStorage::Own => match plan.arena.offsets[id.0] {
            Some(byte) => here(Buffer::Arena, byte / size_of::<f32>()),
            None => return internal(format!("value {} has no buffer", value.name)),
        },
        ValueStorage::View { of, offset } => {
            let parent = operand(plan, of)?;
            // A view with one head over a parent with several heads sees the parent's row as a
            // whole, so its own width is the distance between heads.
            let flat = value.heads == 1 && parent.heads > 1;
            OperandView {
                offset: parent.offset + offset,
                heads: value.heads,
                head_stride: if flat { value.width } else { parent.head_stride },
                width: value.width,
                ..parent
            }
        }
        ValueStorage::Tokens => return internal("expected a matrix, found token ids".into()),
    })
}

impl Compiler<'_> {
    fn input(&self, node: &Node, i: usize) -> Result<OperandView, BackendError> {
        match node.inputs.get(i) {
            Some(id) => operand(self.plan, *id),
            None => internal(format!("{} has no input {i}", node.op.word())),
        }
    }

    /// The input at an optional port.
    fn input_at(&self, node: &Node, port: &str) -> Result<Option<OperandView>, BackendError> {
        node.input_at(port).map(|id| operand(self.plan, id)).transpose()
    }

    fn out(&self, node: &Node, i: usize) -> Result<OperandView, BackendError> {
        match node.outputs.get(i) {
            Some(id) => operand(self.plan, *id),
            None => internal(format!("{} has no output {i}", node.op.word())),
        }
    }

    fn one_weight(&self, node: &Node) -> Result<usize, BackendError> {
        match &node.weights[..] {
            [(_, id)] => Ok((self.weight_of)(*id)),
            _ => internal(format!("{} needs one weight", node.op.word())),
        }
    }

    fn product(&self, id: WeightId, bound: &BoundKernel) -> Result<WeightKernel, BackendError> {
        let find = |bound: &BoundKernel| -> Result<(MatmulFn, &KernelContract), BackendError> {
            let (contract, function) = &latent_kernels::table()[bound.index];
            match function {
                KernelFn::Matmul(kernel) | KernelFn::MatmulT(kernel) => Ok((*kernel, contract)),
                _ => internal(format!("kernel {} does not multiply matrices", contract.name)),
            }
        };
        let (kernel, KernelContract { activation, min_rows, .. }) = find(bound)?;
        let small_batch = bound.small_batch.as_ref().map(|small| -> Result<_, BackendError> {
            let (kernel, contract) = find(small)?;
            Ok(SmallBatchKernel { below: *min_rows, kernel, activation: contract.activation })
        });
        let small_batch = small_batch.transpose()?;
        Ok(WeightKernel { weight: (self.weight_of)(id), kernel, activation: *activation, small_batch })
    }

    fn products(&self, node: &Node) -> Result<Vec<WeightKernel>, BackendError> {
        node.weights.iter().zip(&node.kernels).map(|((_, id), kernel)| self.product(*id, kernel)).collect()
    }

    fn kv(&self, node: &Node) -> Result<KvWeights, BackendError> {
        let find = |role: &str| -> Result<Option<WeightKernel>, BackendError> {
            let found = node.weights.iter().zip(&node.kernels).find(|((name, _), _)| name == role);
            // `ExpandKeys` dequantizes W_UK itself, so the weight has no product.
            let product = |kernel: &BoundKernel| {
                !matches!(latent_kernels::table()[kernel.index].1, KernelFn::ExpandKeys(_))
            };
            let found = found.filter(|(_, kernel)| product(kernel));
            found.map(|((_, id), kernel)| self.product(*id, kernel)).transpose()
        };
        Ok(match find("kv_b")? {
            Some(both) => KvWeights::Combined(both),
            None => KvWeights::Separate(find("k_b")?, find("v_b")?),
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
        let weight = node.weights.iter().find(|(role, _)| role == "k_b" || role == "kv_b");
        let key_weight = weight.map_or(0, |(_, id)| (self.weight_of)(*id));
        let (mut f32, mut f16, mut bf16) = ((None, None), (None, None), (None, None));
        for kernel in &node.kernels {
            match latent_kernels::table()[kernel.index].1 {
                KernelFn::ExpandKeys(kernel) => f32.0 = Some(kernel),
                KernelFn::AttendExpanded(kernel) => f32.1 = Some(kernel),
                KernelFn::ExpandKeysF16(kernel) => f16.0 = Some(kernel),
                KernelFn::PrefillAttnF16(kernel) => f16.1 = Some(kernel),
                KernelFn::ExpandKeysBf16(kernel) => bf16.0 = Some(kernel),
                KernelFn::PrefillAttnBf16(kernel) => bf16.1 = Some(kernel),
                _ => {}
            }
        }
        match (f32, f16, bf16) {
            (.., (Some(keys), Some(attend))) => {
                Ok(ExpandedKernels::Bf16(NaiveMlaKernels { keys, attend, key_weight }))
            }
            (_, (Some(keys), Some(attend)), _) => {
                Ok(ExpandedKernels::F16(NaiveMlaKernels { keys, attend, key_weight }))
            }
            ((Some(keys), Some(attend)), ..) => {
                Ok(ExpandedKernels::F32(NaiveMlaKernels { keys, attend, key_weight }))
            }
            _ => internal("no kernel for attention over expanded keys is bound".into()),
        }
    }

    /// The index of the node's KV layer in the cache.
    fn kv_layer(&self, node: &Node) -> Result<usize, BackendError> {
        node.kv_layer
            .map(|id| self.first_kv_layer + id.0)
            .map_or_else(|| internal(format!("{} has no KV layer", node.op.word())), Ok)
    }

    fn norm(&self, node: &Node) -> Option<usize> {
        node.prologue.norm.map(self.weight_of)
    }

    fn instruction(&self, node: &Node, index: usize) -> Result<Option<Instruction>, BackendError> {
        Ok(Some(match node.op {
            // Its outputs are views of its input, so there is nothing to compute.
            Op::Split => return Ok(None),
            Op::Embed { scale } => Instruction::Embed(Embed {
                weight: self.one_weight(node)?,
                scale: scale as f32,
                out: self.out(node, 0)?,
            }),
            Op::RmsNorm => Instruction::RmsNorm(RmsNorm {
                input: self.input(node, 0)?,
                weight: self.one_weight(node)?,
                out: self.out(node, 0)?,
            }),
            Op::Linear => Instruction::Linear(Linear {
                input: self.input(node, 0)?,
                norm: self.norm(node),
                products: self.products(node)?,
                outs: (0..node.outputs.len()).map(|i| self.out(node, i)).collect::<Result<_, _>>()?,
                epilogue: node.epilogue,
            }),
            Op::LoraAdd | Op::LoraAbsorbK | Op::LoraAbsorbV => self.adapter(node)?,
            Op::Rope => Instruction::Rope(Rope { input: self.input(node, 0)?, out: self.out(node, 0)? }),
            Op::Route => Instruction::Route(Route {
                logits: self.input(node, 0)?,
                bias: node.weights.first().map(|(_, id)| (self.weight_of)(*id)),
                topk_ids: self.out(node, 0)?,
                topk_weights: self.out(node, 1)?,
                in_every_worker: self
                    .plan
                    .ir
                    .readers(node.outputs[0])
                    .iter()
                    .any(|&n| self.same_phase(n, index)),
            }),
            Op::ExpertGateUp | Op::ExpertDown => self.experts(node, index)?,
            Op::Concat => Instruction::Concat(Concat {
                parts: [self.input(node, 0)?, self.input(node, 1)?],
                out: self.out(node, 0)?,
            }),
            Op::Bias => Instruction::Bias(Bias { weight: self.one_weight(node)?, out: self.out(node, 0)? }),
            Op::ShortConv => Instruction::ShortConv(ShortConv {
                inputs: [self.input(node, 0)?, self.input(node, 1)?, self.input(node, 2)?],
                taps: self.weights(node)?,
                outs: [self.out(node, 0)?, self.out(node, 1)?, self.out(node, 2)?],
                kv_layer: self.kv_layer(node)?,
            }),
            Op::L2Norm { scale } => {
                self.in_place(node)?;
                Instruction::L2Norm(L2Norm { factor: scale as f32, out: self.out(node, 0)? })
            }
            Op::SoftplusDecay => self.log_decay(node, None)?,
            Op::BoundedDecay { bound } => self.log_decay(node, Some(bound as f32))?,
            Op::DeltaRule => Instruction::DeltaRule(DeltaRule {
                q: self.input(node, 0)?,
                k: self.input(node, 1)?,
                v: self.input(node, 2)?,
                log_decay: self.input(node, 3)?,
                beta: self.input(node, 4)?,
                out: self.out(node, 0)?,
                kv_layer: self.kv_layer(node)?,
            }),
            Op::GatedNorm => {
                self.in_place(node)?;
                let (gate, weight) = (self.input(node, 1)?, self.one_weight(node)?);
                Instruction::GatedNorm(GatedNorm { gate, weight, out: self.out(node, 0)? })
            }
            Op::GatherRows => Instruction::GatherRows(GatherRows { out: self.out(node, 0)? }),
            Op::AllReduce => self.collective(CollectiveKind::AllReduce, self.out(node, 0)?),
            Op::SendRows => self.collective(CollectiveKind::SendRows, self.input(node, 0)?),
            Op::ReceiveRows => self.collective(CollectiveKind::ReceiveRows, self.out(node, 0)?),
            Op::MlaAttention
            | Op::ExpertMlp
            | Op::KvLoraDecompress
            | Op::PartialRopeConcat
            | Op::KeyValueStore => {
                return internal(format!("{} was not lowered", node.op.word()));
            }
            _ => match self.elementwise(node)? {
                Some(elementwise) => Instruction::Elementwise(elementwise),
                None => self.attention(node)?,
            },
        }))
    }

    /// The indices of a node's weights. An error if there are not exactly `N`.
    fn weights<const N: usize>(&self, node: &Node) -> Result<[usize; N], BackendError> {
        let weights: Vec<usize> = node.weights.iter().map(|(_, id)| (self.weight_of)(*id)).collect();
        match weights.try_into() {
            Ok(weights) => Ok(weights),
            Err(_) => internal(format!("{} needs {N} weights", node.op.word())),
        }
    }

    /// Checks that the node overwrites its first input. Instructions that work in place have no
    /// input of their own.
    fn in_place(&self, node: &Node) -> Result<(), BackendError> {
        let (input, out) = (self.input(node, 0)?, self.out(node, 0)?);
        if (input.buffer, input.offset) == (out.buffer, out.offset) {
            return Ok(());
        }
        internal(format!("{} is not in place", node.op.word()))
    }

    fn log_decay(&self, node: &Node, bound: Option<f32>) -> Result<Instruction, BackendError> {
        let [rates, bias] = self.weights(node)?;
        let log_rates = node.weight("a_log").is_some();
        let (input, out) = (self.input(node, 0)?, self.out(node, 0)?);
        Ok(Instruction::LogDecay(LogDecay { input, rates, log_rates, bias, bound, out }))
    }

    /// The instruction that adds an adapter's term.
    fn adapter(&self, node: &Node) -> Result<Instruction, BackendError> {
        self.in_place(node)?;
        let b = node.weight("lora_b").map(|id| self.plan.ir.weight(id));
        let Some(of) = b.and_then(|weight| weight.adapter) else {
            return internal(format!("{} has no adapter matrix", node.op.word()));
        };
        let (input, out) = (self.input(node, 1)?, self.out(node, 0)?);
        if node.op == Op::LoraAdd {
            let [product] = self.products(node)?[..] else {
                return internal("lora_add needs one weight".into());
            };
            return Ok(Instruction::AdapterSum(AdapterSum { low: input, product, of, out }));
        }
        let [a, b] = self.weights(node)?;
        let side = if node.op == Op::LoraAbsorbK { AdapterSide::Keys } else { AdapterSide::Values };
        Ok(Instruction::AdapterHeads(AdapterHeads { side, input, a, b, of, out }))
    }

    /// The instruction of a node with an elementwise kernel. None for other kernels.
    fn elementwise(&self, node: &Node) -> Result<Option<Elementwise>, BackendError> {
        let bound = node.kernels.first().map(|bound| latent_kernels::table()[bound.index].1);
        let Some(KernelFn::Elementwise { kernel, overwrites }) = bound else { return Ok(None) };
        let other = (0..node.inputs.len()).find(|i| *i != overwrites);
        Ok(Some(Elementwise {
            kernel,
            overwritten: self.input(node, overwrites)?,
            other: other.map(|i| self.input(node, i)).transpose()?,
            factor: node.op.factor().unwrap_or(1.0) as f32,
            out: self.out(node, 0)?,
        }))
    }

    fn collective(&self, kind: CollectiveKind, value: OperandView) -> Instruction {
        Instruction::Collective(RankCollective { kind, value })
    }

    fn same_phase(&self, a: usize, b: usize) -> bool {
        self.plan.phases[a] == self.plan.phases[b]
    }

    fn experts(&self, node: &Node, index: usize) -> Result<Instruction, BackendError> {
        let (products, adapters) = self.expert_products(node)?;
        if node.op == Op::ExpertGateUp {
            let made = node.inputs.get(1).and_then(|ids| self.plan.ir.maker(*ids));
            let routed_here = made.is_some_and(|maker| self.same_phase(maker, index));
            return Ok(Instruction::ExpertGateUp(ExpertGateUp {
                input: self.input(node, 0)?,
                norm: self.norm(node),
                topk_ids: if routed_here { None } else { Some(self.input(node, 1)?) },
                products,
                adapters,
                out: self.out(node, 0)?,
            }));
        }
        let (scale, add) = match node.epilogue {
            Epilogue::AddTo(scale) => (scale as f32, true),
            _ => (1.0, false),
        };
        Ok(Instruction::ExpertDown(ExpertDown {
            input: self.input(node, 0)?,
            topk_ids: self.input(node, 1)?,
            topk_weights: self.input(node, 2)?,
            products,
            adapters,
            scale,
            add,
            out: self.out(node, 0)?,
        }))
    }

    /// The products of an experts' node that read its input, and its adapters. The products are
    /// those with the node's own weights, followed by those with A of each adapter.
    fn expert_products(&self, node: &Node) -> Result<(Vec<WeightKernel>, Vec<ExpertAdapter>), BackendError> {
        let all = self.products(node)?;
        let slots = || node.weights.iter().map(|(slot, _)| slot.as_str());
        let is_own = |slot: &str| adapted_slot(slot).is_none();
        let own: Vec<&str> = slots().filter(|slot| is_own(slot)).collect();
        let mut products: Vec<WeightKernel> =
            slots().zip(&all).filter(|(slot, _)| is_own(slot)).map(|(_, product)| *product).collect();
        let matrices: Vec<_> = node.weights.iter().zip(all).filter(|((slot, _), _)| !is_own(slot)).collect();
        let mut adapters = Vec::new();
        // The pass that adds adapters appends A and B of each in turn.
        for pair in matrices.chunks(2) {
            let [((slot, a_id), a), ((_, b_id), b)] = pair else {
                return internal("an adapter of experts without A or B".into());
            };
            let target = own.iter().position(|own| Some(*own) == adapted_slot(slot));
            let (Some(target), Some(of)) = (target, self.plan.ir.weight(*b_id).adapter) else {
                return internal(format!("{slot} is for a weight that the node does not have"));
            };
            let rank = self.plan.ir.weight(*a_id).outputs();
            adapters.push(ExpertAdapter { target, a: products.len(), b: *b, rank, of });
            products.push(*a);
        }
        if own.is_empty() {
            return internal("experts without weights".into());
        }
        Ok((products, adapters))
    }

    fn attention(&self, node: &Node) -> Result<Instruction, BackendError> {
        let rotate = node.prologue.rope;
        Ok(match node.op {
            Op::LatentStore => Instruction::LatentStore(LatentStore {
                latent: self.input(node, 0)?,
                norm: self.norm(node),
                key: self.input_at(node, "k_rope")?,
                rotate,
                kv_layer: self.kv_layer(node)?,
            }),
            Op::ExpandedStore => Instruction::ExpandedStore(ExpandedStore {
                latent: self.input(node, 0)?,
                key: self.input_at(node, "k_rope")?,
                rotate,
                kv: self.kv(node)?,
                kv_layer: self.kv_layer(node)?,
            }),
            Op::IndexStore => Instruction::IndexStore(IndexStore {
                key: self.input(node, 0)?,
                norm: self.weights(node)?,
                kv_layer: self.kv_layer(node)?,
            }),
            Op::IndexSelect => Instruction::IndexSelect(IndexSelect {
                query: self.input(node, 0)?,
                weights: self.input(node, 1)?,
                out: self.out(node, 0)?,
                kv_layer: self.kv_layer(node)?,
            }),
            Op::AbsorbK => Instruction::AbsorbK(AbsorbK {
                q_nope: self.input(node, 0)?,
                q_rope: self.input_at(node, "q_rope")?,
                rotate,
                kv: self.kv(node)?,
                out: self.out(node, 0)?,
            }),
            Op::AttendLatent | Op::AttendSeparate => Instruction::AttendLatent(AttendLatent {
                query: self.input(node, 0)?,
                selected: self.input_at(node, "selected")?,
                out: self.out(node, 0)?,
                partials: (node.epilogue == Epilogue::KvSplits).then(|| self.out(node, 1)).transpose()?,
                kv_layer: self.kv_layer(node)?,
                kernel: self.attend(node)?,
            }),
            Op::AbsorbV => Instruction::AbsorbV(AbsorbV {
                input: self.input(node, 0)?,
                partials: node.prologue.kv_splits.then(|| self.input(node, 1)).transpose()?,
                kv: self.kv(node)?,
                out: self.out(node, 0)?,
            }),
            Op::AttendExpanded => {
                let kv_layer = self.kv_layer(node)?;
                let kind = node.kv_layer.map(|id| self.plan.ir.kv_layers[id.0].kind);
                let latent = kind == Some(KvLayerKind::Latent);
                Instruction::AttendExpanded(AttendExpanded {
                    q_nope: self.input(node, 0)?,
                    q_rope: self.input_at(node, "q_rope")?,
                    selected: self.input_at(node, "selected")?,
                    kv: if latent { Some(self.kv(node)?) } else { None },
                    out: self.out(node, 0)?,
                    kv_layer,
                    kernels: self.expanded_kernels(node)?,
                })
            }
            _ => return internal(format!("{} has no instruction", node.op.word())),
        })
    }
}
