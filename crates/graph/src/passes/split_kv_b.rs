//! Splitting of joined W_KV weights: absorbed queries need W_UK along its columns, and blocks of quantized weights lie along its rows.

use crate::circuit::{DerivedWeight, KvHalf, Weight, WeightPart};
use crate::config::AttentionShape;
use crate::ir::{Ir, WeightId};
use latent_types::TensorType;

/// The format of derived weights: eight bits and a scale per 32 elements add little to the error of any quantized source.
const DERIVED: TensorType = TensorType::Q8_0;

/// Replaces each quantized `kv_b` by a `k_b` and a `v_b` that are computed from it while loading: W_UK transposed, in Q8_0; W_UV
/// as stored, or in Q8_0 if the file has its scales in a tensor of their own.
///
/// A `kv_b` stays if it is not quantized, since products across its rows cost no more then, and if its sides are not whole
/// blocks.
#[must_use]
pub fn split_kv_b(mut ir: Ir, attention: &AttentionShape) -> Ir {
    for index in 0..ir.weights.len() {
        let Some((k_b, v_b)) = halves(&ir.weights[index], attention) else { continue };
        ir.weights[index] = k_b;
        ir.weights.push(v_b);
        let halves = [("k_b", WeightId(index)), ("v_b", WeightId(ir.weights.len() - 1))];
        for node in &mut ir.nodes {
            if !node.weights.iter().any(|(_, id)| id.0 == index) {
                continue;
            }
            let slots = node.op.spec().slots;
            let used = halves.iter().filter(|(name, _)| slots.iter().any(|slot| slot.name == *name));
            node.weights = used.map(|(name, id)| ((*name).to_owned(), *id)).collect();
        }
    }
    ir
}

/// `k_b` and `v_b` of a weight that is a joined, quantized `kv_b`.
fn halves(weight: &Weight, attention: &AttentionShape) -> Option<(Weight, Weight)> {
    let AttentionShape { nope, v, .. } = *attention;
    let (rows, kv_lora) = (weight.outputs(), weight.inputs());
    let [part] = &weight.parts[..] else { return None };
    let heads = rows / (nope + v).max(1);
    let joined = weight.slot == "kv_b" && weight.shape.len() == 2 && heads > 0 && rows == heads * (nope + v);
    let quantized = weight.ty.block_len() > 1 || part.scale.is_some();
    // a matrix is cut by rows alone, so that a rank's heads are whole
    let whole_columns = !weight.gives_terms();
    if !(joined && quantized && whole_columns) {
        return None;
    }
    let v_type = if part.scale.is_some() { DERIVED } else { weight.ty };
    DERIVED.row_bytes(nope)?;
    v_type.row_bytes(kv_lora)?;
    let derive = |slot: &str, half, ty, shape: [usize; 3]| Weight {
        slot: slot.to_owned(),
        layer: weight.layer,
        ty,
        shape: shape.to_vec(),
        parts: vec![WeightPart { tensor: DerivedWeight::name(&part.tensor, slot), scale: None }],
        cut: None,
        derived: Some(Box::new(DerivedWeight { from: weight.clone(), half, nope, v })),
        adapter: None,
    };
    Some((
        derive("k_b", KvHalf::Uk, DERIVED, [heads, kv_lora, nope]),
        derive("v_b", KvHalf::Uv, v_type, [heads, v, kv_lora]),
    ))
}
