//! KV splits (flash decoding): attention stores partial results, and its reader combines them.

use crate::ir::{Epilogue, Ir, RowCount, Value, ValueStorage};
use crate::ops::{PARTIALS, SOFTMAX_STATE, SplitFold};
use crate::target::KvSplits;
use latent_types::ValueType;

/// Gives every attention in latent space a second output for the partial results of its KV splits,
/// and its readers the same value as another input. A step uses splits if it has at most as many
/// rows as that value. Other steps store the result directly, with the same sums in the same order.
///
/// Readers combine the partial results, each worker for the heads that it needs, so that no barrier
/// is needed in between.
pub fn share_kv_splits(mut ir: Ir, splits: KvSplits, workers: usize) -> Ir {
    for at in 0..ir.nodes.len() {
        if ir.nodes[at].op.spec().folds.kv_splits != SplitFold::Leaves {
            continue;
        }
        let mix = ir.nodes[at].outputs[0];
        let combines = |&n: &usize| ir.nodes[n].op.spec().folds.kv_splits == SplitFold::Combines;
        let readers = ir.readers(mix);
        let of = ir.value(mix).clone();
        // 0 rows: one row already has enough groups of heads for all workers.
        let rows = splits.rows(of.heads, workers);
        // A reader that cannot combine needs the result in its own buffer, whether it was split or
        // not.
        if rows == 0 || !readers.iter().all(combines) {
            continue;
        }
        let partials = ir.add_value(Value {
            name: PARTIALS.name.into(),
            layer: of.layer,
            dtype: ValueType::F32,
            rows: RowCount::AtMost(rows),
            heads: of.heads,
            width: splits.most * (of.width + SOFTMAX_STATE),
            storage: ValueStorage::Own,
        });
        ir.nodes[at].outputs.push(partials);
        ir.nodes[at].epilogue = Epilogue::KvSplits;
        for reader in readers {
            ir.nodes[reader].inputs.push(partials);
            ir.nodes[reader].prologue.kv_splits = true;
        }
    }
    ir
}
