//! Bytes and arithmetic operations of a node, for plans, drawings and the profiler.

use super::{AttentionPath, Ir, Node};
use crate::ops::{CostInput, NodeCost, WeightCost};
use latent_types::CacheType;

/// A step whose cost is counted.
#[derive(Clone, Copy, Debug)]
pub struct StepWorkload {
    /// New rows of all sequences.
    pub rows: usize,
    /// Sequences, each with an equal share of the rows.
    pub sequences: usize,
    /// Rows already in the KV cache of each sequence.
    pub past_len: usize,
    /// The element type of the KV cache.
    pub cache: CacheType,
    /// The attention path of its rows.
    pub path: AttentionPath,
}

impl Node {
    /// Memory traffic and arithmetic of the node in `step`; zero if the rows take another attention
    /// path.
    pub fn cost(&self, ir: &Ir, step: StepWorkload) -> NodeCost {
        if !self.path.meets(step.path) {
            return NodeCost::default();
        }
        // f64 throughout: products of rows, contexts and widths exceed 2^32, and averages over
        // sequences are fractions.
        let rows = step.rows as f64;
        let (sequences, past_len) = (step.sequences.max(1) as f64, step.past_len as f64);
        let weights = self.weights.iter().map(|(slot, id)| {
            let weight = ir.weight(*id);
            WeightCost {
                slot,
                elements: weight.elements() as f64,
                bytes: weight.bytes() as f64,
                row_bytes: weight.ty.row_bytes(weight.inputs()).unwrap_or(0) as f64,
                matrices: weight.stacked() as f64,
            }
        });
        let kv_layer = self.kv_layer.map(|id| &ir.kv_layers[id.0]);
        (self.op.spec().cost)(&CostInput {
            rows,
            sequences,
            // Each sequence reads its own cached rows.
            kv_len: sequences * past_len + rows,
            // Causal attention: row r of a sequence sees the cached rows and r + 1 new ones. The
            // mean of r + 1 over `rows / sequences` rows is half of their number plus one.
            pairs: rows * past_len + rows * (rows / sequences + 1.0) / 2.0,
            heads: self.inputs.first().map_or(1, |id| ir.value(*id).heads) as f64,
            widths: self.inputs.iter().map(|id| ir.value(*id).width as f64).collect(),
            out_width: self.outputs.first().map_or(0, |id| ir.value(*id).width) as f64,
            kv_row_bytes: kv_layer.map_or(0, |layer| layer.bytes(step.cache)) as f64,
            kv: kv_layer.map(|layer| layer.kind),
            weights: weights.collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::{KvLayerKind, Op};
    use super::*;
    use crate::circuit::{Circuit, ConfigVars, TensorNaming, expression};
    use crate::config::ModelConfig;
    use crate::passes::snapshots::{
        config, hybrids, lowered, lowered_adapted, lowered_hybrid, lowered_of, sparse,
    };
    use crate::passes::{CacheForm, MlaChoice, expand_stores};
    use std::collections::HashSet;

    fn names(c: &ModelConfig, ir: &Ir, node: &Node, step: StepWorkload) -> ConfigVars {
        let a = &c.attention;
        let moe = c.moe.unwrap();
        let sum = |f: &dyn Fn(&crate::circuit::Weight) -> usize| -> usize {
            node.weights.iter().map(|(_, id)| f(ir.weight(*id))).sum()
        };
        let mut elements = sum(&|w| w.elements());
        let mut bytes = sum(&|w| w.bytes());
        let both = matches!(node.op, Op::AttendExpanded | Op::ExpandedStore | Op::KvLoraDecompress);
        if node.weight("kv_b").is_some() && !both {
            // Only the half of `kv_b` that the operation needs.
            let half = if node.op == Op::AbsorbK { a.nope } else { a.v };
            (elements, bytes) = (elements * half / (a.nope + a.v), bytes * half / (a.nope + a.v));
        }
        let on_the_fly = node.kv_layer.is_some_and(|id| ir.kv_layers[id.0].kind == KvLayerKind::Latent);
        if node.op == Op::AttendExpanded && !on_the_fly {
            assert_eq!(elements, 0);
        }
        let rows = step.rows;
        let kda = c.kda.as_ref();
        ConfigVars::of_dimensions(&[
            ("sequences", step.sequences),
            ("kda_heads", kda.map_or(0, |kda| kda.heads)),
            ("kda_width", kda.map_or(0, |kda| kda.width)),
            ("rows", rows),
            ("hidden", c.hidden_size),
            ("kv_len", rows + step.past_len),
            ("pairs", rows * step.past_len + rows * (rows + 1) / 2),
            ("heads", a.heads),
            ("index_heads", 4),
            ("index_width", 32),
            ("nope", a.nope),
            ("rope", a.rope),
            ("v", a.v),
            ("kv_lora", a.kv_lora_rank),
            ("lora_rank", 8),
            ("num_experts_per_tok", moe.num_experts_per_tok),
            // One row reaches as many experts as it is routed to.
            ("reached", moe.num_experts_per_tok),
            ("weights", elements),
            ("weight_bytes", bytes),
            ("row_bytes", c.hidden_size * 2),
            ("expert_weights", elements / moe.experts),
            ("expert_bytes", bytes / moe.experts),
            ("kv_row_bytes", node.kv_layer.map_or(0, |id| ir.kv_layers[id.0].bytes(step.cache))),
        ])
    }

    #[test]
    fn its_formulas_are_what_nodes_count() {
        let mut seen = HashSet::new();
        let hybrids = hybrids(TensorNaming::Gguf).map(|config| (lowered_hybrid(&config), config));
        for combined in [false, true] {
            let of = |(mla, form)| {
                (format!("{mla} {form:?} kv_b {combined}"), lowered(mla, form, combined), config())
            };
            let plain = [
                (MlaChoice::Auto, CacheForm::Latent),
                (MlaChoice::SeparateScores, CacheForm::Latent),
                (MlaChoice::Naive, CacheForm::Expanded),
            ]
            .map(of);
            let recurrent =
                hybrids.iter().map(|(ir, config)| (config.circuit.clone(), ir.clone(), config.clone()));
            // The other nodes of a sparse model have costs of selected tokens, which the names do
            // not cover.
            let mut indexer = lowered_of(Circuit::named("deepseek2").unwrap(), &sparse());
            indexer.nodes.retain(|node| matches!(node.op, Op::IndexStore | Op::IndexSelect));
            let indexer = ("an indexer".to_owned(), indexer, sparse());
            let adapted = ("an adapter".to_owned(), lowered_adapted(), config());
            let stored = lowered(MlaChoice::Naive, CacheForm::Expanded, combined);
            let steps = ("stores in steps".to_owned(), expand_stores(stored, &config().attention), config());
            for (form, ir, config) in plain.into_iter().chain([indexer, adapted, steps]).chain(recurrent) {
                for (rows, past_len) in [(1, 0), (1, 100), (7, 30)] {
                    for node in &ir.nodes {
                        let experts = matches!(node.op, Op::ExpertGateUp | Op::ExpertDown);
                        // With several rows, the number of reached experts is an expectation and
                        // not an integer expression.
                        if experts && rows > 1 {
                            continue;
                        }
                        let step = StepWorkload {
                            rows,
                            past_len,
                            sequences: 1,
                            cache: CacheType::F16,
                            path: AttentionPath::All,
                        };
                        let (cost, of) = (node.cost(&ir, step), node.op.reference());
                        let names = names(&config, &ir, node, step);
                        let value = |text: &str| {
                            expression::evaluate(text, &|name| names.dimension(name)).unwrap() as f64
                        };
                        let close = |a: f64, b: f64| (a - b).abs() <= 1e-9 * a.abs().max(1.0);
                        let what = format!("{} {form}, {rows} rows", node.op.word());
                        assert!(close(cost.weight_bytes, value(of.weight_bytes)), "{what}: {cost:?}");
                        assert!(close(cost.cache_bytes, value(of.cache_bytes)), "{what}: {cost:?}");
                        assert!(close(cost.flops, value(of.flops)), "{what}: {cost:?} {}", value(of.flops));
                        assert!(close(cost.link_bytes, value(of.link_bytes)), "{what}: {cost:?}");
                        seen.insert(node.op.word());
                    }
                }
            }
        }
        // Unseen operations are lowered by a pass, or belong to other models and are free.
        for op in Op::ALL.iter().filter(|op| !seen.contains(op.word())) {
            let of = op.reference();
            let free = [of.weight_bytes, of.cache_bytes, of.flops] == ["0"; 3];
            assert!(op.spec().lowered_by.is_some() || free, "{} was not seen", op.word());
        }
        assert!(seen.len() > 15, "{seen:?}");
    }
}
