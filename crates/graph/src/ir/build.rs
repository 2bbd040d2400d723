//! From a circuit and a config to the IR.

use super::{
    Ir, KvLayer, KvLayerId, KvLayerKind, ModelSpan, Node, Op, RowCount, Value, ValueId, ValueStorage,
    WeightId,
};
use crate::circuit::{
    AdapterMatrices, Block, BlockKind, Circuit, ConfigVars, LORA_A, LORA_B, OpSpec, StagePair, StageValue,
    TensorIndex, Weight,
};
use crate::config::ModelConfig;
use crate::error::{CircuitError, GraphError};
use crate::ops::NodeConstruction;
use latent_types::ValueType;
use std::collections::HashMap;

impl Ir {
    /// Instantiates the circuit of `config` over `span`; the tensors of the file fill the weight slots.
    ///
    /// # Errors
    /// A missing tensor, a wrong shape, or a circuit that contradicts itself.
    pub fn build(
        config: &ModelConfig,
        span: &ModelSpan,
        tensors: &dyn TensorIndex,
    ) -> Result<Ir, GraphError> {
        Ir::build_with(Circuit::named(&config.circuit)?, config, span, tensors)
    }

    /// The same with a circuit that is not built in.
    pub fn build_with(
        circuit: &Circuit,
        config: &ModelConfig,
        span: &ModelSpan,
        tensors: &dyn TensorIndex,
    ) -> Result<Ir, GraphError> {
        circuit.check()?;
        let stages = circuit.stage_pair(span.mtp)?;
        // the blocks around an MTP layer have weights of that layer
        let around = span.mtp.then_some(config.layers);
        let mut builder = Builder {
            circuit,
            tensors,
            ir: Ir::default(),
            block: "",
            names: HashMap::new(),
            carried: HashMap::new(),
            filled: HashMap::new(),
            layer: around,
            vars: ConfigVars::of(config, around),
        };
        let mut scope = builder.source(config, span, &stages);
        if span.embed {
            for block in &stages.before {
                builder.block(block, &mut scope)?;
            }
        }
        let mut residual = builder.made(&scope, stages.residual, "hidden")?;
        for layer in span.layers.clone() {
            builder.layer = Some(layer);
            builder.vars = ConfigVars::of(config, Some(layer));
            let mut scope = ValueScope::from([(stages.residual.to_owned(), residual)]);
            for block in circuit.spec_of(&builder.vars, layer)?.blocks() {
                builder.block(block, &mut scope)?;
            }
            residual = builder.made(&scope, stages.residual, "hidden")?;
        }
        builder.layer = around;
        builder.vars = ConfigVars::of(config, around);
        if !span.head {
            return Ok(builder.finish(residual, "hidden"));
        }
        let mut scope = ValueScope::from([(stages.taken.to_owned(), residual)]);
        for block in &stages.behind {
            builder.block(block, &mut scope)?;
        }
        let logits = builder.made(&scope, stages.logits, "logits")?;
        // terms of adapters are added in place
        let root = builder.ir.root(logits);
        builder.ir.values[root.0].storage = ValueStorage::Logits;
        Ok(builder.finish(logits, "logits"))
    }
}

/// What each name means.
type ValueScope = HashMap<String, ValueId>;

struct Builder<'a> {
    circuit: &'a Circuit,
    tensors: &'a dyn TensorIndex,
    ir: Ir,
    /// The block that is being built.
    block: &'a str,
    /// What each name means now, inside of the block.
    names: ValueScope,
    /// Values of earlier layers that a block carries on ([`Block::carried`]).
    carried: ValueScope,
    /// Slots already filled, so that a tied embedding is one weight.
    filled: HashMap<(String, Option<usize>), WeightId>,
    layer: Option<usize>,
    vars: ConfigVars,
}

impl Builder<'_> {
    /// What a span starts from.
    fn source(&mut self, config: &ModelConfig, span: &ModelSpan, stages: &StagePair<'_>) -> ValueScope {
        let residual = [(stages.residual, StageValue::Hidden)];
        let inputs = if span.embed { &stages.inputs[..] } else { &residual };
        let define = |(name, value): &(&str, StageValue)| {
            let (dtype, width, storage) = match value {
                StageValue::Tokens => (ValueType::U32, 1, ValueStorage::Tokens),
                _ => (ValueType::F32, config.hidden_size, ValueStorage::Hidden),
            };
            ((*name).to_owned(), self.define(name, dtype, 1, width, storage))
        };
        inputs.iter().map(define).collect()
    }

    /// Builds a block: it sees its inputs in `scope`, and leaves its outputs there.
    fn block(&mut self, name: &str, scope: &mut ValueScope) -> Result<(), GraphError> {
        let Some((name, block)) = self.circuit.blocks.get_key_value(name) else { return Ok(()) };
        self.block = name;
        self.names.clear();
        for value in &block.inputs {
            let (block, value) = (name.clone(), value.clone());
            let Some(id) = scope.get(&value) else {
                return Err(self.circuit.error(CircuitError::MissingInput { block, value }));
            };
            self.names.insert(value, *id);
        }
        for value in &block.carried {
            if let Some(id) = self.carried.get(value) {
                self.names.insert(value.clone(), *id);
            }
        }
        if let Some(layer) = self.layer {
            self.ir.streams.extend(self.circuit.streams(name, layer, &self.vars)?);
        }
        self.ops(&block.ops)?;
        for value in &block.carried {
            if let Some(id) = self.names.get(value) {
                self.carried.insert(value.clone(), *id);
            }
        }
        for value in &block.outputs {
            let before = scope.get(value).filter(|_| block.inputs.contains(value));
            match self.names.get(value).copied() {
                Some(id) if before != Some(&id) => {
                    if block.kind == BlockKind::Embed {
                        self.outlive(id);
                    }
                    scope.insert(value.clone(), id)
                }
                _ => {
                    let (block, value) = (name.clone(), value.clone());
                    return Err(self.circuit.error(CircuitError::MissingOutput { block, value }));
                }
            };
        }
        Ok(())
    }

    /// Stores a value in the residual stream, which outlives the plan's arena.
    fn outlive(&mut self, id: ValueId) {
        let root = self.ir.root(id);
        if self.ir.value(root).storage == ValueStorage::Own {
            self.ir.values[root.0].storage = ValueStorage::Hidden;
        }
    }

    fn define(
        &mut self,
        name: &str,
        dtype: ValueType,
        heads: usize,
        width: usize,
        storage: ValueStorage,
    ) -> ValueId {
        let value = Value {
            name: name.to_owned(),
            layer: self.layer,
            dtype,
            rows: RowCount::Rows,
            heads,
            width,
            storage,
        };
        let id = self.ir.add_value(value);
        self.names.insert(name.to_owned(), id);
        id
    }

    fn wrong<T>(&self, problem: String) -> Result<T, GraphError> {
        let problem = format!("block {}: {problem}", self.block);
        Err(self.circuit.error(CircuitError::Contradiction(problem)))
    }

    fn ops(&mut self, specs: &[OpSpec]) -> Result<(), GraphError> {
        for spec in specs {
            if self.vars.hold(&spec.when, &self.circuit.name)? {
                self.op(spec)?;
            }
        }
        Ok(())
    }

    fn input(&self, spec: &OpSpec, index: usize) -> Result<ValueId, GraphError> {
        let Some(name) = spec.inputs.get(index) else {
            return self.wrong(format!("{} needs {} inputs", spec.op, index + 1));
        };
        match self.names.get(name) {
            Some(id) => Ok(*id),
            None => {
                let (block, op, value) = (self.block.to_owned(), spec.op.clone(), name.clone());
                let carries = |block: &Block| block.carried.contains(&value);
                if let Some(layer) = self.layer
                    && self.circuit.blocks.get(self.block).is_some_and(carries)
                {
                    return Err(GraphError::OtherSpan { layer, value });
                }
                Err(self.circuit.error(CircuitError::UnknownValue { block, op, value }))
            }
        }
    }

    fn output<'s>(&self, spec: &'s OpSpec, index: usize) -> Result<&'s str, GraphError> {
        match spec.outputs.get(index) {
            Some(name) => Ok(name),
            None => self.wrong(format!("{} makes {} values", spec.op, index + 1)),
        }
    }

    /// The weights of an operation whose slots exist under the current config variables; of one that the file leaves out, what stands in.
    fn weights(&mut self, spec: &OpSpec) -> Result<Vec<(String, WeightId)>, GraphError> {
        let mut found = Vec::new();
        for slot in &spec.weights {
            let instead = self.circuit.slot(self.block, slot).map_or(&[][..], |(slot, _)| &slot.instead);
            for slot in std::iter::once(slot).chain(instead) {
                if let Some(id) = self.weight(slot)? {
                    found.push((slot.clone(), id));
                    break;
                }
            }
        }
        Ok(found)
    }

    /// The weight of a slot, filled once; none where its conditions do not hold, or it is optional and not in the file.
    fn weight(&mut self, slot: &str) -> Result<Option<WeightId>, GraphError> {
        let of_layer = self.circuit.slot(self.block, slot).is_some_and(|(_, of_layer)| of_layer);
        let key = (slot.to_owned(), if of_layer { self.layer } else { None });
        if let Some(id) = self.filled.get(&key) {
            return Ok(Some(*id));
        }
        let place = (self.block, slot);
        let Some(weight) = self.circuit.fill(place, self.layer, &self.vars, self.tensors)? else {
            return Ok(None);
        };
        self.ir.weights.push(weight);
        let id = WeightId(self.ir.weights.len() - 1);
        self.filled.insert(key, id);
        Ok(Some(id))
    }

    fn push(
        &mut self,
        op: Op,
        inputs: Vec<ValueId>,
        outputs: Vec<ValueId>,
        weights: Vec<(String, WeightId)>,
    ) {
        let mut node = Node::new(op, self.layer, inputs, outputs);
        node.weights = weights;
        self.ir.nodes.push(node);
    }

    fn op(&mut self, spec: &OpSpec) -> Result<(), GraphError> {
        let weights = self.weights(spec)?;
        let factor = self.vars.factor(spec, &self.circuit.name)?;
        let input = self.input(spec, 0)?;
        match spec.op.as_str() {
            "embed" => {
                let width = self.width_of(&weights, spec)?.1;
                let out = self.define(self.output(spec, 0)?, ValueType::F32, 1, width, ValueStorage::Own);
                self.push(Op::Embed { scale: factor }, vec![input], vec![out], weights);
            }
            "linear" => {
                let out = self.linear(input, &weights, self.output(spec, 0)?, spec)?;
                self.names.insert(spec.outputs[0].clone(), out);
            }
            "split" => self.split(spec, input)?,
            "concat" => {
                let inputs = vec![input, self.input(spec, 1)?];
                let width = inputs.iter().map(|id| self.ir.value(*id).row_width()).sum();
                let out = self.define(self.output(spec, 0)?, ValueType::F32, 1, width, ValueStorage::Own);
                self.push(Op::Concat, inputs, vec![out], weights);
            }
            "mla_attention" => self.attention(spec, weights)?,
            "index_store" => self.push(Op::IndexStore, vec![input], Vec::new(), weights),
            "index_select" => {
                let inputs = vec![input, self.input(spec, 1)?];
                let Some(topk) = self.vars.dimension("index_topk") else {
                    return self.wrong("index_select without an indexer".into());
                };
                let out = self.define(self.output(spec, 0)?, ValueType::U32, 1, topk, ValueStorage::Own);
                self.push(Op::IndexSelect, inputs, vec![out], weights);
            }
            "short_conv" | "softplus_decay" | "bounded_decay" | "delta_rule" => {
                self.delta_attention(spec, factor, weights)?;
            }
            "route" => self.route(spec, input, weights)?,
            "expert_mlp" => {
                let inputs = vec![input, self.input(spec, 1)?, self.input(spec, 2)?];
                let width = self.ir.value(input).width;
                let out = self.define(self.output(spec, 0)?, ValueType::F32, 1, width, ValueStorage::Own);
                let weights = self.with_expert_adapters(weights)?;
                self.push(Op::ExpertMlp, inputs, vec![out], weights);
            }
            "mlp" => self.mlp(spec, input, &weights)?,
            word => match Op::of_circuits(word).map(|op| (op, op.spec().built)) {
                Some((op, built @ (NodeConstruction::LikeFirst | NodeConstruction::InPlace))) => {
                    self.plain(spec, (op.with_factor(factor), built), weights)?;
                }
                _ => return self.wrong(format!("operation {word:?} is unknown")),
            },
        }
        Ok(())
    }

    /// One node, whose result has the shape of its first input.
    fn plain(
        &mut self,
        spec: &OpSpec,
        (op, built): (Op, NodeConstruction),
        weights: Vec<(String, WeightId)>,
    ) -> Result<(), GraphError> {
        let inputs: Vec<ValueId> =
            (0..op.inputs().len()).map(|i| self.input(spec, i)).collect::<Result<_, _>>()?;
        let first = self.ir.value(inputs[0]);
        let (heads, width) = (first.heads, first.width);
        let storage =
            if built == NodeConstruction::InPlace { self.over(inputs[0]) } else { ValueStorage::Own };
        let out = self.define(self.output(spec, 0)?, ValueType::F32, heads, width, storage);
        self.push(op, inputs, vec![out], weights);
        Ok(())
    }

    /// Outputs and inputs of the one weight that an operation has.
    fn width_of(&self, weights: &[(String, WeightId)], spec: &OpSpec) -> Result<(usize, usize), GraphError> {
        match weights {
            [(_, id)] => Ok((self.ir.weight(*id).outputs(), self.ir.weight(*id).inputs())),
            _ => self.wrong(format!(
                "{} {:?} needs exactly one weight, it has {}",
                spec.op,
                spec.outputs,
                weights.len()
            )),
        }
    }

    fn linear(
        &mut self,
        input: ValueId,
        weights: &[(String, WeightId)],
        name: &str,
        spec: &OpSpec,
    ) -> Result<ValueId, GraphError> {
        let (outputs, inputs) = self.width_of(weights, spec)?;
        if inputs != self.ir.value(input).row_width() {
            let width = self.ir.value(input).row_width();
            return self
                .wrong(format!("{name}: the weight takes {inputs} elements, but the row has {width}"));
        }
        let out = self.define(name, ValueType::F32, 1, outputs, ValueStorage::Own);
        self.push(Op::Linear, vec![input], vec![out], weights.to_vec());
        match weights {
            [(slot, _)] => self.adapted(input, out, slot, [outputs, inputs]),
            _ => Ok(out),
        }
    }

    /// The result of a matmul with the terms of all adapters of its weight.
    fn adapted(
        &mut self,
        input: ValueId,
        mut out: ValueId,
        slot: &str,
        shape: [usize; 2],
    ) -> Result<ValueId, GraphError> {
        for AdapterMatrices { a, b } in
            self.circuit.adapters_of((self.block, slot), self.layer, &shape, self.tensors)?
        {
            let value = |name: String, width, storage| Value {
                name,
                layer: self.layer,
                dtype: ValueType::F32,
                rows: RowCount::Rows,
                heads: 1,
                width,
                storage,
            };
            let name = &self.ir.value(out).name;
            let low = value(format!("{name}_low"), a.outputs(), ValueStorage::Own);
            let sum = value(name.clone(), shape[0], self.over(out));
            let (low, sum) = (self.ir.add_value(low), self.ir.add_value(sum));
            let [a, b] = [a, b].map(|weight| self.add_weight(weight));
            self.push(Op::Linear, vec![input], vec![low], vec![(LORA_A.to_owned(), a)]);
            self.push(Op::LoraAdd, vec![out, low], vec![sum], vec![(LORA_B.to_owned(), b)]);
            out = sum;
        }
        Ok(out)
    }

    fn add_weight(&mut self, weight: Weight) -> WeightId {
        self.ir.weights.push(weight);
        WeightId(self.ir.weights.len() - 1)
    }

    fn split(&mut self, spec: &OpSpec, input: ValueId) -> Result<(), GraphError> {
        let block = self.block;
        let size = |text: &str| {
            self.vars.size(
                text,
                format_args!("block {block}, split of {:?}", spec.inputs),
                &self.circuit.name,
            )
        };
        let heads = size(spec.heads.as_deref().unwrap_or("1"))?;
        let sizes: Vec<usize> = spec.sizes.iter().map(|text| size(text)).collect::<Result<_, _>>()?;
        let row = self.ir.value(input).row_width();
        let sum = sizes.iter().try_fold(0usize, |sum, size| sum.checked_add(*size));
        let whole = sum.and_then(|sum| sum.checked_mul(heads));
        if whole != Some(row) || row == 0 || sizes.contains(&0) || sizes.len() != spec.outputs.len() {
            return self.wrong(format!("split of {:?}: {heads} × {sizes:?} is not {row}", spec.inputs));
        }
        // from here on the value is seen as cut into heads
        let mut seen = input;
        loop {
            self.ir.values[seen.0].heads = heads;
            self.ir.values[seen.0].width = row / heads;
            match self.ir.value(seen).storage {
                ValueStorage::View { of, offset: 0 } if self.ir.value(of).row_width() == row => seen = of,
                _ => break,
            }
        }
        let mut offset = 0;
        let mut outputs = Vec::new();
        for (name, size) in spec.outputs.iter().zip(sizes) {
            outputs.push(self.define(
                name,
                ValueType::F32,
                heads,
                size,
                ValueStorage::View { of: input, offset },
            ));
            offset += size;
        }
        self.push(Op::Split, vec![input], outputs, Vec::new());
        Ok(())
    }

    fn attention(&mut self, spec: &OpSpec, weights: Vec<(String, WeightId)>) -> Result<(), GraphError> {
        let count = Op::MlaAttention.inputs_of(spec.inputs.len()).count();
        let inputs: Vec<ValueId> = (0..count).map(|i| self.input(spec, i)).collect::<Result<_, _>>()?;
        let v = self.vars.size("v", format_args!("mla_attention"), &self.circuit.name)?;
        let heads = self.ir.value(inputs[0]).heads;
        let mut weights = weights;
        weights.extend(self.adapters_of_kv_b(heads, v)?);
        let out = self.define(self.output(spec, 0)?, ValueType::F32, heads, v, ValueStorage::Own);
        self.push(Op::MlaAttention, inputs, vec![out], weights);
        Ok(())
    }

    /// The matrices of all adapters of `kv_b`, which a file may have in two halves.
    fn adapters_of_kv_b(&mut self, heads: usize, v: usize) -> Result<Vec<(String, WeightId)>, GraphError> {
        if self.tensors.adapters().is_empty() {
            return Ok(Vec::new());
        }
        let size = |name: &str| self.vars.size(name, format_args!("mla_attention"), &self.circuit.name);
        let shape = [heads * (size("nope")? + v), size("kv_lora")?];
        let found = self.circuit.adapters_of((self.block, "kv_b"), self.layer, &shape, self.tensors)?;
        let mut weights = Vec::new();
        for AdapterMatrices { a, b } in found {
            weights.push((LORA_A.to_owned(), self.add_weight(a)));
            weights.push((LORA_B.to_owned(), self.add_weight(b)));
        }
        Ok(weights)
    }

    /// Weights of routed experts, and behind them the matrices of all adapters of each: its A, then its B.
    fn with_expert_adapters(
        &mut self,
        mut weights: Vec<(String, WeightId)>,
    ) -> Result<Vec<(String, WeightId)>, GraphError> {
        if self.tensors.adapters().is_empty() {
            return Ok(weights);
        }
        for (slot, id) in weights.clone() {
            let shape = self.ir.weight(id).shape.clone();
            let found = self.circuit.adapters_of((self.block, &slot), self.layer, &shape, self.tensors)?;
            for matrix in found.into_iter().flat_map(|AdapterMatrices { a, b }| [a, b]) {
                weights.push((matrix.slot.clone(), self.add_weight(matrix)));
            }
        }
        Ok(weights)
    }

    /// An operation of delta attention: its results are cut into heads, and it may have a recurrent state.
    fn delta_attention(
        &mut self,
        spec: &OpSpec,
        factor: f64,
        weights: Vec<(String, WeightId)>,
    ) -> Result<(), GraphError> {
        let Some(op) = Op::of_circuits(&spec.op) else {
            return self.wrong(format!("operation {:?} is unknown", spec.op));
        };
        let inputs: Vec<ValueId> =
            (0..op.inputs().len()).map(|i| self.input(spec, i)).collect::<Result<_, _>>()?;
        let size = |name: &str| self.vars.size(name, format_args!("{}", spec.op), &self.circuit.name);
        let (heads, width) = (size("kda_heads")?, size("kda_width")?);
        let count = Node::new(op, self.layer, inputs.clone(), Vec::new()).output_count();
        let mut outputs = Vec::with_capacity(count);
        for i in 0..count {
            outputs.push(self.define(self.output(spec, i)?, ValueType::F32, heads, width, ValueStorage::Own));
        }
        let kv_layer = match op.spec().kv.layers.first() {
            Some(kind) => Some(self.state(spec, *kind)?),
            None => None,
        };
        self.push(op.with_factor(factor), inputs, outputs, weights);
        if let Some(node) = self.ir.nodes.last_mut() {
            node.kv_layer = kv_layer;
        }
        Ok(())
    }

    /// The KV layer of the recurrent state that an operation changes.
    fn state(&mut self, spec: &OpSpec, kind: KvLayerKind) -> Result<KvLayerId, GraphError> {
        let stated = self.ir.streams.iter().find(|stream| {
            Some(stream.layer) == self.layer && stream.written_by == spec.op && stream.state.is_some()
        });
        let Some((layer, Some(state))) = stated.map(|stream| (stream.layer, stream.state)) else {
            return self.wrong(format!("{} changes a state that no stream under `cache` states", spec.op));
        };
        let width = state.elements();
        self.ir.kv_layers.push(KvLayer { kind, layer, width, rope: 0, state: Some(state) });
        Ok(KvLayerId(self.ir.kv_layers.len() - 1))
    }

    /// A router is a matmul to logits, then the top-k selection.
    fn route(
        &mut self,
        spec: &OpSpec,
        input: ValueId,
        weights: Vec<(String, WeightId)>,
    ) -> Result<(), GraphError> {
        let Some(used) = self.vars.dimension("num_experts_per_tok") else {
            return self.wrong("route without experts".into());
        };
        let (router, bias) = weights.split_at(weights.len().min(1));
        let logits = self.linear(input, router, "router_logits", spec)?;
        let topk_ids = self.define(self.output(spec, 0)?, ValueType::U32, 1, used, ValueStorage::Own);
        let topk_weights = self.define(self.output(spec, 1)?, ValueType::F32, 1, used, ValueStorage::Own);
        self.push(Op::Route, vec![logits], vec![topk_ids, topk_weights], bias.to_vec());
        Ok(())
    }

    /// Two or three linear maps with the activation between.
    fn mlp(
        &mut self,
        spec: &OpSpec,
        input: ValueId,
        weights: &[(String, WeightId)],
    ) -> Result<(), GraphError> {
        let hidden = match weights {
            [gate, up, _] => {
                let gate = self.linear(input, std::slice::from_ref(gate), "gate", spec)?;
                let up = self.linear(input, std::slice::from_ref(up), "up", spec)?;
                let width = self.ir.value(up).width;
                let out = self.define("activated", ValueType::F32, 1, width, ValueStorage::Own);
                self.push(Op::SiluMul, vec![gate, up], vec![out], Vec::new());
                out
            }
            [up, _] => {
                let up = self.linear(input, std::slice::from_ref(up), "up", spec)?;
                let width = self.ir.value(up).width;
                let out = self.define("activated", ValueType::F32, 1, width, ValueStorage::Own);
                self.push(Op::Relu2, vec![up], vec![out], Vec::new());
                out
            }
            _ => return self.wrong(format!("mlp needs two or three weights, it has {}", weights.len())),
        };
        let out = self.linear(hidden, &weights[weights.len() - 1..], self.output(spec, 0)?, spec)?;
        self.names.insert(spec.outputs[0].clone(), out);
        Ok(())
    }

    /// Storage that is the whole of `value`, overwritten.
    fn over(&self, value: ValueId) -> ValueStorage {
        let mut of = value;
        while let ValueStorage::View { of: parent, offset: 0 } = self.ir.value(of).storage {
            if (self.ir.value(parent).heads, self.ir.value(parent).width)
                != (self.ir.value(of).heads, self.ir.value(of).width)
            {
                break;
            }
            of = parent;
        }
        ValueStorage::View { of, offset: 0 }
    }

    /// What a stage gives out, under the name that its blocks have for it.
    fn made(&self, scope: &ValueScope, value: &str, result: &str) -> Result<ValueId, GraphError> {
        let problem = || format!("no block makes {value:?}, the {result} of its stage");
        let made = scope.get(value).copied();
        made.ok_or_else(|| self.circuit.error(CircuitError::Contradiction(problem())))
    }

    fn finish(mut self, result: ValueId, name: &str) -> Ir {
        self.ir.outputs.push((name.to_owned(), result));
        self.ir
    }
}
