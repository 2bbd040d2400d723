//! The IR as a Graphviz drawing.

use super::{AttentionPath, Ir};
use std::fmt::Write;

impl Ir {
    /// A `digraph` with a box per node, a cluster per layer (or per phase if `phases` is given) and
    /// an edge per value.
    pub fn to_dot(&self, phases: Option<&[usize]>) -> String {
        let mut text =
            String::from("digraph latent {\n  rankdir=TB; node [shape=box, fontname=\"monospace\"];\n");
        let group = |n: usize| -> Option<String> {
            match phases {
                Some(phases) => Some(format!("phase {}", phases[n])),
                None => self.nodes[n].layer.map(|layer| format!("layer {layer}")),
            }
        };
        let mut groups: Vec<Option<String>> = Vec::new();
        for n in 0..self.nodes.len() {
            if !groups.contains(&group(n)) {
                groups.push(group(n));
            }
        }
        for (g, name) in groups.iter().enumerate() {
            if let Some(name) = name {
                let _ = writeln!(text, "  subgraph cluster_{g} {{ label=\"{name}\"; color=gray;");
            }
            for n in (0..self.nodes.len()).filter(|&n| group(n) == *name) {
                let _ = writeln!(text, "    n{n} [label=\"{}\"{}];", self.box_label(n), self.style(n));
            }
            if name.is_some() {
                text.push_str("  }\n");
            }
        }
        self.edges(&mut text);
        text.push_str("}\n");
        text
    }

    fn box_label(&self, n: usize) -> String {
        let node = &self.nodes[n];
        let slots: Vec<&str> = node.weights.iter().map(|(slot, _)| slot.as_str()).collect();
        let weights = if slots.is_empty() { String::new() } else { format!("\\n{}", slots.join(" ")) };
        format!("{}{weights}", node.op.word())
    }

    fn style(&self, n: usize) -> &'static str {
        match self.nodes[n].path {
            AttentionPath::All => "",
            AttentionPath::Absorbed => ", style=filled, fillcolor=\"#dbeafe\"",
            AttentionPath::Naive => ", style=filled, fillcolor=\"#fef3c7\"",
        }
    }

    /// Edges from producers to readers of values, and from the store of a KV layer to its readers.
    fn edges(&self, text: &mut String) {
        for (n, node) in self.nodes.iter().enumerate() {
            for id in &node.inputs {
                // Paths without common rows have separate producers, and only those of the reader's
                // rows count.
                let made = |m: &usize| {
                    let earlier = &self.nodes[*m];
                    earlier.outputs.contains(id) && earlier.path.meets(node.path)
                };
                for maker in (0..n).filter(made) {
                    let _ = writeln!(text, "  n{maker} -> n{n} [label=\"{}\"];", self.value(*id).name);
                }
            }
            if let Some(kv_layer) = node.kv_layer
                && !node.outputs.is_empty()
            {
                // Attention depends on the store of its layer through the cache, which no value
                // shows.
                let store = (0..n)
                    .find(|&m| self.nodes[m].kv_layer == Some(kv_layer) && self.nodes[m].outputs.is_empty());
                if let Some(store) = store {
                    let _ = writeln!(text, "  n{store} -> n{n} [label=\"cache\", style=dashed];");
                }
            }
        }
    }
}
