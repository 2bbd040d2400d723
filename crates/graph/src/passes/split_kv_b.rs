//! Splitting of joined W_KV weights. Absorbed queries need W_UK by columns, but blocks of quantized
//! weights run along its rows.
use crate::circuit::{DerivedWeight, KvHalf, Weight, WeightPart};
use crate::config::AttentionShape;
use crate::ir::{Ir, WeightId};
use latent_types::TensorType;

/// The format of derived weights.
// Eight bits with a scale per 32 elements add little to the error of any quantized source.
const DERIVED: TensorType = TensorType::Q8_0;

/// Replaces each quantized `kv_b` by a `k_b` and a `v_b` that are computed while loading: W_UK
/// transposed, in Q8_0; W_UV as stored, or in Q8_0 if the file has its scales in a separate tensor.
///
/// A `kv_b` stays if it is not quantized, because products across its rows then cost no more, or if
/// its halves do not consist of whole blocks.
#[must_use]
pub fn split_kv_b(mut ir: Ir, attention: &AttentionShape) -> Ir {
    for index in 0..ir.weights.len() {
        let Some((k_b, v_b)) = halves(&ir.weights[index], attention) else { continue };
        // `k_b` takes the index of `kv_b`, so that the ids of other weights stay valid.
        ir.weights[index] = k_b;
        ir.weights.push(v_b);
        let halves = [("k_b", WeightId(index)), ("v_b", WeightId(ir.weights.len() - 1))];
        for node in &mut ir.nodes {
            if !node.weights.iter().any(|(_, id)| id.0 == index) {
                continue;
            }
            // The absorbing operations use one half each. A naive attention uses both.
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
    // A `kv_b` is one tensor. More parts would be experts.
    let [part] = &weight.parts[..] else { return None };
    // From the weight and not from the config: a rank's weight has fewer heads.
    let heads = rows / (nope + v).max(1);
    let joined = weight.slot == "kv_b" && weight.shape.len() == 2 && heads > 0 && rows == heads * (nope + v);
    let quantized = weight.ty.block_len() > 1 || part.scale.is_some();
    // A rank's share is cut by rows, so its heads are whole. A cut by columns would leave a part of
    // each head.
    let whole_columns = !weight.gives_terms();
    if !(joined && quantized && whole_columns) {
        return None;
    }
    // A half has no tensor of scales, so its scales must be inside its blocks.
    let v_type = if part.scale.is_some() { DERIVED } else { weight.ty };
    // Checks that rows are whole blocks; otherwise the half cannot be stored in this format.
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
