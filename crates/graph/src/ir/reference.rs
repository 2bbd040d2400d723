//! The reference of operations, `docs/ir.md`: written from here, and its formulas held equal to [`Node::cost`](super::Node::cost) by a test.

use super::Op;
use std::fmt::Write;

/// What an operation is, for people. Shapes and costs are expressions of the names in the table `Names` of `docs/ir.md`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpReference {
    /// Who makes it: `circuit`, or the pass that does.
    pub made_by: &'static str,
    /// What it does, in a sentence.
    pub what: &'static str,
    /// What it computes.
    pub formula: &'static str,
    /// Where it comes from.
    pub source: &'static str,
    /// Inputs with shapes.
    pub inputs: &'static [(&'static str, &'static str)],
    /// Outputs with shapes.
    pub outputs: &'static [(&'static str, &'static str)],
    /// Weights with shapes.
    pub weights: &'static [(&'static str, &'static str)],
    /// Bytes of weights read in a step.
    pub weight_bytes: &'static str,
    /// Bytes of cache read or written.
    pub cache_bytes: &'static str,
    /// Floating-point operations, a multiplication and an addition counted as two.
    pub flops: &'static str,
}

/// What the names in shapes and costs mean.
pub(crate) const GLOSSARY: [(&str, &str); 25] = [
    ("rows", "rows of the step: new tokens of all sequences (in the head: rows whose logits are wanted)"),
    ("cached", "rows that a sequence has in the cache before the step"),
    ("seen", "cached + rows: rows that attention reads"),
    ("pairs", "rows · cached + rows · (rows + 1) / 2: pairs of a query and a key that it sees"),
    ("vocab, hidden", "tokens of the vocabulary; numbers of a residual row"),
    ("width, inputs, outputs", "numbers of a row; of a matrix, numbers that it takes and makes"),
    ("heads", "heads of the queries"),
    ("nope, rope, v", "numbers of a head: its key without position, its rotated key, its value"),
    ("kv_lora", "numbers of a latent"),
    ("ffn", "numbers between the halves of an MLP"),
    ("experts, used", "routed experts; those that a row goes to"),
    ("moe_ffn", "numbers between the halves of an expert"),
    (
        "reached",
        "experts that the rows reach if routing is uniform: experts · (1 − (1 − used / experts)^rows)",
    ),
    ("weights", "numbers of the node's weights"),
    ("weight_bytes", "bytes of the node's weights, as stored"),
    ("row_bytes", "bytes of one row of the embedding, as stored"),
    ("expert_weights, expert_bytes", "the same of one expert"),
    (
        "stream_bytes",
        "bytes of a row of the node's cache stream: kv_lora + rope numbers (with `int8`, and a scale), or heads · (nope + rope + v)",
    ),
    ("W", "a weight; its rows are outputs"),
    ("⊙", "product number by number"),
    ("[a | b]", "a and b in one row"),
    ("c, k_rope", "the latent and the rotated key of a token, which the cache holds"),
    ("q̃, õ", "a query and a result in latent space"),
    ("R(p)", "rotation of each pair of numbers by the angles of position p"),
    ("s", "scale of the scores, with YaRN's and the temperature's factors"),
];

const NOTHING: OpReference = OpReference {
    made_by: "circuit",
    what: "",
    formula: "",
    source: "",
    inputs: &[],
    outputs: &[],
    weights: &[],
    weight_bytes: "0",
    cache_bytes: "0",
    flops: "0",
};

const MLA: &str = "DeepSeek-V2, arXiv:2405.04434, section 2.1";
const ABSORBED: &str = "DeepSeek-V2, arXiv:2405.04434, section 2.1.2 and appendix C: matrices absorbed";
const EXPERTS: &str = "DeepSeekMoE, arXiv:2401.06066; DeepSeek-V3, arXiv:2412.19437, section 2.1.2";
const RESIDUAL: &str = "He and others, arXiv:1512.03385";
const OURS: &str = "ARCHITECTURE.md";

const CHOICE: &str = "`lower_mla`";
const W_UK: (&str, &str) = ("k_b", "heads × kv_lora × nope, or the keys' rows of kv_b");
const W_UV: (&str, &str) = ("v_b", "heads × v × kv_lora, or the values' rows of kv_b");

impl Op {
    /// Every operation, factors set to 1, in the order of the reference.
    pub const ALL: [Op; 22] = [
        Op::Embed { scale: 1.0 },
        Op::RmsNorm,
        Op::Linear,
        Op::Split,
        Op::Rope,
        Op::MlaAttention,
        Op::Route,
        Op::ExpertMlp,
        Op::SiluMul,
        Op::Relu2,
        Op::Add { scale: 1.0 },
        Op::Scale { by: 1.0 },
        Op::GatherRows,
        Op::LatentStore,
        Op::ExpandedStore,
        Op::AbsorbK,
        Op::AttendLatent,
        Op::AttendSeparate,
        Op::AbsorbV,
        Op::AttendExpanded,
        Op::ExpertGateUp,
        Op::ExpertDown,
    ];

    /// What it is, for people.
    pub fn reference(&self) -> OpReference {
        match self {
            Op::Embed { .. } | Op::RmsNorm | Op::Linear | Op::Split | Op::Rope => self.row_wise(),
            Op::Route | Op::ExpertMlp | Op::ExpertGateUp | Op::ExpertDown => self.experts(),
            Op::SiluMul | Op::Relu2 | Op::Add { .. } | Op::Scale { .. } | Op::GatherRows => {
                self.elementwise()
            }
            _ => self.attention(),
        }
    }

    fn row_wise(&self) -> OpReference {
        match self {
            Op::Embed { .. } => OpReference {
                what: "Rows of the embedding, times a factor where the model has one.",
                formula: "h[r] = s · E[token[r]]",
                source: "the circuit",
                inputs: &[("tokens", "rows")],
                outputs: &[("h", "rows × hidden, the residual stream")],
                weights: &[("embed", "vocab × hidden")],
                weight_bytes: "rows*row_bytes",
                ..NOTHING
            },
            Op::RmsNorm => OpReference {
                what: "Divides each row by its root mean square and multiplies by a weight. Where only products and cache stores read the \
                       result, `fold_norms` makes it their prologue.",
                formula: "y = x / √(mean(x²) + ε) · w",
                source: "Zhang and Sennrich, arXiv:1910.07467",
                inputs: &[("x", "rows × width")],
                outputs: &[("y", "rows × width")],
                weights: &[("norm", "width")],
                ..NOTHING
            },
            Op::Linear => OpReference {
                what: "One product for each weight, all of the same input. `fuse_projections` joins those that share it; \
                       `fold_epilogues` lets it apply an activation or add to the residual.",
                formula: "y = x · Wᵀ",
                source: "the circuit",
                inputs: &[("x", "rows × inputs"), ("sum", "rows × outputs, with the epilogue `add`")],
                outputs: &[("yᵢ", "rows × outputs, one for each weight (with `silu·up` one for both)")],
                weights: &[("any", "outputs × inputs, one or several")],
                weight_bytes: "weight_bytes",
                flops: "2*rows*weights",
                ..NOTHING
            },
            Op::Split => OpReference {
                what: "Parts of each head, as views: nothing is moved.",
                formula: "[a | b] = x",
                source: OURS,
                inputs: &[("x", "rows × heads × (a + b)")],
                outputs: &[("a, b", "rows × heads × a, rows × heads × b")],
                ..NOTHING
            },
            _ => OpReference {
                what: "Rotates pairs of numbers by the row's position: neighbours, or numbers half a row apart. `fold_ropes` makes it \
                       part of what stores a key or absorbs a query.",
                formula: "(a, b) ← (a·cos θ − b·sin θ, a·sin θ + b·cos θ),  θᵢ = p · ωᵢ",
                source: "Su and others, arXiv:2104.09864",
                inputs: &[("x", "rows × heads × rope")],
                outputs: &[("y", "rows × heads × rope, in place or a copy")],
                ..NOTHING
            },
        }
    }

    fn elementwise(&self) -> OpReference {
        match self {
            Op::SiluMul => OpReference {
                what: "The activation of a gated MLP.",
                formula: "y = silu(gate) ⊙ up,  silu(g) = g / (1 + e⁻ᵍ)",
                source: "Shazeer, arXiv:2002.05202",
                inputs: &[("gate, up", "rows × ffn each")],
                outputs: &[("y", "rows × ffn")],
                ..NOTHING
            },
            Op::Relu2 => OpReference {
                what: "The activation of an MLP without gate.",
                formula: "y = max(x, 0)²",
                source: "So and others, arXiv:2109.08668",
                inputs: &[("x", "rows × ffn")],
                outputs: &[("y", "rows × ffn")],
                ..NOTHING
            },
            Op::Add { .. } => OpReference {
                what: "Adds to the residual stream, in place, times a factor where the model has one.",
                formula: "y = a + s · b",
                source: RESIDUAL,
                inputs: &[("a, b", "rows × width each")],
                outputs: &[("y", "rows × width, in the place of a")],
                ..NOTHING
            },
            Op::Scale { .. } => OpReference {
                what: "Multiplies by a factor, in place.",
                formula: "y = s · x",
                source: "the circuit",
                inputs: &[("x", "rows × width")],
                outputs: &[("y", "rows × width, in the place of x")],
                ..NOTHING
            },
            _ => OpReference {
                what: "The residual rows whose logits are wanted: the head works on no others.",
                formula: "y[i] = x[wanted[i]]",
                source: OURS,
                inputs: &[("h", "rows of the whole step × hidden")],
                outputs: &[("y", "rows × hidden")],
                ..NOTHING
            },
        }
    }

    fn experts(&self) -> OpReference {
        match self {
            Op::Route => OpReference {
                what: "Chooses experts by the router's rules (gating, groups, bias, normalisation, scale: see `RouterSpec`).",
                formula: "S = gate(x · Wᵀ);  chosen = top-k(S + bias) in the best groups;  mix = scale · S / Σ S over the chosen",
                source: EXPERTS,
                inputs: &[("logits", "rows × experts")],
                outputs: &[("chosen", "rows × used, ids"), ("mix", "rows × used")],
                weights: &[("router_bias", "experts, optional")],
                ..NOTHING
            },
            Op::ExpertMlp => OpReference {
                what: "The routed experts as the circuit says it; `group_experts` makes `expert_gate_up` and `expert_down` of it.",
                formula: "y = Σₑ mixₑ · W_down,ₑ (silu(W_gate,ₑ x) ⊙ W_up,ₑ x)",
                source: EXPERTS,
                inputs: &[("x", "rows × hidden"), ("chosen, mix", "rows × used each")],
                outputs: &[("y", "rows × hidden")],
                weights: &[
                    ("expert_gate, expert_up", "experts × moe_ffn × hidden each, or both in expert_gate_up"),
                    ("expert_down", "experts × hidden × moe_ffn"),
                ],
                ..NOTHING
            },
            Op::ExpertGateUp => OpReference {
                made_by: "`group_experts`",
                what: "First half of the experts: rows sorted by expert, each expert's weights read once.",
                formula: "a[r,e] = silu(W_gate,ₑ x) ⊙ W_up,ₑ x",
                source: EXPERTS,
                inputs: &[("x", "rows × hidden"), ("chosen", "rows × used")],
                outputs: &[("a", "used·rows × moe_ffn, sorted by expert")],
                weights: &[(
                    "expert_gate, expert_up",
                    "experts × moe_ffn × hidden each, or both in expert_gate_up",
                )],
                weight_bytes: "reached*expert_bytes",
                flops: "2*rows*used*expert_weights",
                ..NOTHING
            },
            _ => OpReference {
                made_by: "`group_experts`",
                what: "Second half of the experts and their sum, in ascending order of experts.",
                formula: "y[r] = Σₑ mix[r,e] · W_down,ₑ a[r,e]",
                source: EXPERTS,
                inputs: &[
                    ("a", "used·rows × moe_ffn, sorted by expert"),
                    ("chosen, mix", "rows × used each"),
                    ("sum", "rows × hidden, with the epilogue `add`"),
                ],
                outputs: &[("y", "rows × hidden")],
                weights: &[("expert_down", "experts × hidden × moe_ffn")],
                weight_bytes: "reached*expert_bytes",
                flops: "2*rows*used*expert_weights",
                ..NOTHING
            },
        }
    }

    fn attention(&self) -> OpReference {
        match self {
            Op::LatentStore => OpReference {
                made_by: CHOICE,
                what: "Writes each row's latent and rotated key into the cache. Norm and rotation are usually folded into it.",
                formula: "cache[p] ← [c | k_rope]",
                source: MLA,
                inputs: &[("latent", "rows × kv_lora"), ("k_rope", "rows × rope")],
                outputs: &[("(stream)", "kv_lora + rope numbers a row")],
                cache_bytes: "rows*stream_bytes",
                ..NOTHING
            },
            Op::ExpandedStore => OpReference {
                made_by: CHOICE,
                what: "Writes each row's keys and values of every head into the cache: what attention without a latent cache stores.",
                formula: "cache[p] ← [W_UK c | k_rope | W_UV c] of every head",
                source: MLA,
                inputs: &[("latent", "rows × kv_lora"), ("k_rope", "rows × rope")],
                outputs: &[("(stream)", "heads · (nope + rope + v) numbers a row")],
                weights: &[W_UK, W_UV],
                weight_bytes: "weight_bytes",
                cache_bytes: "rows*stream_bytes",
                flops: "2*rows*weights",
            },
            Op::AbsorbK => OpReference {
                made_by: CHOICE,
                what: "Moves the queries into latent space, so that they meet the latents themselves.",
                formula: "q̃ = [W_UKᵀ q_nope | q_rope]",
                source: ABSORBED,
                inputs: &[("q_nope", "rows × heads × nope"), ("q_rope", "rows × heads × rope")],
                outputs: &[("q_latent", "rows × heads × (kv_lora + rope)")],
                weights: &[W_UK],
                weight_bytes: "weight_bytes",
                flops: "2*rows*heads*nope*kv_lora",
                ..NOTHING
            },
            Op::AttendLatent | Op::AttendSeparate => OpReference {
                made_by: CHOICE,
                what: if *self == Op::AttendLatent {
                    "Attention of all heads to one row a token, whose first kv_lora numbers are its value too. A cached row is read once for \
                     all heads."
                } else {
                    "The same with the scores of content and rope computed apart and added."
                },
                formula: if *self == Op::AttendLatent {
                    "õ = Σⱼ softmaxⱼ(s · q̃ · [cⱼ | k_ropeⱼ]) · cⱼ"
                } else {
                    "õ = Σⱼ softmaxⱼ(s · (q̃_c · cⱼ + q_rope · k_ropeⱼ)) · cⱼ"
                },
                source: if *self == Op::AttendLatent {
                    ABSORBED
                } else {
                    "DeepSeek-V3's published inference code"
                },
                inputs: &[
                    ("q_latent", "rows × heads × (kv_lora + rope)"),
                    ("(stream)", "kv_lora + rope numbers a row"),
                ],
                outputs: &[("mix", "rows × heads × kv_lora")],
                cache_bytes: "seen*stream_bytes",
                flops: "2*pairs*heads*(kv_lora+rope+kv_lora)",
                ..NOTHING
            },
            Op::AbsorbV => OpReference {
                made_by: CHOICE,
                what: "Takes what attention collected in latent space to each head's values.",
                formula: "o = W_UV õ",
                source: ABSORBED,
                inputs: &[("mix", "rows × heads × kv_lora")],
                outputs: &[("attn", "rows × heads × v")],
                weights: &[W_UV],
                weight_bytes: "weight_bytes",
                flops: "2*rows*heads*v*kv_lora",
                ..NOTHING
            },
            Op::AttendExpanded => OpReference {
                made_by: CHOICE,
                what: "Attention over keys and values of every head, expanded from the cached latents for a group of heads at a time, or \
                       read from an expanded cache (then without weights).",
                formula: "kⱼ = [W_UK cⱼ | k_ropeⱼ],  vⱼ = W_UV cⱼ;  o = Σⱼ softmaxⱼ(s · q · kⱼ) · vⱼ",
                source: MLA,
                inputs: &[
                    ("q_nope", "rows × heads × nope"),
                    ("q_rope", "rows × heads × rope"),
                    ("(stream)", "latent or expanded"),
                ],
                outputs: &[("attn", "rows × heads × v")],
                weights: &[W_UK, W_UV],
                weight_bytes: "weight_bytes",
                cache_bytes: "seen*stream_bytes",
                flops: "2*pairs*heads*(nope+rope+v)+2*seen*weights",
            },
            _ => OpReference {
                what: "Multi-head latent attention as the circuit says it, whatever the formulation; `lower_mla` makes a cache \
                       store and one or two formulations of it.",
                formula: "o = Σⱼ softmaxⱼ(s · (q_nope · W_UK cⱼ + q_rope · k_ropeⱼ)) · W_UV cⱼ",
                source: MLA,
                inputs: &[
                    ("q_nope", "rows × heads × nope"),
                    ("q_rope", "rows × heads × rope"),
                    ("latent", "rows × kv_lora"),
                    ("k_rope", "rows × rope"),
                ],
                outputs: &[("attn", "rows × heads × v")],
                weights: &[W_UK, W_UV],
                ..NOTHING
            },
        }
    }
}

/// The whole reference as Markdown: `docs/ir.md`.
pub fn reference() -> String {
    let mut text = INTRODUCTION.to_owned();
    text.push_str("\n## Names\n\n| name | meaning |\n|---|---|\n");
    for (name, meaning) in GLOSSARY {
        let _ = writeln!(text, "| {} | {} |", cell(name), cell(meaning));
    }
    text.push_str("\n## All operations\n\n| operation | made by | computes |\n|---|---|---|\n");
    for op in Op::ALL {
        let of = op.reference();
        let word = op.word();
        let _ = writeln!(text, "| [`{word}`](#{word}) | {} | {} |", of.made_by, cell(of.formula));
    }
    for op in Op::ALL {
        let of = op.reference();
        let _ = write!(text, "\n## {}\n\n{}\n\n    {}\n\n| | |\n|---|---|\n", op.word(), of.what, of.formula);
        let _ = writeln!(text, "| source | {} |", cell(of.source));
        for (what, list) in [("in", of.inputs), ("out", of.outputs), ("weight", of.weights)] {
            for (name, shape) in list {
                let _ = writeln!(text, "| {what} | {}: {} |", cell(name), cell(shape));
            }
        }
        for (what, cost) in
            [("bytes of weights", of.weight_bytes), ("bytes of cache", of.cache_bytes), ("FLOPs", of.flops)]
        {
            if cost != "0" {
                let _ = writeln!(text, "| {what} | {} |", cost.replace('*', " · ").replace('+', " + "));
            }
        }
    }
    text
}

/// Text in a cell of a table: a bar would end it.
fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}

const INTRODUCTION: &str = "# Operations of the IR

Written from the code (`crates/graph/src/ir/reference.rs`) by a test, which also holds every cost below equal to what plans,
drawings and the profiler count: after a change, `UPDATE_DOCS=1 cargo test -p latent-graph reference`.

A model's circuit (`crates/graph/circuits/*.json`) names operations; [`Ir::build`](../crates/graph/src/ir/build.rs) makes one node of
each for every layer (an `mlp` becomes two products with the activation between, a `route` a product and the choice); passes then
lower and fuse them. `latent graph ir` prints the first form of a model, `latent graph plan` the last.

* A **value** is a matrix of rows × heads × width numbers in f32. It has a place of its own, or is a view: a part of another, or the
  whole of it overwritten. The residual stream and the logits lie outside of the plan's arena.
* A **lane** says which rows a node works on: all, or those whose segment runs absorbed or naive. One plan holds both.
* A **prologue** comes before the operation, on its first input: RMSNorm, or the rotation of its last.
* An **epilogue** comes after it, before results are stored: `silu·up`, `relu²`, `add` (in place, times a factor).
* A **stream** is what one layer keeps in the cache for every token: `[latent | rope key]`, or expanded keys and values.

Bytes are what has to come from memory in a step, each weight once; values between operations are small and stay in the caches of the
processor. Operations that only pass over rows count as free.
";

#[cfg(test)]
mod tests {
    use super::super::{AttentionPath, KvLayerKind, Node, Step};
    use super::*;
    use crate::circuit::{ConfigVars, expression};
    use crate::ir::Ir;
    use crate::passes::snapshots::{config, lowered};
    use crate::passes::{CacheForm, MlaChoice};
    use latent_types::CacheType;
    use std::collections::HashSet;

    #[test]
    fn the_reference_in_docs_is_the_one_of_the_code() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/ir.md");
        if std::env::var_os("UPDATE_DOCS").is_some() {
            std::fs::write(path, reference()).unwrap();
        }
        let kept = std::fs::read_to_string(path).unwrap_or_default();
        assert_eq!(
            kept,
            reference(),
            "docs/ir.md is old: UPDATE_DOCS=1 cargo test -p latent-graph reference"
        );
    }

    #[test]
    fn every_operation_is_in_it_once() {
        let words: HashSet<&str> = Op::ALL.iter().map(Op::word).collect();
        assert_eq!(words.len(), Op::ALL.len());
        for op in Op::ALL {
            let of = op.reference();
            assert!(
                !of.what.is_empty()
                    && !of.formula.is_empty()
                    && !of.source.is_empty()
                    && !of.inputs.is_empty()
                    && !of.outputs.is_empty()
            );
        }
    }

    fn names(ir: &Ir, node: &Node, step: Step) -> ConfigVars {
        let c = config();
        let a = &c.attention;
        let moe = c.moe.unwrap();
        let sum = |f: &dyn Fn(&crate::circuit::Weight) -> usize| -> usize {
            node.weights.iter().map(|(_, id)| f(ir.weight(*id))).sum()
        };
        let mut numbers = sum(&|w| w.elements());
        let mut bytes = sum(&|w| w.bytes());
        if node.weight("kv_b").is_some() && node.op != Op::AttendExpanded && node.op != Op::ExpandedStore {
            // the half that the operation needs
            let half = if node.op == Op::AbsorbK { a.nope } else { a.v };
            (numbers, bytes) = (numbers * half / (a.nope + a.v), bytes * half / (a.nope + a.v));
        }
        let on_the_fly = node.kv_layer.is_some_and(|id| ir.kv_layers[id.0].kind == KvLayerKind::Latent);
        if node.op == Op::AttendExpanded && !on_the_fly {
            assert_eq!(numbers, 0);
        }
        let rows = step.rows;
        ConfigVars::of_dimensions(&[
            ("rows", rows),
            ("seen", rows + step.cached),
            ("pairs", rows * step.cached + rows * (rows + 1) / 2),
            ("heads", a.heads),
            ("nope", a.nope),
            ("rope", a.rope),
            ("v", a.v),
            ("kv_lora", a.kv_lora_rank),
            ("used", moe.num_experts_per_tok),
            // of one row: as many as it goes to
            ("reached", moe.num_experts_per_tok),
            ("weights", numbers),
            ("weight_bytes", bytes),
            ("row_bytes", c.hidden_size * 2),
            ("expert_weights", numbers / moe.experts),
            ("expert_bytes", bytes / moe.experts),
            ("stream_bytes", node.kv_layer.map_or(0, |id| ir.kv_layers[id.0].row(step.cache).bytes())),
        ])
    }

    #[test]
    fn its_formulas_are_what_nodes_count() {
        let mut seen = HashSet::new();
        for combined in [false, true] {
            for (mla, form) in [
                (MlaChoice::Auto, CacheForm::Latent),
                (MlaChoice::SeparateScores, CacheForm::Latent),
                (MlaChoice::Naive, CacheForm::Expanded),
            ] {
                let ir = lowered(mla, form, combined);
                for (rows, cached) in [(1, 0), (1, 100), (7, 30)] {
                    for node in &ir.nodes {
                        let experts = matches!(node.op, Op::ExpertGateUp | Op::ExpertDown);
                        if experts && rows > 1 {
                            continue;
                        }
                        let step = Step {
                            rows,
                            cached,
                            sequences: 1,
                            cache: CacheType::F16,
                            path: AttentionPath::All,
                        };
                        let (cost, of) = (node.cost(&ir, step), node.op.reference());
                        let names = names(&ir, node, step);
                        let value = |text: &str| expression::evaluate(text, &names).unwrap() as f64;
                        let close = |a: f64, b: f64| (a - b).abs() <= 1e-9 * a.abs().max(1.0);
                        let what = format!("{} {mla} {form:?} kv_b {combined}, {rows} rows", node.op.word());
                        assert!(close(cost.weight_bytes, value(of.weight_bytes)), "{what}: {cost:?}");
                        assert!(close(cost.cache_bytes, value(of.cache_bytes)), "{what}: {cost:?}");
                        assert!(close(cost.flops, value(of.flops)), "{what}: {cost:?} {}", value(of.flops));
                        seen.insert(node.op.word());
                    }
                }
            }
        }
        let missing: Vec<&str> = Op::ALL.iter().map(Op::word).filter(|word| !seen.contains(word)).collect();
        // lowered away, or of other models
        assert_eq!(missing, ["mla_attention", "expert_mlp", "relu2", "scale"]);
    }
}
