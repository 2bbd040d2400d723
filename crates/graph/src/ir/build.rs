//! Builds the IR from a circuit and a config.

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
    /// Instantiates the circuit of `config` over `span` and fills weight slots with tensors of the
    /// file.
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

    /// Like [`build`](Self::build), with a circuit that need not be built in.
    pub fn build_with(
        circuit: &Circuit,
        config: &ModelConfig,
        span: &ModelSpan,
        tensors: &dyn TensorIndex,
    ) -> Result<Ir, GraphError> {
        // `--circuit FILE` can name any circuit. The lookups below rely on names that exist.
        circuit.check()?;
        // An MTP layer has its own pair of stages, which also start with a layer and end in logits.
        let stages = circuit.stage_pair(span.mtp)?;
        // The blocks before and after an MTP layer have weights of that layer (`eh_proj`, `enorm`).
        // The first MTP layer follows the decoder's last layer, so its index is `config.layers`.
        let outer_layer = span.mtp.then_some(config.layers);
        let mut builder = Builder {
            circuit,
            tensors,
            ir: Ir::default(),
            block: "",
            names: HashMap::new(),
            carried: HashMap::new(),
            filled: HashMap::new(),
            layer: outer_layer,
            vars: ConfigVars::of(config, outer_layer),
        };
        let mut scope = builder.span_inputs(config, span, &stages);
        if span.embed {
            for block in &stages.before {
                builder.block(block, &mut scope)?;
            }
        }
        let mut residual = builder.stage_result(&scope, stages.residual, "hidden")?;
        for layer in span.layers.clone() {
            builder.layer = Some(layer);
            builder.vars = ConfigVars::of(config, Some(layer));
            // Every layer starts with a fresh scope: only the residual stream enters, so a circuit
            // cannot read another layer's values by accident. `carried` is the exception.
            let mut scope = ValueScope::from([(stages.residual.to_owned(), residual)]);
            for block in circuit.spec_of(&builder.vars, layer)?.blocks() {
                builder.block(block, &mut scope)?;
            }
            residual = builder.stage_result(&scope, stages.residual, "hidden")?;
        }
        builder.layer = outer_layer;
        builder.vars = ConfigVars::of(config, outer_layer);
        // A span without a head ends in the residual stream, which the next stage or rank reads.
        if !span.head {
            return Ok(builder.finish(residual, "hidden"));
        }
        let mut scope = ValueScope::from([(stages.head_input.to_owned(), residual)]);
        for block in &stages.head_blocks {
            builder.block(block, &mut scope)?;
        }
        let logits = builder.stage_result(&scope, stages.logits, "logits")?;
        // With an adapter of lm_head, the logits are a view of the matmul's result, because adapter
        // terms are added in place. The storage of the root decides.
        let root = builder.ir.root(logits);
        builder.ir.values[root.0].storage = ValueStorage::Logits;
        Ok(builder.finish(logits, "logits"))
    }
}

/// Names of values, as blocks use them.
type ValueScope = HashMap<String, ValueId>;

struct Builder<'a> {
    circuit: &'a Circuit,
    tensors: &'a dyn TensorIndex,
    ir: Ir,
    /// Name of the block being built.
    block: &'a str,
    /// Names visible inside the block. A later output hides an earlier value of the same name.
    names: ValueScope,
    /// The latest values that earlier layers passed on ([`Block::carried`]).
    carried: ValueScope,
    /// Weights by slot and layer. A tied embedding is read by two operations but loaded once.
    filled: HashMap<(String, Option<usize>), WeightId>,
    layer: Option<usize>,
    vars: ConfigVars,
}

impl Builder<'_> {
    /// The values that enter a span.
    fn span_inputs(&mut self, config: &ModelConfig, span: &ModelSpan, stages: &StagePair<'_>) -> ValueScope {
        // A span that starts in the middle (a later rank, the part behind an offload cut) receives
        // rows of the residual stream instead of tokens.
        let residual = [(stages.residual, StageValue::Hidden)];
        let inputs = if span.embed { &stages.inputs[..] } else { &residual };
        let define = |(name, value): &(&str, StageValue)| {
            let (dtype, width, storage) = match value {
                // One id per row.
                StageValue::Tokens => (ValueType::U32, 1, ValueStorage::Tokens),
                _ => (ValueType::F32, config.hidden_size, ValueStorage::Hidden),
            };
            ((*name).to_owned(), self.define(name, dtype, 1, width, storage))
        };
        inputs.iter().map(define).collect()
    }

    /// Builds a block. It reads its inputs from `scope` and puts its outputs there.
    fn block(&mut self, name: &str, scope: &mut ValueScope) -> Result<(), GraphError> {
        // `check` has refused names of unknown blocks.
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
            // Absent in the first layer, which must produce the value itself.
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
            // An output with the name of an input (the residual stream) must be a new value.
            // Otherwise a block without operations would pass.
            let before = scope.get(value).filter(|_| block.inputs.contains(value));
            match self.names.get(value).copied() {
                Some(id) if before != Some(&id) => {
                    // The next stage reads these rows from its own plan, whose arena is another
                    // one.
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

    /// Stores a value in the residual stream instead of the arena.
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
        // A later value hides an earlier one of the same name.
        self.names.insert(name.to_owned(), id);
        id
    }

    fn contradiction<T>(&self, problem: String) -> Result<T, GraphError> {
        let problem = format!("block {}: {problem}", self.block);
        Err(self.circuit.error(CircuitError::Contradiction(problem)))
    }

    fn ops(&mut self, specs: &[OpSpec]) -> Result<(), GraphError> {
        for spec in specs {
            // Conditions are decided here. An IR has no conditions.
            if self.vars.hold(&spec.when, &self.circuit.name)? {
                self.op(spec)?;
            }
        }
        Ok(())
    }

    fn input(&self, spec: &OpSpec, index: usize) -> Result<ValueId, GraphError> {
        let Some(name) = spec.inputs.get(index) else {
            return self.contradiction(format!("{} needs {} inputs", spec.op, index + 1));
        };
        match self.names.get(name) {
            Some(id) => Ok(*id),
            None => {
                let (block, op, value) = (self.block.to_owned(), spec.op.clone(), name.clone());
                // The value would come from an earlier layer that is not in this span. The circuit
                // is right; the cut between ranks or devices is wrong.
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
            None => self.contradiction(format!("{} makes {} values", spec.op, index + 1)),
        }
    }

    /// The weights of an operation whose slots exist under the current config variables. If the
    /// file omits an optional slot, the first of its `else` slots takes its place.
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

    /// The weight of a slot, filled once. `None` if its conditions do not hold, or if it is
    /// optional and not in the file.
    fn weight(&mut self, slot: &str) -> Result<Option<WeightId>, GraphError> {
        let of_layer = self.circuit.slot(self.block, slot).is_some_and(|(_, of_layer)| of_layer);
        // A model's weight has one entry for all layers, such as a tied embedding or a shared norm.
        let key = (slot.to_owned(), if of_layer { self.layer } else { None });
        if let Some(id) = self.filled.get(&key) {
            return Ok(Some(*id));
        }
        let place = (self.block, slot);
        // The tensor may be missing only if the slot is optional or its conditions do not hold.
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
                // `index_topk` also sets the width of the result: ids of the selected tokens.
                let Some(topk) = self.vars.dimension("index_topk") else {
                    return self.contradiction("index_select without an indexer".into());
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
            // Several nodes, so it has no `Op` and no `NodeConstruction`.
            "mlp" => self.mlp(spec, input, &weights)?,
            // Operations with a regular shape need no rule here: their constants state how to build
            // them.
            word => match Op::of_circuits(word).map(|op| (op, op.spec().built)) {
                Some((op, built @ (NodeConstruction::LikeFirst | NodeConstruction::InPlace))) => {
                    self.plain(spec, (op.with_factor(factor), built), weights)?;
                }
                _ => return self.contradiction(format!("operation {word:?} is unknown")),
            },
        }
        Ok(())
    }

    /// One node whose result has the shape of its first input.
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
            if built == NodeConstruction::InPlace { self.in_place(inputs[0]) } else { ValueStorage::Own };
        let out = self.define(self.output(spec, 0)?, ValueType::F32, heads, width, storage);
        self.push(op, inputs, vec![out], weights);
        Ok(())
    }

    /// Outputs and inputs of the operation's only weight.
    fn width_of(&self, weights: &[(String, WeightId)], spec: &OpSpec) -> Result<(usize, usize), GraphError> {
        match weights {
            [(_, id)] => Ok((self.ir.weight(*id).outputs(), self.ir.weight(*id).inputs())),
            _ => self.contradiction(format!(
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
            return self.contradiction(format!(
                "{name}: the weight takes {inputs} elements, but the row has {width}"
            ));
        }
        let out = self.define(name, ValueType::F32, 1, outputs, ValueStorage::Own);
        self.push(Op::Linear, vec![input], vec![out], weights.to_vec());
        match weights {
            // A matmul with several weights exists only after `fuse_projections`, which runs later.
            [(slot, _)] => self.adapted(input, out, slot, [outputs, inputs]),
            _ => Ok(out),
        }
    }

    /// Adds the terms of all adapters of a weight to a matmul's result.
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
            // Two small products, A then B, instead of merged weights: one batch can mix sequences
            // with different adapters and scales.
            let low = value(format!("{name}_low"), a.outputs(), ValueStorage::Own);
            let sum = value(name.clone(), shape[0], self.in_place(out));
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
        // Checked: sizes come from a user's circuit and a file.
        let whole = sum.and_then(|sum| sum.checked_mul(heads));
        if whole != Some(row) || row == 0 || sizes.contains(&0) || sizes.len() != spec.outputs.len() {
            return self
                .contradiction(format!("split of {:?}: {heads} × {sizes:?} is not {row}", spec.inputs));
        }
        // The value and everything that it is a view of become values with heads, because kernels
        // address a head by `heads` and `width`. The element order does not change.
        let mut seen = input;
        loop {
            self.ir.values[seen.0].heads = heads;
            self.ir.values[seen.0].width = row / heads;
            // A view of a part of a row has another layout than its root, so the walk stops there.
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
        // Adapters of `kv_b` become weights of the attention itself, because absorbed attention has
        // no matmul to which they could be added.
        let mut weights = weights;
        weights.extend(self.adapters_of_kv_b(heads, v)?);
        let out = self.define(self.output(spec, 0)?, ValueType::F32, heads, v, ValueStorage::Own);
        self.push(Op::MlaAttention, inputs, vec![out], weights);
        Ok(())
    }

    /// The matrices of all adapters of `kv_b`. The shape is computed, because a file may store
    /// `kv_b` as two tensors, `k_b` and `v_b`.
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

    /// Weights of routed experts, followed by the matrices of all adapters of each: A, then B.
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

    /// An operation of delta attention. Its results are split into heads, and it may have a
    /// recurrent state.
    fn delta_attention(
        &mut self,
        spec: &OpSpec,
        factor: f64,
        weights: Vec<(String, WeightId)>,
    ) -> Result<(), GraphError> {
        let Some(op) = Op::of_circuits(&spec.op) else {
            return self.contradiction(format!("operation {:?} is unknown", spec.op));
        };
        let inputs: Vec<ValueId> =
            (0..op.inputs().len()).map(|i| self.input(spec, i)).collect::<Result<_, _>>()?;
        let size = |name: &str| self.vars.size(name, format_args!("{}", spec.op), &self.circuit.name);
        let (heads, width) = (size("kda_heads")?, size("kda_width")?);
        // `output_count` depends on the operation alone here, but is a method of nodes.
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

    /// Adds the KV layer of the recurrent state that an operation updates.
    fn state(&mut self, spec: &OpSpec, kind: KvLayerKind) -> Result<KvLayerId, GraphError> {
        let stated = self.ir.streams.iter().find(|stream| {
            Some(stream.layer) == self.layer && stream.written_by == spec.op && stream.state.is_some()
        });
        let Some((layer, Some(state))) = stated.map(|stream| (stream.layer, stream.state)) else {
            return self
                .contradiction(format!("{} changes a state that no stream under `cache` declares", spec.op));
        };
        let width = state.elements();
        self.ir.kv_layers.push(KvLayer { kind, layer, width, rope: 0, state: Some(state) });
        Ok(KvLayerId(self.ir.kv_layers.len() - 1))
    }

    /// A router: a matmul to logits, then the top-k selection. They are two nodes, so that the
    /// matmul gets an ordinary kernel.
    fn route(
        &mut self,
        spec: &OpSpec,
        input: ValueId,
        weights: Vec<(String, WeightId)>,
    ) -> Result<(), GraphError> {
        // The width of the results: ids and weights of the selected experts.
        let Some(used) = self.vars.dimension("num_experts_per_tok") else {
            return self.contradiction("route without experts".into());
        };
        // The bias is for the selection only, so it goes to the `route` node and not to the matmul.
        let (router, bias) = weights.split_at(weights.len().min(1));
        let logits = self.linear(input, router, "router_logits", spec)?;
        let topk_ids = self.define(self.output(spec, 0)?, ValueType::U32, 1, used, ValueStorage::Own);
        let topk_weights = self.define(self.output(spec, 1)?, ValueType::F32, 1, used, ValueStorage::Own);
        self.push(Op::Route, vec![logits], vec![topk_ids, topk_weights], bias.to_vec());
        Ok(())
    }

    /// Two or three linear maps with the activation between them, as separate nodes: passes fuse
    /// gate with up and fold the activation and the residual sum.
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
            // Without a gate the activation is ReLU² (PLM).
            [up, _] => {
                let up = self.linear(input, std::slice::from_ref(up), "up", spec)?;
                let width = self.ir.value(up).width;
                let out = self.define("activated", ValueType::F32, 1, width, ValueStorage::Own);
                self.push(Op::Relu2, vec![up], vec![out], Vec::new());
                out
            }
            _ => {
                return self
                    .contradiction(format!("mlp needs two or three weights, it has {}", weights.len()));
            }
        };
        let out = self.linear(hidden, &weights[weights.len() - 1..], self.output(spec, 0)?, spec)?;
        self.names.insert(spec.outputs[0].clone(), out);
        Ok(())
    }

    /// Storage that overwrites all of `value`.
    fn in_place(&self, value: ValueId) -> ValueStorage {
        let mut of = value;
        // Refers to the root directly: chains of in-place sums would otherwise grow with every
        // layer, and `Ir::root` is recursive.
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

    /// A result of a stage, by the name that its blocks use.
    fn stage_result(&self, scope: &ValueScope, value: &str, result: &str) -> Result<ValueId, GraphError> {
        let problem = || format!("no block makes {value:?}, the {result} of its stage");
        let made = scope.get(value).copied();
        made.ok_or_else(|| self.circuit.error(CircuitError::Contradiction(problem())))
    }

    fn finish(mut self, result: ValueId, name: &str) -> Ir {
        self.ir.outputs.push((name.to_owned(), result));
        self.ir
    }
}
