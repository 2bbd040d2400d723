//! The IR as text: one line per node.

use super::{AttentionPath, BoundKernel, Epilogue, Ir, Node, RowCount, ValueId, ValueStorage};
use latent_types::ValueType;
use std::fmt::Write;

impl Ir {
    /// One line per node, grouped by phase if `phases` is given.
    pub fn to_text(&self, phases: Option<&[usize]>) -> String {
        let mut text = String::new();
        let mut order: Vec<usize> = (0..self.nodes.len()).collect();
        if let Some(phases) = phases {
            // Stable: nodes of one phase keep the order of the list.
            order.sort_by_key(|&n| phases[n]);
        }
        let mut last = None;
        for n in order {
            if let Some(phases) = phases
                && last != Some(phases[n])
            {
                last = Some(phases[n]);
                let _ = writeln!(text, "-- phase {}", phases[n]);
            }
            text.push_str(&self.line(&self.nodes[n]));
            text.push('\n');
        }
        text
    }

    /// A node as a line:
    /// `L0 linear x{norm attn_norm} -> q_a[rows × 80] kv[rows × 64]  W q_a BF16 80×96 …`.
    pub fn line(&self, node: &Node) -> String {
        let mut line = node.layer.map_or_else(|| "   ".to_owned(), |layer| format!("L{layer:<2}"));
        let _ = write!(line, " {}", node.op.word());
        if let Some(by) = node.op.factor().filter(|by| *by != 1.0) {
            let _ = write!(line, " ×{by:.6}");
        }
        if node.path != AttentionPath::All {
            let _ = write!(
                line,
                " on {}",
                if node.path == AttentionPath::Absorbed { "absorbed" } else { "naive" }
            );
        }
        for (i, id) in node.inputs.iter().enumerate() {
            let _ = write!(line, " {}", self.value(*id).name);
            if i == 0
                && let Some(norm) = node.prologue.norm
            {
                let _ = write!(line, "{{norm {}}}", self.weight(norm).slot);
            }
            // A residual that an epilogue added is behind the input that RoPE rotates.
            let rotated = node.inputs.len() - 1 - usize::from(matches!(node.epilogue, Epilogue::AddTo(_)));
            if node.prologue.rope && i == rotated {
                line.push_str("{rope}");
            }
            if node.prologue.kv_splits && i + 1 == node.inputs.len() {
                line.push_str("{combined}");
            }
        }
        if !node.outputs.is_empty() {
            line.push_str(" ->");
        }
        for id in &node.outputs {
            let _ = write!(line, " {}{}", self.value(*id).name, self.shape(*id));
        }
        match node.epilogue {
            Epilogue::None => {}
            Epilogue::SiluMul => line.push_str(" {silu·up}"),
            Epilogue::Relu2 => line.push_str(" {relu²}"),
            Epilogue::KvSplits => line.push_str(" {KV splits}"),
            Epilogue::AddTo(1.0) => line.push_str(" {add}"),
            Epilogue::AddTo(factor) => {
                let _ = write!(line, " {{add ×{factor:.6}}}");
            }
        }
        if let Some(id) = node.kv_layer {
            let kv_layer = &self.kv_layers[id.0];
            let kind = kv_layer.kind.name();
            let side = match (node.op.spec().kv.is_recurrent(), node.outputs.is_empty()) {
                (true, _) => "changes",
                (false, true) => "writes",
                (false, false) => "reads",
            };
            let _ = write!(line, "  {side} {kind}[{}]", kv_layer.width);
        }
        for (i, (slot, id)) in node.weights.iter().enumerate() {
            let weight = self.weight(*id);
            let shape: Vec<String> = weight.shape.iter().map(usize::to_string).collect();
            let _ = write!(line, "  W {slot} {} {}", weight.ty, shape.join("×"));
            if let Some(cut) = &weight.cut {
                let whole: Vec<String> = cut.iter().map(|share| share.of.to_string()).collect();
                let _ = write!(line, " of {}", whole.join("×"));
            }
            if let Some(derived) = &weight.derived {
                let _ = write!(line, " from {} {}", derived.from.slot, derived.from.ty);
            }
            if let Some(kernel) = node.kernels.get(i) {
                let _ = write!(line, " by {}", named(kernel));
                if let Some(small) = &kernel.small_batch {
                    let _ = write!(line, ", small batches by {}", named(small));
                }
            }
        }
        // Kernels beyond the weights' serve the operation itself.
        for kernel in node.kernels.iter().skip(node.weights.len()) {
            let _ = write!(line, "  by {}", named(kernel));
        }
        line
    }

    fn shape(&self, id: ValueId) -> String {
        let value = self.value(id);
        let rows = match value.rows {
            RowCount::Rows => "rows".to_owned(),
            RowCount::Times(n) => format!("{n}·rows"),
            RowCount::AtMost(n) => format!("≤ {n} rows"),
        };
        let heads = if value.heads > 1 { format!("{}×", value.heads) } else { String::new() };
        let view = match value.storage {
            ValueStorage::View { of, offset } => format!(" in {}+{offset}", self.value(of).name),
            _ => String::new(),
        };
        // f32 is the default and is not printed.
        let dtype = if value.dtype == ValueType::F32 { String::new() } else { format!(" {}", value.dtype) };
        format!("[{rows}×{heads}{}{dtype}{view}]", value.width)
    }
}

/// A kernel's name, with the measured times that decided, if any.
fn named(kernel: &BoundKernel) -> String {
    match &kernel.decided_by {
        None => kernel.name.clone(),
        Some(times) => format!("{} ({times})", kernel.name),
    }
}
