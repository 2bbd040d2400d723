//! Writes the C code of phases: per operation a comment with shapes and formula, and a call of
//! `runtime/kernels.c`.

use crate::address::{Address, Memory, address, address_as};
use crate::error::EmitError;
use crate::tensors::WeightTables;
use crate::text::{comment, double};
use latent_formats::Checkpoint;
use latent_graph::config::RopePairs;
use latent_graph::ir::{AttentionPath, Epilogue, Ir, KvLayerKind, Node, Op, Prologue, RowCount, ValueId};
use latent_graph::{ModelConfig, Plan};
use std::fmt::Write;

/// Writes the phases of one plan.
pub(crate) struct PhaseWriter<'a> {
    pub(crate) plan: &'a Plan,
    pub(crate) config: &'a ModelConfig,
    pub(crate) checkpoint: &'a Checkpoint,
    pub(crate) tables: &'a mut WeightTables,
    /// Operations without C code.
    pub(crate) missing: Vec<String>,
}

/// The C call of an operation: local variables, and the statement that uses them.
#[derive(Default)]
struct Call {
    locals: Vec<String>,
    statement: String,
}

impl Call {
    /// Adds a local variable for a value.
    fn value(&mut self, name: &str, at: Address) -> &mut Call {
        self.locals.push(format!("const struct value {name} = {};", at.value()));
        self
    }

    fn line(&mut self, text: String) -> &mut Call {
        self.locals.push(text);
        self
    }
}

impl PhaseWriter<'_> {
    fn ir(&self) -> &Ir {
        &self.plan.ir
    }

    /// Writes one function per phase, and the function that calls them in order.
    pub(crate) fn functions(&mut self, stage: &str) -> Result<String, EmitError> {
        let mut text = String::new();
        let mut calls = String::new();
        for phase in 0..self.plan.phase_count() {
            let nodes: Vec<&Node> = self
                .plan
                .ir
                .nodes
                .iter()
                .zip(&self.plan.phases)
                .filter(|(_, of)| **of == phase)
                .map(|(n, _)| n)
                .collect();
            let words: Vec<&str> =
                nodes.iter().map(|node| node.op.word()).filter(|word| *word != "split").collect();
            let name = match words.first() {
                Some(word) => format!("{stage}_{phase:04}_{word}"),
                // Splits are views without code, so a phase of splits alone has no function.
                None => continue,
            };
            let mut about = format!("/* Phase {phase} of {}", self.plan.phase_count());
            if let Some(layer) = nodes.iter().find_map(|node| node.layer) {
                let _ = write!(about, ", layer {layer}");
            }
            about.push('\n');
            let mut body = String::new();
            for node in nodes {
                about.push_str(&self.about(node)?);
                body.push_str(&self.code(node)?);
            }
            let _ = write!(
                text,
                "{about} */\nstatic void {name}(struct model *m, const struct step *s)\n{{\n{body}}}\n\n"
            );
            let _ = writeln!(calls, "    {name}(m, s);");
        }
        let _ = write!(text, "void plan_{stage}(struct model *m, const struct step *s)\n{{\n{calls}}}\n");
        Ok(text)
    }

    /// The comment of a node: operation, formula, inputs, weights and outputs.
    fn about(&self, node: &Node) -> Result<String, EmitError> {
        let mut text = String::new();
        let path = match node.path {
            AttentionPath::All => "",
            AttentionPath::Absorbed => ", rows on the absorbed path",
            AttentionPath::Naive => ", rows on the naive path",
        };
        let factor = node.op.factor().filter(|by| *by != 1.0).map(|by| format!(" (factor {by})"));
        let _ = writeln!(text, " *\n * {}{}{path}", node.op.word(), factor.unwrap_or_default());
        let _ = writeln!(text, " *     {}", comment(node.op.reference().formula));
        if let Some(steps) = steps(node, self.ir()) {
            let _ = writeln!(text, " *     {steps}");
        }
        for (i, id) in node.inputs.iter().enumerate() {
            let port = node.input_port(i).map_or("?", |port| port.name);
            text.push_str(&self.about_value("in ", port, *id)?);
        }
        for (slot, id) in &node.weights {
            let weight = self.ir().weight(*id);
            let shape: Vec<String> = weight.shape.iter().map(usize::to_string).collect();
            let (slot, key) = (comment(slot), comment(weight.key()));
            let _ = writeln!(text, " *   W   {slot:<14} {} {}, {key}", shape.join(" × "), weight.ty);
        }
        if let Some(id) = node.kv_layer {
            let layer = &self.ir().kv_layers[id.0];
            let per = if layer.state.is_some() { "sequence" } else { "token" };
            let _ = writeln!(
                text,
                " *   kv  cache {}: {} elements per {per}, {}",
                id.0,
                layer.width,
                layer.kind.name()
            );
        }
        for (i, id) in node.outputs.iter().enumerate() {
            let port = node.output_port(i).map_or("?", |port| port.name);
            text.push_str(&self.about_value("out", port, *id)?);
        }
        Ok(text)
    }

    fn about_value(&self, side: &str, port: &str, id: ValueId) -> Result<String, EmitError> {
        let value = self.ir().value(id);
        let rows = match value.rows {
            RowCount::Rows => "rows".to_owned(),
            RowCount::Times(n) => format!("{n} · rows"),
            RowCount::AtMost(n) => format!("at most {n} rows"),
        };
        let heads = if value.heads > 1 { format!(" × {}", value.heads) } else { String::new() };
        let place = address(self.plan, id)?.shown();
        Ok(format!(
            " *   {side} {port:<14} {rows}{heads} × {}, {place}: {}\n",
            value.width,
            comment(&value.name)
        ))
    }

    /// The C statements of a node.
    fn code(&mut self, node: &Node) -> Result<String, EmitError> {
        if node.op.spec().is_view {
            return Ok(String::new());
        }
        // The target enables no folding pass, so this would be an error of the pipeline.
        if node.prologue != Prologue::default() || node.epilogue != Epilogue::None {
            return Err(EmitError::internal(format!("{} has another operation folded in", node.op.word())));
        }
        let Some(call) = self.call(node)? else {
            let missing = format!("operation {}", node.op.word());
            if !self.missing.contains(&missing) {
                self.missing.push(missing);
            }
            return Ok(String::new());
        };
        let open = match node.path {
            AttentionPath::All => "    {",
            // The library runs one sequence, so all rows of a step take the same path.
            AttentionPath::Absorbed => "    if (!s->naive) {",
            AttentionPath::Naive => "    if (s->naive) {",
        };
        let mut text = format!("{open}\n");
        for local in &call.locals {
            let _ = writeln!(text, "        {local}");
        }
        let _ = writeln!(text, "        {}\n    }}", call.statement);
        Ok(text)
    }

    /// The C expression of the weight in a slot; `NULL` without one.
    fn weight(&mut self, node: &Node, slot: &str) -> Result<String, EmitError> {
        match node.weight(slot) {
            Some(id) => {
                let weight = self.plan.ir.weight(id);
                Ok(format!("W({})", self.tables.index(self.checkpoint, weight)?))
            }
            None => Ok("NULL".to_owned()),
        }
    }

    /// The C expression of weight `i`; `NULL` without one.
    fn weight_at(&mut self, node: &Node, i: usize) -> Result<String, EmitError> {
        // The router's bias is optional.
        match node.weights.get(i) {
            Some((_, id)) => {
                let weight = self.plan.ir.weight(*id);
                Ok(format!("W({})", self.tables.index(self.checkpoint, weight)?))
            }
            None => Ok("NULL".to_owned()),
        }
    }

    /// The address of a value with its own heads.
    fn heads(&self, id: ValueId) -> Result<(Address, usize, usize), EmitError> {
        let value = self.ir().value(id);
        Ok((address_as(self.plan, id, value.heads, value.width)?, value.heads, value.width))
    }

    /// The address of a value as rows without heads.
    fn flat(&self, id: ValueId) -> Result<(Address, usize), EmitError> {
        let width = self.ir().value(id).row_width();
        Ok((address_as(self.plan, id, 1, width)?, width))
    }

    /// The C expression of a value of u32.
    fn ids(&self, id: ValueId) -> Result<String, EmitError> {
        match address(self.plan, id)? {
            // Ids are never views.
            Address { memory: Memory::Arena(at), offset: 0, .. } => Ok(format!("AT(uint32_t, {at})")),
            _ => Err(EmitError::internal(format!("{} is not in the arena", self.ir().value(id).name))),
        }
    }

    /// Index and row width of the KV layer of a node.
    fn cache(&self, node: &Node) -> Result<(usize, usize), EmitError> {
        match node.kv_layer {
            Some(id) => Ok((id.0, self.ir().kv_layers[id.0].width)),
            None => Err(EmitError::internal(format!("{} without a KV layer", node.op.word()))),
        }
    }

    fn number(&self, x: f64) -> Result<String, EmitError> {
        double(x).ok_or_else(|| EmitError::internal(format!("a factor of {x}")))
    }

    /// The address of an optional input. Without the input, `or` stands in, of which nothing is
    /// read.
    fn optional(&self, node: &Node, port: &str, or: Address) -> Result<Address, EmitError> {
        match node.input_at(port) {
            Some(id) => Ok(self.heads(id)?.0),
            None => Ok(or),
        }
    }

    /// The `kv_weights` struct of a node.
    fn kv_weights(&mut self, node: &Node) -> Result<String, EmitError> {
        let [joined, keys, values] = ["kv_b", "k_b", "v_b"].map(|slot| self.weight(node, slot));
        Ok(format!("const struct kv_weights w = {{{}, {}, {}}};", joined?, keys?, values?))
    }

    /// The call of a node; `None` for operations without C code.
    fn call(&mut self, node: &Node) -> Result<Option<Call>, EmitError> {
        let mut call = Call::default();
        let epsilon = self.number(self.config.rms_eps)?;
        match node.op {
            Op::Embed { scale } => {
                let w = self.weight_at(node, 0)?;
                call.value("y", self.flat(node.outputs[0])?.0);
                call.statement = format!(
                    "op_embed(y, {w}, s->tokens, s->rows, {}, m->scratch.line);",
                    self.number(scale)?
                );
            }
            Op::RmsNorm => {
                let w = self.weight_at(node, 0)?;
                let weight = self.ir().weight(node.weights[0].1);
                // Latent norms of newer families have their own epsilon (ADR 9).
                let epsilon = self.number(self.config.norm_eps(&weight.slot))?;
                // The weight's width decides how a row is split: norms of heads have one weight per
                // head element.
                let width = weight.elements().max(1);
                let heads = self.ir().value(node.inputs[0]).row_width() / width;
                call.value("y", address_as(self.plan, node.outputs[0], heads, width)?);
                call.value("x", address_as(self.plan, node.inputs[0], heads, width)?);
                call.statement =
                    format!("op_rms_norm(y, x, {w}, {heads}, s->rows, {epsilon}, m->scratch.line);");
            }
            Op::Linear => {
                let mut statements = Vec::new();
                call.value("x", self.flat(node.inputs[0])?.0);
                for (i, output) in node.outputs.iter().enumerate() {
                    let w = self.weight_at(node, i)?;
                    call.value(&format!("y{i}"), self.flat(*output)?.0);
                    statements.push(format!("op_linear(y{i}, x, {w}, s->rows, m->scratch.line);"));
                }
                call.statement = statements.join("\n        ");
            }
            Op::Bias => {
                let w = self.weight_at(node, 0)?;
                call.value("y", self.flat(node.outputs[0])?.0).value("x", self.flat(node.inputs[0])?.0);
                call.statement = format!("op_bias(y, x, {w}, s->rows, m->scratch.line);");
            }
            Op::Concat => {
                let ((a, a_width), (b, b_width)) = (self.flat(node.inputs[0])?, self.flat(node.inputs[1])?);
                call.value("y", self.flat(node.outputs[0])?.0).value("a", a).value("b", b);
                call.statement = format!("op_concat(y, a, b, {a_width}, {b_width}, s->rows);");
            }
            Op::Rope => {
                let (x, heads, width) = self.heads(node.inputs[0])?;
                call.value("y", address_as(self.plan, node.outputs[0], heads, width)?).value("x", x);
                call.statement =
                    format!("op_rope(y, x, {heads}, {width}, s->rows, s->first, m->rotation, &m->scratch);");
            }
            Op::Silu | Op::Relu2 => {
                let (x, width) = self.flat(node.inputs[0])?;
                call.value("y", self.flat(node.outputs[0])?.0).value("x", x);
                call.statement = format!("op_{}(y, x, {width}, s->rows);", node.op.word());
            }
            Op::SiluMul => {
                let (gate, width) = self.flat(node.inputs[0])?;
                call.value("y", self.flat(node.outputs[0])?.0).value("gate", gate);
                call.value("up", self.flat(node.inputs[1])?.0);
                call.statement = format!("op_silu_mul(y, gate, up, {width}, s->rows);");
            }
            Op::SigmoidMul => self.sigmoid_mul(node, &mut call)?,
            Op::Add { scale } => {
                let (base, width) = self.flat(node.inputs[0])?;
                call.value("y", self.flat(node.outputs[0])?.0).value("base", base);
                call.value("term", self.flat(node.inputs[1])?.0);
                call.statement = format!("op_add(y, base, term, {width}, s->rows, {});", self.number(scale)?);
            }
            Op::Scale { by } => {
                let (x, width) = self.flat(node.inputs[0])?;
                call.value("y", self.flat(node.outputs[0])?.0).value("x", x);
                call.statement = format!("op_scale(y, x, {width}, s->rows, {});", self.number(by)?);
            }
            Op::GatherRows => {
                let (x, width) = self.flat(node.inputs[0])?;
                call.value("y", self.flat(node.outputs[0])?.0);
                call.line(format!(
                    // The runtime sets `wanted` to the first row of the chunk whose logits it
                    // computes.
                    "const struct value x = {{{} + s->wanted * {}, {}, {}}};",
                    x.pointer(),
                    x.row,
                    x.row,
                    x.head
                ));
                call.statement = format!("op_copy_rows(y, x, {width}, s->rows);");
            }
            Op::Route => {
                let bias = self.weight_at(node, 0)?;
                let (ids, weights) = (self.ids(node.outputs[0])?, self.flat(node.outputs[1])?.0.pointer());
                call.value("logits", self.flat(node.inputs[0])?.0);
                call.statement =
                    format!("op_route({ids}, {weights}, logits, {bias}, &router, s->rows, &m->scratch);");
            }
            Op::ExpertMlp => self.expert_mlp(node, &mut call)?,
            Op::LatentStore => {
                let (cache, width) = self.cache(node)?;
                let latent = self.flat(node.inputs[0])?.0;
                call.value("latent", latent).value("k_rope", self.optional(node, "k_rope", latent)?);
                call.statement = format!(
                    "op_latent_store(m->cache[{cache}], {width}, latent, k_rope, &attention, s->rows, s->first);"
                );
            }
            Op::KvLoraDecompress => {
                call.value("k_nope", self.heads(node.outputs[0])?.0);
                call.value("v", self.heads(node.outputs[1])?.0);
                call.value("latent", self.flat(node.inputs[0])?.0).line(self.kv_weights(node)?);
                call.statement =
                    "op_kv_lora_decompress(k_nope, v, latent, &w, &attention, s->rows, &m->scratch);"
                        .to_owned();
            }
            Op::PartialRopeConcat => {
                let k_nope = self.heads(node.inputs[0])?.0;
                call.value("key", self.heads(node.outputs[0])?.0).value("k_nope", k_nope);
                call.value("k_rope", self.optional(node, "k_rope", k_nope)?);
                call.statement =
                    "op_partial_rope_concat(key, k_nope, k_rope, &attention, s->rows);".to_owned();
            }
            Op::KeyValueStore => {
                let (cache, width) = self.cache(node)?;
                call.value("key", self.heads(node.inputs[0])?.0).value("v", self.heads(node.inputs[1])?.0);
                call.statement = format!(
                    "op_key_value_store(m->cache[{cache}], {width}, key, v, &attention, s->rows, s->first);"
                );
            }
            Op::AbsorbK => {
                let (q_nope, ..) = self.heads(node.inputs[0])?;
                call.value("y", self.heads(node.outputs[0])?.0).value("q_nope", q_nope);
                call.value("q_rope", self.optional(node, "q_rope", q_nope)?).line(self.kv_weights(node)?);
                call.statement =
                    "op_absorb_k(y, q_nope, q_rope, &w, &attention, s->rows, &m->scratch);".to_owned();
            }
            Op::AttendLatent | Op::AttendSeparate => {
                let (cache, width) = self.cache(node)?;
                // Separate scores add the latent's and the rope part's dot products, each summed on
                // its own.
                let separate = u8::from(node.op == Op::AttendSeparate);
                call.value("y", self.heads(node.outputs[0])?.0).value("q", self.heads(node.inputs[0])?.0);
                let selected = self.selected(node)?;
                call.statement = format!(
                    "op_attend_latent(y, q, m->cache[{cache}], {width}, {separate}, {selected}, &attention,\n                         s->rows, s->first, &m->scratch);"
                );
            }
            Op::AbsorbV => {
                call.value("y", self.heads(node.outputs[0])?.0).value("mix", self.heads(node.inputs[0])?.0);
                call.line(self.kv_weights(node)?);
                call.statement = "op_absorb_v(y, mix, &w, &attention, s->rows, &m->scratch);".to_owned();
            }
            Op::AttendExpanded => {
                let (cache, width) = self.cache(node)?;
                let (q_nope, ..) = self.heads(node.inputs[0])?;
                call.value("y", self.heads(node.outputs[0])?.0).value("q_nope", q_nope);
                call.value("q_rope", self.optional(node, "q_rope", q_nope)?).line(self.kv_weights(node)?);
                let selected = self.selected(node)?;
                call.statement = format!(
                    "op_attend_expanded(y, q_nope, q_rope, m->cache[{cache}], {width}, {selected}, &w, &attention,\n                           s->rows, s->first, &m->scratch);"
                );
            }
            Op::IndexStore | Op::IndexSelect => self.index(node, &mut call)?,
            Op::ShortConv => self.short_conv(node, &mut call)?,
            Op::L2Norm { scale } => {
                let (x, heads, width) = self.heads(node.inputs[0])?;
                call.value("y", address_as(self.plan, node.outputs[0], heads, width)?).value("x", x);
                call.statement =
                    format!("op_l2_norm(y, x, {heads}, {width}, s->rows, {});", self.number(scale)?);
            }
            Op::SoftplusDecay | Op::BoundedDecay { .. } => {
                let (y, heads, width) = self.heads(node.outputs[0])?;
                let [rate, bias] = [0, 1].map(|i| self.weight_at(node, i));
                call.value("y", y).value("x", address_as(self.plan, node.inputs[0], heads, width)?);
                let bound = match node.op {
                    Op::BoundedDecay { bound } => {
                        call.line(format!("const double bound = {};", self.number(bound)?));
                        "&bound"
                    }
                    _ => "NULL",
                };
                // Safetensors store ln a. GGUF's `ssm_a` is the rate itself, negative in
                // Kimi-Linear, so the C
                // code takes its absolute value.
                let logarithm = u8::from(node.weights[0].0 == "a_log");
                call.statement = format!(
                    "op_log_decay(y, x, {}, {}, {logarithm}, {bound}, {heads}, {width}, s->rows, &m->scratch);",
                    rate?, bias?
                );
            }
            Op::DeltaRule => {
                let (y, heads, width) = self.heads(node.outputs[0])?;
                let (cache, _) = self.cache(node)?;
                call.value("y", y);
                for (i, name) in ["q", "k", "v", "decay"].iter().enumerate() {
                    call.value(name, address_as(self.plan, node.inputs[i], heads, width)?);
                }
                // One β per head, so the row is read as one head of `heads` elements.
                call.value("beta", address_as(self.plan, node.inputs[4], 1, heads)?);
                call.statement = format!(
                    "op_delta_rule(m->cache[{cache}], y, q, k, v, decay, beta, {heads}, {width}, s->rows, &m->scratch);"
                );
            }
            Op::GatedNorm => {
                let w = self.weight_at(node, 0)?;
                let width = self.ir().weight(node.weights[0].1).elements().max(1);
                let heads = self.ir().value(node.inputs[0]).row_width() / width;
                for (name, id) in [("y", node.outputs[0]), ("x", node.inputs[0]), ("gate", node.inputs[1])] {
                    call.value(name, address_as(self.plan, id, heads, width)?);
                }
                call.statement = format!(
                    "op_gated_norm(y, x, gate, {w}, {heads}, {width}, s->rows, {epsilon}, &m->scratch);"
                );
            }
            // Adapters, ranks, and operations that the target's passes replace or never create.
            Op::LoraAdd
            | Op::LoraAbsorbK
            | Op::LoraAbsorbV
            | Op::AllReduce
            | Op::SendRows
            | Op::ReceiveRows
            | Op::MlaAttention
            | Op::ExpandedStore
            | Op::ExpertGateUp
            | Op::ExpertDown => return Ok(None),
            // A split only creates views.
            Op::Split => {}
        }
        Ok(Some(call))
    }

    /// The C expression of the selected tokens; `NULL` for dense attention.
    fn selected(&self, node: &Node) -> Result<String, EmitError> {
        match node.input_at("selected") {
            Some(id) => self.ids(id),
            None => Ok("NULL".to_owned()),
        }
    }

    fn sigmoid_mul(&self, node: &Node, call: &mut Call) -> Result<(), EmitError> {
        let (x, gate) = (self.ir().value(node.inputs[0]), self.ir().value(node.inputs[1]));
        let per_head = gate.row_width() != x.row_width();
        // A gate per element may have heads although x has none.
        let (heads, width) = if per_head {
            (gate.row_width(), x.row_width() / gate.row_width().max(1))
        } else if x.heads == 1 {
            (gate.heads, gate.width)
        } else {
            (x.heads, x.width)
        };
        call.value("y", address_as(self.plan, node.outputs[0], heads, width)?);
        call.value("x", address_as(self.plan, node.inputs[0], heads, width)?);
        call.value("gate", address_as(self.plan, node.inputs[1], heads, if per_head { 1 } else { width })?);
        let per_head = u8::from(per_head);
        call.statement = format!("op_sigmoid_mul(y, x, gate, {per_head}, {heads}, {width}, s->rows);");
        Ok(())
    }

    fn expert_mlp(&mut self, node: &Node, call: &mut Call) -> Result<(), EmitError> {
        let Some(moe) = self.config.moe else { return Err(EmitError::internal("experts without a router")) };
        let [gate, up, both, down] =
            ["expert_gate", "expert_up", "expert_gate_up", "expert_down"].map(|slot| self.weight(node, slot));
        let (ids, weights) = (self.ids(node.inputs[1])?, self.flat(node.inputs[2])?.0.pointer());
        call.value("y", self.flat(node.outputs[0])?.0).value("x", self.flat(node.inputs[0])?.0);
        let (experts, used, ffn) = (moe.experts, moe.num_experts_per_tok, moe.intermediate);
        call.statement = format!(
            "op_expert_mlp(y, x, {ids}, {weights}, {}, {}, {}, {}, {experts}, {used}, {ffn},\n                      s->rows, &m->scratch);",
            gate?, up?, both?, down?
        );
        Ok(())
    }

    fn index(&mut self, node: &Node, call: &mut Call) -> Result<(), EmitError> {
        let Some(indexer) = self.config.attention.indexer else {
            return Err(EmitError::internal("an indexer that the config lacks"));
        };
        let (cache, width) = self.cache(node)?;
        let (halves, rope) = (u8::from(indexer.pairs == RopePairs::NeoX), self.config.attention.rope);
        // A copy, because the indexer may pair other elements than the attention.
        call.line("struct rotation by = *m->rotation;".to_owned());
        if node.op == Op::IndexStore {
            let [norm, bias] = ["index_k_norm", "index_k_norm_bias"].map(|slot| self.weight(node, slot));
            let epsilon = self.number(latent_graph::config::INDEX_NORM_EPS)?;
            call.value("k", self.flat(node.inputs[0])?.0);
            call.statement = format!(
                "by.halves = {halves};\n        op_index_store(m->cache[{cache}], {width}, k, {}, {}, {epsilon}, {rope}, &by, s->rows, s->first,\n                       &m->scratch);",
                norm?, bias?
            );
            return Ok(());
        }
        let (heads, topk) = (indexer.heads, indexer.topk);
        let selected = self.ids(node.outputs[0])?;
        call.value("q", address_as(self.plan, node.inputs[0], heads, indexer.width)?);
        call.value("weights", self.flat(node.inputs[1])?.0);
        call.statement = format!(
            "by.halves = {halves};\n        op_index_select({selected}, q, weights, m->cache[{cache}], {heads}, {width}, {rope}, {topk}, &by,\n                        s->rows, s->first, &m->scratch);"
        );
        Ok(())
    }

    fn short_conv(&mut self, node: &Node, call: &mut Call) -> Result<(), EmitError> {
        let (cache, width) = self.cache(node)?;
        let mut statements = Vec::new();
        for (i, (input, output)) in node.inputs.iter().zip(&node.outputs).enumerate() {
            let w = self.weight_at(node, i)?;
            let (x, channels) = self.flat(*input)?;
            // The state has the past inputs of q, k and v, each of all channels.
            let past = width / node.inputs.len().max(1) / channels.max(1);
            call.value(&format!("x{i}"), x).value(&format!("y{i}"), self.flat(*output)?.0);
            statements.push(format!(
                "op_short_conv(m->cache[{cache}], {past}, {channels}, {i}, y{i}, x{i}, {w}, s->rows, &m->scratch);"
            ));
        }
        call.statement = statements.join("\n        ");
        Ok(())
    }
}

/// The steps of one operation in the C code, by the names of systems that have an operation for
/// each.
fn steps(node: &Node, ir: &Ir) -> Option<&'static str> {
    let kind = node.kv_layer.map(|id| ir.kv_layers[id.0].kind);
    match node.op {
        Op::LatentStore => Some("steps: partial_rope_concat [c | k_rope], store"),
        Op::AttendExpanded if kind == Some(KvLayerKind::Latent) => Some(
            "steps: kv_lora_decompress each c to k_nope and v, partial_rope_concat [k_nope | k_rope], attend",
        ),
        Op::AttendExpanded => Some("steps: partial_rope_concat [q_nope | q_rope], attend"),
        _ => None,
    }
}
