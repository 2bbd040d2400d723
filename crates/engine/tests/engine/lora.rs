//! LoRA adapters that are applied at run time give the logits of weights into which they are
//! merged.

use crate::support::adapters::{KvSizes, write_merged};
use crate::support::{all_logits, bits, checkpoint, engine, error, side_by_side, tiers};
use latent_backend::AdapterScales;
use latent_backend_reference::ReferenceBackend;
use latent_engine::cache::Sequence;
use latent_engine::{Engine, EngineOptions, LogitsRequest, SeqInput};
use latent_formats::{AdapterFile, Checkpoint, CheckpointSource};
use latent_graph::ModelConfig;
use latent_graph::passes::{MlaChoice, Precision};
use latent_testing::{
    ModelRecipe, RandomPair, RandomWeightTypes, random_pairs, sample_of, write_gguf_adapter,
    write_peft_adapter,
};
use latent_types::{TensorType, Tier};
use std::path::{Path, PathBuf};
use std::sync::Arc;

const TOKENS: [u32; 9] = [256, 5, 99, 300, 7, 7, 42, 511, 0];
const ALPHA: f32 = 8.0;

fn options(tier: Tier, mla: MlaChoice) -> EngineOptions {
    let (tier, threads, context) = (Some(tier), Some(2), Some(512));
    EngineOptions { mla, precision: Precision::Exact, tier, threads, context, ..EngineOptions::default() }
}

/// A random f32 model in a folder.
struct Base {
    folder: tempfile::TempDir,
    checkpoint: Arc<Checkpoint>,
    kv: KvSizes,
    architecture: String,
}

impl Base {
    fn new(shape: &str, legacy: bool) -> Base {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("base.gguf");
        let kind = RandomWeightTypes::from(TensorType::F32);
        ModelRecipe { layers: Some(2), legacy, ..ModelRecipe::new(shape, kind) }.write_gguf(&path).unwrap();
        let checkpoint = checkpoint(&path);
        let a = ModelConfig::from_checkpoint(&checkpoint).unwrap().attention;
        let kv = KvSizes { heads: a.heads, nope: a.nope, v: a.v, kv_lora: a.kv_lora_rank };
        let CheckpointSource::Gguf(source) = checkpoint.source() else { panic!("a GGUF file") };
        let architecture = source.metadata.str("general.architecture").unwrap().unwrap().to_owned();
        Base { folder, checkpoint, kv, architecture }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The tensors that an adapter may change.
    fn targets(&self) -> Vec<String> {
        let all = random_pairs(&self.checkpoint, 1, None, |name| {
            name.ends_with(".weight") && !name.contains("token_embd") && !name.contains("conv1d")
        });
        all.unwrap().into_iter().map(|pair| pair.target).collect()
    }

    fn pairs(&self, seed: u64, select: impl Fn(&str) -> bool) -> Vec<RandomPair> {
        let targets = self.targets();
        random_pairs(&self.checkpoint, seed, None, |name| targets.iter().any(|t| t == name) && select(name))
            .unwrap()
    }

    fn write(&self, name: &str, pairs: &[RandomPair]) -> PathBuf {
        let path = self.path(name);
        write_gguf_adapter(&path, &self.architecture, ALPHA, TensorType::F32, pairs).unwrap();
        path
    }

    /// The model with adapters and their scales.
    fn with(&self, adapters: &[(&Path, f32)]) -> Arc<Checkpoint> {
        let open = |(path, scale): &(&Path, f32)| (AdapterFile::open(path).unwrap(), *scale);
        let own = Checkpoint::open(&self.path("base.gguf")).unwrap();
        Arc::new(own.with_adapters(adapters.iter().map(open).collect()).unwrap())
    }

    fn merged(&self, name: &str, adapters: &[(&[RandomPair], f32, f32)]) -> Arc<Checkpoint> {
        let path = self.path(name);
        write_merged(&path, &self.checkpoint, self.kv, adapters);
        checkpoint(&path)
    }
}

fn mean(a: &[Vec<f32>], b: &[Vec<f32>]) -> f64 {
    a.iter().zip(b).map(|(a, b)| error(a, b)).sum::<f64>() / a.len() as f64
}

fn logits(model: &Arc<Checkpoint>, tier: Tier, mla: MlaChoice, chunk: usize) -> Vec<Vec<f32>> {
    all_logits(&mut engine(model, &options(tier, mla)), &TOKENS, chunk)
}

fn reference(model: &Arc<Checkpoint>) -> Engine {
    let options = EngineOptions { context: Some(128), ..EngineOptions::default() };
    Engine::load(&ReferenceBackend::default(), model, &options, &mut |_, _| {}).unwrap()
}

fn expect(what: &str, found: &[Vec<f32>], expected: &[Vec<f32>]) {
    let error = mean(found, expected);
    assert!(error < 1e-9, "{what}: {error:e}");
}

#[test]
fn unmerged_adapters_give_the_logits_of_merged_weights() {
    let shapes: Vec<_> = latent_testing::shapes().filter(|name| name.starts_with("tiny")).collect();
    let cases = shapes.iter().flat_map(|shape| [(*shape, false), (*shape, true)]);
    let cases: Vec<_> = cases.enumerate().collect();
    side_by_side(&cases, |&(turn, (shape, legacy))| {
        let what = format!("{shape}, legacy: {legacy}");
        let base = Base::new(shape, legacy);
        let pairs = base.pairs(7, |_| true);
        assert!(pairs.iter().any(|pair| pair.target.contains("attn_kv_b")), "{what}");
        let experts = base.checkpoint.tensors().iter().filter(|tensor| tensor.name.contains("_exps.weight"));
        assert_eq!(pairs.iter().filter(|pair| pair.experts > 1).count(), experts.count(), "{what}");
        let adapter = base.write("adapter.gguf", &pairs);
        let adapted = base.with(&[(&adapter, 0.75)]);
        let merged = base.merged("merged.gguf", &[(&pairs, ALPHA, 0.75)]);
        let tier = tiers()[0];
        let expected = logits(&merged, tier, MlaChoice::Absorbed, 4);
        let plain = logits(&base.checkpoint, tier, MlaChoice::Absorbed, 4);
        assert!(mean(&plain, &expected) > 1e-3, "{what}: the adapter changes little");
        for (i, tier) in tiers().into_iter().enumerate() {
            let ways = [
                (MlaChoice::Auto, 9),
                (MlaChoice::Absorbed, 4),
                (MlaChoice::SeparateScores, 1),
                (MlaChoice::Naive, 5),
            ];
            for (mla, chunk) in sample_of(ways, turn + i, 2) {
                expect(&format!("{what} {tier} {mla}"), &logits(&adapted, tier, mla, chunk), &expected);
            }
        }
        expect(&format!("{what} reference"), &all_logits(&mut reference(&adapted), &TOKENS, 4), &expected);
        // A scale of 0 gives the bits of the model without the adapter.
        let off = base.with(&[(&adapter, 0.0)]);
        let off = logits(&off, tier, MlaChoice::Absorbed, 4);
        assert_eq!(bits(&off), bits(&plain), "{what}: scale 0, {:e}", mean(&off, &plain));
    });
}

#[test]
fn each_kind_of_tensor_can_be_adapted_alone() {
    let shapes: Vec<_> = latent_testing::shapes().filter(|name| name.starts_with("tiny")).collect();
    side_by_side(&shapes, |shape| {
        let base = Base::new(shape, false);
        let mut kinds: Vec<String> =
            base.targets().iter().map(|name| name.split('.').nth(2).unwrap_or(name).to_owned()).collect();
        kinds.sort_unstable();
        kinds.dedup();
        for kind in kinds {
            let pairs = base.pairs(11, |name| name.split('.').any(|word| word == kind));
            if pairs.is_empty() {
                continue;
            }
            let adapter = base.write("adapter.gguf", &pairs);
            let merged = base.merged("merged.gguf", &[(&pairs, ALPHA, 1.0)]);
            let found = logits(&base.with(&[(&adapter, 1.0)]), tiers()[0], MlaChoice::Auto, 4);
            expect(&format!("{shape} {kind}"), &found, &logits(&merged, tiers()[0], MlaChoice::Auto, 4));
        }
    });
}

#[test]
fn several_adapters_add_up_and_rows_have_their_own_scales() {
    let base = Base::new("tiny-v3", false);
    let all = base.pairs(3, |_| true);
    let some = base.pairs(5, |name| name.contains("attn_"));
    let (first, second) = (base.write("first.gguf", &all), base.write("second.gguf", &some));
    let adapted = base.with(&[(&first, 0.5), (&second, -1.0)]);
    let tier = tiers()[0];
    let of = |name: &str, a: f32, b: f32| {
        let merged = base.merged(name, &[(&all, ALPHA, a), (&some, ALPHA, b)]);
        logits(&merged, tier, MlaChoice::Absorbed, 9)
    };
    let default = of("default.gguf", 0.5, -1.0);
    expect("both", &logits(&adapted, tier, MlaChoice::Auto, 3), &default);
    // Sequences with different scales in one step.
    let mut engine = engine(&adapted, &options(tier, MlaChoice::Auto));
    let scales = [[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.25, 2.0]];
    let mut sequences: Vec<Sequence> = scales.iter().map(|_| Sequence::default()).collect();
    for (sequence, scales) in sequences.iter_mut().zip(&scales) {
        engine.set_adapter_scales(sequence, Some(&AdapterScales::new(scales))).unwrap();
    }
    sequences.push(Sequence::default());
    let mut found = vec![vec![Vec::new(); TOKENS.len()]; sequences.len()];
    for (start, end) in [(0, 4), (4, 5), (5, 9)] {
        let mut inputs: Vec<SeqInput<'_>> = sequences
            .iter_mut()
            .map(|sequence| SeqInput::tokens(sequence, &TOKENS[start..end], LogitsRequest::All))
            .collect();
        engine
            .step(&mut inputs, &mut |input, row, logits| found[input][start + row] = logits.to_vec())
            .unwrap()
            .all()
            .unwrap();
    }
    expect("the model's scales", &found[4], &default);
    for (number, [a, b]) in scales.into_iter().enumerate() {
        expect(&format!("scales {a} {b}"), &found[number], &of("merged.gguf", a, b));
    }
    let plain = logits(&base.checkpoint, tier, MlaChoice::Absorbed, 9);
    expect("no adapter", &found[0], &plain);
    for (scales, problem) in [(&[1.0][..], "1 adapter scales"), (&[1.0, f32::NAN], "NaN")] {
        let error = engine.set_adapter_scales(&mut sequences[0], Some(&AdapterScales::new(scales)));
        let error = error.unwrap_err().to_string();
        assert!(error.contains(problem), "{error}");
    }
}

#[test]
fn adapters_in_half_precision_run_in_the_default_precision() {
    let base = Base::new("tiny-v3", false);
    let pairs = base.pairs(9, |_| true);
    let path = base.path("half.gguf");
    write_gguf_adapter(&path, &base.architecture, ALPHA, TensorType::F16, &pairs).unwrap();
    let adapted = base.with(&[(&path, 1.0)]);
    let merged = base.merged("merged.gguf", &[(&pairs, ALPHA, 1.0)]);
    let exact = logits(&merged, tiers()[0], MlaChoice::Absorbed, 4);
    for tier in tiers() {
        let options = EngineOptions { precision: Precision::Default, ..options(tier, MlaChoice::Auto) };
        for chunk in [1, 9] {
            let found = all_logits(&mut engine(&adapted, &options), &TOKENS, chunk);
            let error = mean(&found, &exact);
            assert!(error < 1e-3, "{tier}: {error:e}");
        }
    }
}

#[test]
fn adapters_that_do_not_fit_are_refused_with_the_tensor() {
    let base = Base::new("tiny-v3", false);
    let pair = |target: &str, outputs: usize, inputs: usize| RandomPair {
        target: target.into(),
        experts: 1,
        rank: 2,
        outputs,
        inputs,
        a: vec![0.5; 2 * inputs],
        b: vec![0.5; 2 * outputs],
    };
    let config = ModelConfig::from_checkpoint(&base.checkpoint).unwrap();
    let (hidden, vocab) = (config.hidden_size, config.vocab_size);
    let load = |pair: RandomPair| {
        let path = base.write("bad.gguf", &[pair]);
        let adapted = base.with(&[(&path, 1.0)]);
        let loaded = Engine::load(
            &*latent_backends::cpu(),
            &adapted,
            &options(tiers()[0], MlaChoice::Auto),
            &mut |_, _| {},
        );
        loaded.err().expect("refused").to_string()
    };
    for (pair, words) in [
        (pair("blk.0.attn_q_b.weight", 7, 5), &["blk.0.attn_q_b.weight", "base model"][..]),
        (pair("blk.9.attn_q_a.weight", 7, 5), &["blk.9.attn_q_a.weight", "base model"]),
        (pair("blk.1.ffn_gate_exps.weight", 7, 5), &["blk.1.ffn_gate_exps.weight", "[2, 5]", "base model"]),
        (pair("blk.0.ffn_gate_exps.weight", 7, 5), &["blk.0.ffn_gate_exps.weight", "base model"]),
        (pair("token_embd.weight", vocab, hidden), &["token_embd.weight", "embedding"]),
        (pair("output_norm.weight", 1, hidden), &["output_norm.weight", "no matmul"]),
        (pair("blk.0.attn_k_b.weight", 4, 5), &["blk.0.attn_k_b.weight", "halves"]),
    ] {
        let error = load(pair);
        assert!(words.iter().all(|word| error.contains(word)), "{error}");
    }
    let good = base.write("good.gguf", &base.pairs(1, |name| name.contains("attn_q_a")));
    let other = base.path("other.gguf");
    let pairs = base.pairs(1, |name| name.contains("attn_q_a"));
    write_gguf_adapter(&other, "llama", ALPHA, TensorType::F32, &pairs).unwrap();
    let own = || Checkpoint::open(&base.path("base.gguf")).unwrap();
    let error =
        own().with_adapters(vec![(AdapterFile::open(&other).unwrap(), 1.0)]).err().unwrap().to_string();
    assert!(error.contains("llama") && error.contains(&base.architecture), "{error}");
    // Every truncated file is an error, not a panic.
    let bytes = std::fs::read(&good).unwrap();
    for len in (0..bytes.len()).step_by(97) {
        let cut = base.path("cut.gguf");
        std::fs::write(&cut, &bytes[..len]).unwrap();
        assert!(AdapterFile::open(&cut).is_err(), "{len} bytes");
    }
    let error = AdapterFile::open(&base.path("base.gguf")).err().unwrap().to_string();
    assert!(error.contains("not a LoRA adapter"), "{error}");
    // Cached rows with an adapter differ from those without it, so that the fingerprints, which
    // name cached rows, must differ too.
    let with = base.with(&[(&good, 1.0)]).fingerprint();
    assert_ne!(with, base.checkpoint.fingerprint());
    assert_ne!(with, base.with(&[(&good, 0.5)]).fingerprint());
}

#[test]
fn adapters_of_single_experts_give_what_stacked_ones_give() {
    let folder = tempfile::tempdir().unwrap();
    let (base, peft) = (folder.path().join("base"), folder.path().join("peft"));
    let kind = RandomWeightTypes::from(TensorType::F32);
    ModelRecipe { layers: Some(2), ..ModelRecipe::new("tiny-v3", kind) }.write_folder(&base).unwrap();
    let opened = || Checkpoint::open(&base).unwrap();
    let mut pairs = random_pairs(&opened(), 3, Some(4), |name| name.contains(".mlp.experts.")).unwrap();
    let config = serde_json::json!({"peft_type": "LORA", "r": 4, "lora_alpha": 8.0, "bias": "none"});
    let engine_of = |pairs: &[RandomPair]| {
        write_peft_adapter(&peft, &config, pairs).unwrap();
        let model = opened().with_adapters(vec![(AdapterFile::open(&peft).unwrap(), 0.5)]).unwrap();
        let options = options(tiers()[0], MlaChoice::Auto);
        Engine::load(&*latent_backends::cpu(), &Arc::new(model), &options, &mut |_, _| {})
    };
    let found = all_logits(&mut engine_of(&pairs).unwrap(), &TOKENS, 4);
    // Stacked by layer and projection, with the experts in order.
    let experts = ModelConfig::from_checkpoint(&opened()).unwrap().moe.unwrap().experts;
    let mut stacked: Vec<RandomPair> = Vec::new();
    for (theirs, ours) in [("gate", "ffn_gate_exps"), ("up", "ffn_up_exps"), ("down", "ffn_down_exps")] {
        let of = |expert: usize| {
            let name = format!("model.layers.1.mlp.experts.{expert}.{theirs}_proj.weight");
            pairs.iter().find(|pair| pair.target == name).unwrap()
        };
        let joined =
            |side: fn(&RandomPair) -> &Vec<f32>| (0..experts).flat_map(|e| side(of(e)).clone()).collect();
        let (a, b) = (joined(|pair| &pair.a), joined(|pair| &pair.b));
        let RandomPair { rank, outputs, inputs, .. } = *of(0);
        let target = format!("blk.1.{ours}.weight");
        stacked.push(RandomPair { target, experts, rank, outputs, inputs, a, b });
    }
    assert_eq!(stacked.len() * experts, pairs.len());
    let gguf = folder.path().join("adapter.gguf");
    write_gguf_adapter(&gguf, "deepseek2", 8.0, TensorType::F32, &stacked).unwrap();
    let model = opened().with_adapters(vec![(AdapterFile::open(&gguf).unwrap(), 0.5)]).unwrap();
    let expected = logits(&Arc::new(model), tiers()[0], MlaChoice::Auto, 4);
    let plain = logits(&Arc::new(opened()), tiers()[0], MlaChoice::Auto, 4);
    assert!(mean(&plain, &expected) > 1e-4, "the adapter changes little");
    assert_eq!(bits(&found), bits(&expected));
    // An expert without matrices, and one with different ones.
    let last = pairs.pop().unwrap();
    let error = engine_of(&pairs).err().unwrap().to_string();
    assert!(error.contains(&last.target) && error.contains("--merge-lora"), "{error}");
    let rank = 2;
    let (a, b) = (last.a[..rank * last.inputs].to_vec(), last.b[..rank * last.outputs].to_vec());
    pairs.push(RandomPair { rank, a, b, ..last });
    let ranks = serde_json::json!({"peft_type": "LORA", "r": 4, "lora_alpha": 8.0, "bias": "none",
        "rank_pattern": {pairs.last().unwrap().target.strip_suffix(".weight").unwrap(): 2}});
    write_peft_adapter(&peft, &ranks, &pairs).unwrap();
    let model = opened().with_adapters(vec![(AdapterFile::open(&peft).unwrap(), 0.5)]).unwrap();
    let options = options(tiers()[0], MlaChoice::Auto);
    let error = Engine::load(&*latent_backends::cpu(), &Arc::new(model), &options, &mut |_, _| {});
    let error = error.err().unwrap().to_string();
    assert!(error.contains(&pairs.last().unwrap().target), "{error}");
}

#[test]
fn an_adapter_of_peft_gives_what_its_gguf_form_gives() {
    let folder = tempfile::tempdir().unwrap();
    let kind = RandomWeightTypes::from(TensorType::F32);
    let recipe = ModelRecipe { layers: Some(2), ..ModelRecipe::new("tiny-v3", kind) };
    let base = folder.path().join("base");
    recipe.write_folder(&base).unwrap();
    let opened = || Checkpoint::open(&base).unwrap();
    let adapted =
        |module: &str| ["self_attn", "mlp.gate_proj", "mlp.down_proj"].iter().any(|m| module.contains(m));
    let pairs =
        random_pairs(&opened(), 3, Some(4), |name| adapted(name) && name.ends_with("_proj.weight")).unwrap();
    assert!(pairs.iter().any(|pair| pair.target.contains("kv_b_proj")), "no kv_b");
    let peft = folder.path().join("peft");
    let tier = tiers()[0];
    let with = |config: serde_json::Value, pairs: &[RandomPair], scale: f32| {
        write_peft_adapter(&peft, &config, pairs).unwrap();
        let adapter = AdapterFile::open(&peft)?;
        opened()
            .with_adapters(vec![(adapter, scale)])
            .map(|model| logits(&Arc::new(model), tier, MlaChoice::Auto, 4))
    };
    let config = |more: serde_json::Value| {
        let mut config = serde_json::json!({"peft_type": "LORA", "r": 4, "lora_alpha": 8.0, "bias": "none"});
        config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        config
    };
    // The same adapter as GGUF, on the same model.
    let gguf = folder.path().join("adapter.gguf");
    let names = [
        ("model.layers.", "blk."),
        ("self_attn.q_a_proj", "attn_q_a"),
        ("self_attn.q_b_proj", "attn_q_b"),
        ("self_attn.kv_a_proj_with_mqa", "attn_kv_a_mqa"),
        ("self_attn.kv_b_proj", "attn_kv_b"),
        ("self_attn.o_proj", "attn_output"),
        ("mlp.gate_proj", "ffn_gate"),
        ("mlp.down_proj", "ffn_down"),
    ];
    let mut renamed =
        random_pairs(&opened(), 3, Some(4), |name| adapted(name) && name.ends_with("_proj.weight")).unwrap();
    for pair in &mut renamed {
        names.iter().for_each(|(theirs, ours)| pair.target = pair.target.replace(theirs, ours));
    }
    write_gguf_adapter(&gguf, "deepseek2", 8.0, TensorType::F32, &renamed).unwrap();
    let model = opened().with_adapters(vec![(AdapterFile::open(&gguf).unwrap(), 1.0)]).unwrap();
    let expected = logits(&Arc::new(model), tier, MlaChoice::Auto, 4);
    let plain = logits(&Arc::new(opened()), tier, MlaChoice::Auto, 4);
    assert!(mean(&plain, &expected) > 1e-4, "the adapter changes little");
    expect("peft", &with(config(serde_json::json!({})), &pairs, 1.0).unwrap(), &expected);
    // rsLoRA scales by alpha / sqrt(r), which is twice alpha / r for this rank.
    let rslora = config(serde_json::json!({"use_rslora": true}));
    expect("rslora", &with(rslora, &pairs, 0.5).unwrap(), &expected);
    let patterns = config(serde_json::json!({
        "r": 2, "lora_alpha": 1.0, "rank_pattern": {"self_attn.q_a_proj": 4, "q_b_proj": 4, "kv_a_proj_with_mqa": 4,
            "kv_b_proj": 4, "o_proj": 4, "gate_proj": 4, "down_proj": 4},
        "alpha_pattern": {"self_attn.q_a_proj": 8, "q_b_proj": 8, "kv_a_proj_with_mqa": 8, "kv_b_proj": 8, "o_proj": 8,
            "gate_proj": 8, "down_proj": 8},
    }));
    expect("patterns", &with(patterns, &pairs, 1.0).unwrap(), &expected);
    for (more, word) in [
        (serde_json::json!({"use_dora": true}), "DoRA"),
        (serde_json::json!({"modules_to_save": ["lm_head"]}), "modules_to_save"),
        (serde_json::json!({"r": 8}), "rank 4"),
        (serde_json::json!({"r": "many"}), "r is \"many\""),
        (serde_json::json!({"bias": "all"}), "bias"),
        (serde_json::json!({"peft_type": "IA3"}), "IA3"),
        (serde_json::json!({"init_lora_weights": "pissa_niter_4"}), "pissa"),
        (serde_json::json!({"alpha_pattern": {"q_.*": 8}}), "regular expression"),
        (serde_json::json!({"target_parameters": ["mlp.experts.gate_up_proj"]}), "target_parameters"),
    ] {
        let error = with(config(more), &pairs, 1.0).unwrap_err().to_string();
        assert!(error.contains(word), "{error}");
    }
    std::fs::write(peft.join("adapter_config.json"), config(serde_json::json!({})).to_string()).unwrap();
    let mut writer = latent_formats::safetensors::Writer::new();
    let name = "model.layers.0.self_attn.q_a_proj.lora_A.weight";
    for name in [format!("base_model.model.{name}"), name.to_owned()] {
        writer.tensor(name, TensorType::F32, &[4, 8]).unwrap();
    }
    let mut file = Vec::new();
    writer.write(&mut file, |_, out| std::io::Write::write_all(out, &[0; 4 * 8 * 4])).unwrap();
    std::fs::write(peft.join("adapter_model.safetensors"), file).unwrap();
    let error = AdapterFile::open(&peft).err().unwrap().to_string();
    assert!(error.contains(&format!("{name} occurs twice")), "{error}");
    std::fs::remove_file(peft.join("adapter_config.json")).unwrap();
    assert!(AdapterFile::open(&peft).err().unwrap().to_string().contains("adapter_config.json"));
}
