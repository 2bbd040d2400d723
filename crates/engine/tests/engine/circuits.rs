//! Mutated circuits: each runs or is refused with an error. The few hundred mutants of the built-in
//! circuits are the same in every run.

use crate::support::{checkpoint, exhaustive};
use latent_engine::cache::Sequence;
use latent_engine::{Engine, EngineError, EngineOptions, LogitsRequest};
use latent_formats::Outline;
use latent_graph::circuit::{Block, OpSpec, SlotSpec, StreamSpec};
use latent_graph::passes::{BindOptions, CacheForm, MlaChoice, Precision};
use latent_graph::support::{Machine, support_report};
use latent_graph::{CheckpointTensors, Circuit, ModelConfig};
use latent_testing::ModelRecipe;
use latent_types::{CacheType, Tier};
use latent_viz::{Drawing, Options};
use serde_json::Value;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }
}

/// Sizes, conditions and factors that circuits use, and some that are invalid.
const WORDS: [&str; 30] = [
    "1",
    "0",
    "2",
    "7",
    "heads",
    "nope",
    "rope",
    "v",
    "kv_lora",
    "q_lora",
    "hidden",
    "vocab",
    "experts",
    "num_experts_per_tok",
    "moe_ffn",
    "shared_ffn",
    "intermediate",
    "heads*(nope+rope)",
    "kv_lora+rope",
    "18446744073709551615",
    "4611686018427387904*4",
    "dense",
    "moe",
    "!dense",
    "q_lora",
    "gated",
    "tied",
    "embedding_scale",
    "residual_scale",
    "{layer}",
];

/// Paths to every node of a JSON value.
fn nodes(value: &Value, path: String, found: &mut Vec<String>) {
    found.push(path.clone());
    match value {
        Value::Array(list) => {
            list.iter().enumerate().for_each(|(i, v)| nodes(v, format!("{path}/{i}"), found));
        }
        Value::Object(map) => map.iter().for_each(|(key, v)| nodes(v, format!("{path}/{key}"), found)),
        _ => {}
    }
}

/// One change: another word, an element that is removed, repeated or moved, or the value of another
/// node.
fn mutate(circuit: &mut Value, random: &mut Random) {
    let mut paths = Vec::new();
    nodes(circuit, String::new(), &mut paths);
    // Changes of descriptions have no effect.
    paths.retain(|path| !path.starts_with("/about") && !path.starts_with("/unused") && path.contains('/'));
    let strings: Vec<String> = paths
        .iter()
        .filter_map(|path| circuit.pointer(path)?.as_str().map(str::to_owned))
        .filter(|text| text.len() < 60)
        .collect();
    let other = circuit.pointer(&paths[random.below(paths.len())]).cloned().unwrap_or_default();
    let path = paths[random.below(paths.len())].clone();
    let choice = random.below(8);
    let Some(node) = circuit.pointer_mut(&path) else { return };
    match node {
        Value::String(text) => {
            *text = match choice {
                0..=4 => strings[random.below(strings.len())].clone(),
                _ => WORDS[random.below(WORDS.len())].to_owned(),
            };
        }
        Value::Array(list) if !list.is_empty() => {
            let (at, to) = (random.below(list.len()), random.below(list.len()));
            match choice {
                0..=2 => drop(list.remove(at)),
                3 | 4 => list.insert(to, list[at].clone()),
                5 | 6 => list.swap(at, to),
                _ => list.push(WORDS[random.below(WORDS.len())].into()),
            }
        }
        Value::Object(map) if !map.is_empty() => {
            let keys: Vec<String> = map.keys().cloned().collect();
            let key = keys[random.below(keys.len())].clone();
            match choice {
                0..=3 => drop(map.remove(&key)),
                _ => drop(map.insert(key, other)),
            }
        }
        Value::Bool(flag) => *flag = !*flag,
        node => *node = other,
    }
}

/// Prints and draws a circuit without loading the model.
fn look(file: &Arc<latent_formats::Checkpoint>, outline: &Outline, circuit: &Circuit) {
    let backend = latent_backends::cpu();
    let target = backend.target();
    let bind = BindOptions { precision: Precision::Default, tier: Tier::Portable, cache: CacheType::F16 };
    let machine =
        Machine { target, bind, mla: MlaChoice::Auto, form: CacheForm::Latent, circuit: Some(circuit) };
    let _ = support_report(outline, machine);
    let config = ModelConfig::from_checkpoint(file).unwrap();
    let options = Options {
        bind,
        max_batch_tokens: 32,
        layers: 0..config.layers.min(2),
        mtp: false,
        assumed: None,
        kernels: true,
    };
    let _ = Drawing::make(circuit, &config, &CheckpointTensors(file), target, &options);
}

/// Loads the model with this circuit, runs a step of one row, one of several, and a trace.
fn run(file: &Arc<latent_formats::Checkpoint>, circuit: Circuit, random: &mut Random) -> Result<(), String> {
    let forms = [MlaChoice::Auto, MlaChoice::Naive, MlaChoice::Absorbed, MlaChoice::SeparateScores];
    let options = EngineOptions {
        circuit: Some(Arc::new(circuit)),
        mla: forms[random.below(forms.len())],
        precision: [Precision::Default, Precision::Exact][random.below(2)],
        tier: [Some(Tier::Portable), None][random.below(2)],
        context: Some(64),
        threads: Some(1),
        force: true,
        ..EngineOptions::default()
    };
    let mut engine = Engine::load(&*latent_backends::cpu(), file, &options, &mut |_, _| {})
        .map_err(|error| error.to_string())?;
    let mut sequence = Sequence::default();
    let (all, go_on) = (&mut |_: usize, _: &[f32]| {}, &mut |_: usize| true);
    for tokens in [&[1u32, 2, 3][..], &[7], &[5; 20]] {
        engine
            .prefill(&mut sequence, tokens, 32, LogitsRequest::All, all, go_on)
            .map_err(|error| error.to_string())?;
    }
    let points = engine.activations(file).map_err(|error| error.to_string())?;
    let layers = 0..engine.config().layers;
    engine.release(sequence);
    engine.trace(&points, layers, &[37, 63, 148], go_on).map(drop).map_err(|error| error.to_string())
}

#[test]
fn every_mutant_of_a_circuit_runs_or_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let mut random = Random(14);
    let (mut ran, mut refused, mut unread) = (0, 0, 0);
    let shapes = [
        "tiny-v2",
        "tiny-v3",
        "tiny-glm",
        "tiny-dense",
        "tiny-minicpm3",
        "tiny-plm",
        "tiny-gate",
        "tiny-nope",
    ];
    for (shape, kind, as_folder) in shapes
        .iter()
        .flat_map(|shape| [(shape, "Q8_0", false), (shape, "F8_E4M3", true), (shape, "F32", false)])
    {
        let recipe = ModelRecipe::new(shape, kind.parse().unwrap());
        let path = folder.path().join(format!("{shape}-{kind}{}", if as_folder { "" } else { ".gguf" }));
        let written = if as_folder { recipe.write_folder(&path) } else { recipe.write_gguf(&path) };
        let file = checkpoint(&written.unwrap().first);
        let outline = Outline::open(&path).unwrap();
        let name = ModelConfig::from_checkpoint(&file).unwrap().circuit;
        let whole = serde_json::to_value(Circuit::named(&name).unwrap()).unwrap();
        for number in 0..mutants() {
            let mut mutant = whole.clone();
            (0..1 + random.below(3)).for_each(|_| mutate(&mut mutant, &mut random));
            let text = mutant.to_string();
            let done = catch_unwind(AssertUnwindSafe(|| match Circuit::parse(&text) {
                Ok(circuit) => {
                    if number % 4 == 0 {
                        look(&file, &outline, &circuit);
                    }
                    Some(run(&file, circuit, &mut random))
                }
                Err(_) => None,
            }));
            match done {
                Ok(Some(Ok(()))) => ran += 1,
                Ok(Some(Err(_))) => refused += 1,
                Ok(None) => unread += 1,
                Err(_) => panic!("mutant {number} of {name} with {shape} {kind} panicked: {text}"),
            }
        }
    }
    // Most of the mutants that can be parsed get as far as the audit, and some run.
    println!("{ran} ran, {refused} were refused, {unread} could not be read");
    assert!(
        ran > mutants() && refused > mutants(),
        "{ran} ran, {refused} were refused, {unread} could not be read"
    );
}

/// Number of mutants of each model.
fn mutants() -> usize {
    if exhaustive() { 24 } else { 4 }
}

/// Circuits that match the tensors of the file but contradict themselves. Each of them once caused
/// an index out of range.
#[test]
fn circuits_that_contradict_themselves_are_refused_before_they_run() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("v3.gguf");
    ModelRecipe::new("tiny-v3", "Q8_0".parse().unwrap()).write_gguf(&path).unwrap();
    let file = checkpoint(&path);
    type Edit = fn(&mut Circuit);
    let edits: [(&str, &str, Edit); 10] = [
        ("experts in one matrix", "A28", |c| {
            op(c, "expert_mlp").weights =
                ["shared_gate", "shared_up", "shared_down"].map(str::to_owned).into();
        }),
        ("a bias of another width", "A28", |c| {
            op(c, "route").weights[1] = "ffn_norm".into();
        }),
        ("a router to another number of experts", "A28", |c| {
            op(c, "route").weights[0] = "shared_gate".into();
        }),
        ("one tensor in two slots", "A07", |c| {
            let norm = c.blocks["mla"].weights["attn_norm"].gguf.clone();
            weight(c, "ffn_norm").gguf = norm;
        }),
        ("more matrices than there can be", "1024 matrices", |c| {
            weight(c, "expert_gate").shape[0] = "18446744073709551615".into();
        }),
        ("no matrix", "dimensions of at least 1", |c| {
            weight(c, "expert_gate").shape[0] = "0".into();
        }),
        ("a cached row without its latent", "A27", |c| {
            cache(c).row.remove(0);
        }),
        ("a cached row whose key does not turn with its position", "A83", |c| {
            cache(c).row[1].rotated = false;
        }),
        ("a cached row of more elements than there can be", "16777216", |c| {
            cache(c).row[0].width = "kv_lora*16777216".into();
        }),
        ("a cache that nothing states", "mla_attention writes the cache", |c| {
            c.blocks.get_mut("mla").unwrap().cache.remove("latent");
        }),
    ];
    for (what, word, edit) in edits {
        let mut circuit = Circuit::named("deepseek2").unwrap().clone();
        edit(&mut circuit);
        let options = EngineOptions {
            circuit: Some(Arc::new(circuit)),
            context: Some(64),
            threads: Some(1),
            ..EngineOptions::default()
        };
        let error = Engine::load(&*latent_backends::cpu(), &file, &options, &mut |_, _| {}).err();
        let findings = match &error {
            Some(EngineError::Audit { findings, .. }) => findings.iter().map(ToString::to_string).collect(),
            Some(error) => vec![error.to_string()],
            None => Vec::new(),
        };
        assert!(findings.iter().any(|finding| finding.contains(word)), "{what}: {findings:#?}");
    }
}

fn moe(circuit: &mut Circuit) -> &mut Block {
    circuit.blocks.get_mut("moe").unwrap()
}

/// The operation `word` of the block of experts.
fn op<'c>(circuit: &'c mut Circuit, word: &str) -> &'c mut OpSpec {
    moe(circuit).ops.iter_mut().find(|op| op.op == word).unwrap()
}

fn weight<'c>(circuit: &'c mut Circuit, slot: &str) -> &'c mut SlotSpec {
    moe(circuit).weights.get_mut(slot).unwrap()
}

fn cache(circuit: &mut Circuit) -> &mut StreamSpec {
    circuit.blocks.get_mut("mla").unwrap().cache.get_mut("latent").unwrap()
}
