//! Expansion of stores: makes the keys and values that a store computes values of the IR.

use super::remove;
use crate::config::AttentionShape;
use crate::ir::{Ir, Node, Op, RowCount, Value, ValueId, ValueStorage};
use latent_types::ValueType;

/// Replaces every `expanded_store` by `kv_lora_decompress`, `partial_rope_concat` and
/// `key_value_store`, for targets that compute every operation from its definition. Other targets
/// have one kernel for the three and need no buffers in between.
pub fn expand_stores(mut ir: Ir, shape: &AttentionShape) -> Ir {
    while let Some(at) = ir.nodes.iter().position(|node| node.op == Op::ExpandedStore) {
        let store = remove(&mut ir, at);
        let mut value = |name: &str, width: usize| -> ValueId {
            ir.add_value(Value {
                name: name.to_owned(),
                layer: store.layer,
                dtype: ValueType::F32,
                rows: RowCount::Rows,
                heads: shape.heads,
                width,
                storage: ValueStorage::Own,
            })
        };
        let (k_nope, v, key) =
            (value("k_nope", shape.nope), value("value", shape.v), value("key", shape.nope + shape.rope));
        let node =
            |op, inputs, outputs| Node { path: store.path, ..Node::new(op, store.layer, inputs, outputs) };
        let mut decompress = node(Op::KvLoraDecompress, vec![store.inputs[0]], vec![k_nope, v]);
        decompress.weights.clone_from(&store.weights);
        // A model without a rope part has no `k_rope`.
        let parts = [k_nope].into_iter().chain(store.input_at("k_rope")).collect();
        let concat = node(Op::PartialRopeConcat, parts, vec![key]);
        let mut stored = node(Op::KeyValueStore, vec![key, v], Vec::new());
        stored.kv_layer = store.kv_layer;
        ir.nodes.splice(at..at, [decompress, concat, stored]);
    }
    ir
}

#[cfg(test)]
mod tests {
    use super::super::snapshots::config;
    use super::*;
    use crate::audit::{self, Code};
    use crate::circuit::{Circuit, DeclaredTensors, TensorNaming};
    use crate::ir::ModelSpan;
    use crate::passes::{CacheForm, MlaChoice, lower_mla};
    use latent_types::TensorType;

    fn lowered(form: CacheForm) -> Ir {
        let config = config();
        let tensors = DeclaredTensors::new(&config, TensorNaming::Gguf, TensorType::BF16).unwrap();
        let ir = Ir::build(&config, &ModelSpan::backbone(&config), &tensors).unwrap();
        lower_mla(ir, MlaChoice::Naive, form, &config.attention).unwrap()
    }

    #[test]
    fn keys_and_values_are_expanded_and_joined_before_they_are_stored() {
        let config = config();
        let ir = expand_stores(lowered(CacheForm::Expanded), &config.attention);
        let of_layer = |node: &&Node| node.layer == Some(0);
        let words: Vec<&str> = ir.nodes.iter().filter(of_layer).map(|node| node.op.word()).collect();
        let steps = ["kv_lora_decompress", "partial_rope_concat", "key_value_store"];
        let at = words.iter().position(|word| *word == steps[0]).unwrap();
        assert_eq!(words[at..at + 3], steps);
        assert!(!words.contains(&"expanded_store"));
        let (circuit, span) = (Circuit::named("deepseek2").unwrap(), ModelSpan::backbone(&config));
        assert_eq!(audit::ir(&ir, circuit, &span, &config), []);
        // A key that is joined without its rotation is found.
        let mut broken = ir.clone();
        let rotation = broken
            .nodes
            .iter()
            .position(|node| node.op == Op::Rope && broken.values[node.outputs[0].0].name == "k_rope")
            .unwrap();
        let raw = broken.nodes[rotation].inputs[0];
        let concat = broken.nodes.iter_mut().find(|node| node.op == Op::PartialRopeConcat).unwrap();
        concat.inputs[1] = raw;
        let found = audit::ir(&broken, circuit, &span, &config);
        assert!(found.iter().any(|finding| finding.code == Code::A43), "{found:?}");
    }

    #[test]
    fn a_cache_of_latents_is_left_alone() {
        let ir = lowered(CacheForm::Latent);
        let same = expand_stores(ir.clone(), &config().attention);
        assert_eq!(same.to_text(None), ir.to_text(None));
    }
}
