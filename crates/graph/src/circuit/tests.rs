//! Tests of valid circuit files, and of the error for each way to break one.

use super::*;
use crate::config::{LayerKind, ModelConfig};
use crate::error::CacheError;
use crate::ir::{Ir, ModelSpan};
use crate::passes::snapshots::config;
use latent_types::TensorType;
use serde_json::{Value, json};

/// The text of `deepseek2`, shared blocks in full, with one thing changed.
fn changed(change: impl Fn(&mut Value)) -> String {
    let mut circuit = serde_json::to_value(Circuit::named("deepseek2").unwrap()).unwrap();
    change(&mut circuit);
    circuit.to_string()
}

/// What parsing says is wrong.
fn refused(change: impl Fn(&mut Value)) -> CircuitError {
    problem(Circuit::parse(&changed(change)).unwrap_err())
}

fn problem(error: GraphError) -> CircuitError {
    match error {
        GraphError::Circuit { problem, .. } => *problem,
        other => panic!("not an error of the circuit: {other}"),
    }
}

fn built(circuit: &Circuit, config: &ModelConfig) -> Result<Ir, GraphError> {
    let tensors = DeclaredTensors::of(circuit, config, TensorNaming::Gguf, TensorType::BF16)?;
    let span = ModelSpan { embed: true, layers: 0..config.layers, head: true, mtp: false };
    Ir::build_with(circuit, config, &span, &tensors)
}

/// What building an IR says is wrong with a circuit that parses.
fn not_built(change: impl Fn(&mut Value)) -> CircuitError {
    let circuit = Circuit::parse(&changed(change)).unwrap();
    problem(built(&circuit, &config()).unwrap_err())
}

/// The operation of a block that has this word.
fn op<'v>(circuit: &'v mut Value, block: &str, word: &str) -> &'v mut Value {
    let ops = circuit["blocks"][block]["ops"].as_array_mut().unwrap();
    ops.iter_mut().find(|op| op["op"] == word).unwrap()
}

fn stream(circuit: &mut Value) -> &mut Value {
    &mut circuit["blocks"]["mla"]["cache"]["latent"]
}

#[track_caller]
fn says(problem: &CircuitError, words: &[&str]) {
    let text = problem.to_string();
    assert!(words.iter().all(|word| text.contains(word)), "{words:?} are not all in: {text}");
}

#[test]
fn every_file_parses_under_its_name_and_comes_back_from_json_the_same() {
    assert_eq!(Circuit::all().len(), FILES.len());
    for (name, text) in FILES {
        let circuit = Circuit::parse(text).unwrap();
        assert_eq!(circuit.name, name);
        let text = serde_json::to_string(&circuit).unwrap();
        assert_eq!(serde_json::to_string(&Circuit::parse(&text).unwrap()).unwrap(), text);
    }
}

#[test]
fn a_layer_is_an_attention_block_and_a_feed_forward_block() {
    let circuit = Circuit::named("deepseek2").unwrap();
    let mut config = config();
    let specs = circuit.layer_specs(&config).unwrap();
    assert_eq!(specs.iter().map(LayerSpec::to_string).collect::<Vec<_>>(), ["mla × dense", "mla × moe"]);
    config.layers = 5;
    config.layer_kinds =
        [0, 1, 1, 1, 0].map(|moe| if moe == 1 { LayerKind::Moe } else { LayerKind::Dense }).to_vec();
    let runs = circuit.layer_runs(&config).unwrap();
    let runs: Vec<String> = runs.iter().map(ToString::to_string).collect();
    assert_eq!(runs, ["0: mla × dense", "1–3: mla × moe", "4: mla × dense"]);
    assert_eq!(Circuit::named("plm").unwrap().layer_spec(&config, 1).unwrap().to_string(), "mla × relu2");
}

#[test]
fn each_layer_has_the_cache_that_its_block_states() {
    let ir = built(Circuit::named("deepseek2").unwrap(), &config()).unwrap();
    assert_eq!(ir.streams.iter().map(|stream| stream.layer).collect::<Vec<_>>(), [0, 1]);
    let stream = &ir.streams[1];
    assert_eq!((stream.name.as_str(), stream.width(), stream.shared_key()), ("latent", 64, 16));
    let row: Vec<_> = stream.row.iter().map(|part| (part.port, part.width, part.rotated)).collect();
    assert_eq!(row, [("latent", 48, false), ("k_rope", 16, true)]);
    assert_eq!(
        (stream.written_by.as_str(), &stream.read_by[..]),
        ("mla_attention", &["mla_attention".into()][..])
    );
}

#[test]
fn a_cached_row_has_the_shared_key_that_the_config_has() {
    let row = |rope: usize, rotates: bool| {
        let mut config = config();
        config.attention.rope = rope;
        config.rope.dims = if rotates { rope } else { 0 };
        let ir = built(Circuit::named("deepseek2").unwrap(), &config).unwrap();
        let parts = ir.streams[0].row.iter().map(|part| (part.port, part.width, part.rotated));
        (ir.streams[0].shared_key(), parts.collect::<Vec<_>>())
    };
    assert_eq!(row(16, true), (16, vec![("latent", 48, false), ("k_rope", 16, true)]));
    assert_eq!(row(16, false), (16, vec![("latent", 48, false), ("k_rope", 16, false)]));
    assert_eq!(row(0, false), (0, vec![("latent", 48, false)]));
}

#[test]
fn a_scheme_of_names_must_exist() {
    let mut circuit = serde_json::to_value(Circuit::named("deepseek2").unwrap()).unwrap();
    circuit["hf_names"] = json!("bailing");
    let named = Circuit::parse(&circuit.to_string()).unwrap();
    let names = |slot: &str| named.blocks["mla"].weights[slot].hf.clone().unwrap();
    assert_eq!(names("attn_out"), "model.layers.{layer}.attention.dense.weight");
    assert_eq!(names("kv_a"), "model.layers.{layer}.attention.kv_a_proj_with_mqa.weight");
    circuit["hf_names"] = json!("ling");
    says(&problem(Circuit::parse(&circuit.to_string()).unwrap_err()), &["unknown naming scheme \"ling\""]);
}

#[test]
fn the_old_form_is_refused_with_what_changed() {
    let old = json!({"name": "own", "about": "", "gguf_architectures": [], "hf_model_types": [], "model_weights": {},
        "layer_weights": {}, "mtp_weights": {}, "embed": [], "layer": [], "head": []});
    let error = problem(Circuit::parse(&old.to_string()).unwrap_err());
    assert_eq!(error, CircuitError::OldForm { key: "layer" });
    says(&error, &["\"layer\"", "\"blocks\"", "\"layers\"", "\"stages\"", "latent graph circuit"]);
}

#[test]
fn invalid_circuits_in_json_are_refused_with_their_place() {
    says(&problem(Circuit::parse("{").unwrap_err()), &["EOF", "line 1"]);
    let error = refused(|c| c["blocks"]["mla"] = json!("mlaa"));
    says(&error, &["unknown shared block \"mlaa\"", "mla, moe", "line 1"]);
    let error = refused(|c| c["blocks"]["mla"]["kind"] = json!("sliding"));
    says(&error, &["sliding", "attention", "line 1"]);
    says(&refused(|c| c["blocks"]["mla"] = json!(1)), &["a block, or the name of a shared one"]);
    says(&refused(|c| c["stages"][0]["in"]["tokens"] = json!("words")), &["words", "embeddings"]);
}

#[test]
fn blocks_that_do_not_exist_or_are_of_another_kind_are_named() {
    let error = refused(|c| c["layers"]["feed_forward"][1]["block"] = json!("experts"));
    says(&error, &["layers, feed_forward", "unknown block \"experts\"", "dense, embed, head, mla, moe"]);
    let error = refused(|c| c["stages"][1]["blocks"] = json!(["tail"]));
    says(&error, &["stage lm_head", "unknown block \"tail\""]);
    let error = refused(|c| c["layers"]["attention"][0]["block"] = json!("moe"));
    says(&error, &["layers, attention", "moe is of kind feed_forward", "expected attention"]);
    let error = refused(|c| c["stages"][0]["blocks"] = json!(["embed", "dense", "layers"]));
    says(&error, &["stage layers", "dense is of kind feed_forward", "expected embed"]);
    let error = refused(|c| c["layers"]["feed_forward"] = json!([{"block": "moe"}]));
    assert_eq!(error, CircuitError::UnusedBlock { block: "dense".into() });
}

#[test]
fn operations_slots_and_values_that_do_not_exist_are_named() {
    let error = refused(|c| op(c, "dense", "rms_norm")["op"] = json!("layer_norm"));
    says(&error, &["block dense", "layer_norm", "rms_norm"]);
    // Blocks of layers do not see each other's weight slots.
    let error = refused(|c| op(c, "dense", "rms_norm")["weights"] = json!(["attn_norm"]));
    says(&error, &["block dense", "rms_norm", "attn_norm"]);
    let error = refused(|c| {
        c["blocks"]["dense"]["weights"]["q_a"] = c["blocks"]["mla"]["weights"]["q_a"].clone();
    });
    says(&error, &["\"q_a\"", "blocks mla and dense"]);
    let error = not_built(|c| op(c, "dense", "mlp")["in"] = json!(["x"]));
    says(&error, &["block dense", "mlp reads \"x\""]);
    let error = not_built(|c| c["blocks"]["dense"]["in"] = json!(["h_mid", "x"]));
    assert_eq!(error, CircuitError::MissingInput { block: "dense".into(), value: "x".into() });
    let error = not_built(|c| c["blocks"]["mla"]["out"] = json!(["h_mid", "z"]));
    assert_eq!(error, CircuitError::MissingOutput { block: "mla".into(), value: "z".into() });
    // A block's input is not one of its outputs unless an operation writes it.
    let error = not_built(|c| c["blocks"]["mla"]["out"] = json!(["h_mid", "h"]));
    assert_eq!(error, CircuitError::MissingOutput { block: "mla".into(), value: "h".into() });
}

#[test]
fn exactly_one_rule_gives_a_layer_its_block() {
    let none = not_built(|c| c["layers"]["feed_forward"][0]["when"] = json!(["dense", "tied"]));
    assert_eq!(none, CircuitError::NoLayerRule { part: "feed_forward", layer: 0 });
    let two = not_built(|c| c["layers"]["feed_forward"][0]["when"] = json!([]));
    says(&two, &["feed_forward", "layer 1", "block dense", "block moe"]);
    let word = not_built(|c| c["layers"]["feed_forward"][0]["when"] = json!(["thick"]));
    assert_eq!(word, CircuitError::Condition { word: "thick".into() });
}

#[test]
fn stages_that_do_not_form_a_decoder_are_refused() {
    let error = not_built(|c| {
        let all = json!({"name": "all", "in": {"tokens": "tokens"}, "blocks": ["embed", "layers", "head"],
            "out": {"logits": "logits"}});
        c["stages"] = json!([all]);
        c["blocks"].as_object_mut().unwrap().retain(|name, _| !name.starts_with("mtp"));
    });
    says(&error, &["number of stages is 1, expected two"]);
    let error = not_built(|c| c["stages"][0]["in"] = json!({"h": "embeddings"}));
    says(&error, &["stage layers", "`in`", "embeddings", "expected tokens"]);
    let error = not_built(|c| c["stages"][1]["out"] = json!({"h": "hidden"}));
    says(&error, &["stage lm_head", "`out`", "expected logits"]);
    let error = not_built(|c| c["stages"][0]["blocks"] = json!(["layers", "embed"]));
    says(&error, &["stage layers", "end in `layers`"]);
    let error = not_built(|c| c["stages"][1]["blocks"] = json!(["head", "mtp_layers"]));
    says(&error, &["stage lm_head", "`mtp_layers` is not allowed there"]);
    let error = not_built(|c| c["stages"][0]["out"] = json!({"stream": "hidden"}));
    says(&error, &["no block makes \"stream\""]);
}

#[test]
fn stages_behind_the_decoder_are_those_of_an_mtp_layer_or_are_not_run() {
    let circuit = Circuit::named("deepseek2").unwrap();
    let mtp = circuit.stage_pair(true).unwrap();
    assert_eq!((&mtp.input_names()[..], mtp.residual, mtp.logits), (&["h", "tokens"][..], "h", "logits"));
    assert_eq!(circuit.stages[2].blocks[1], StagePart::MtpLayers);
    let error = not_built(|c| {
        c["stages"].as_array_mut().unwrap().truncate(3);
        c["blocks"].as_object_mut().unwrap().remove("mtp_head");
    });
    assert_eq!(error, CircuitError::StageNotRun { stage: "mtp".into() });
    let error = not_built(|c| c["stages"][2]["in"] = json!({"h": "hidden"}));
    says(&error, &["stage mtp", "`in`", "expected hidden and tokens"]);
    let error = not_built(|c| c["stages"][2]["blocks"] = json!(["mtp_layers", "mtp_in"]));
    says(&error, &["stage mtp", "end in `mtp_layers`"]);
    let error = not_built(|c| c["stages"][3]["blocks"] = json!(["head", "mtp_layers", "mtp_head"]));
    says(&error, &["stage mtp_head", "`mtp_layers` is not allowed there"]);
}

#[test]
fn a_slot_that_stands_in_for_another_must_exist() {
    let error = refused(|c| c["mtp_weights"]["mtp_embed"]["else"] = json!(["embedding"]));
    says(&error, &["weight slot mtp_embed of mtp_weights", "unknown weight slot \"embedding\""]);
}

#[test]
fn a_stage_may_call_its_values_as_it_likes() {
    let text = changed(|c| {
        c["stages"][1]["in"] = json!({"last": "hidden"});
        c["blocks"]["head"]["in"] = json!(["last"]);
        op(c, "head", "gather_rows")["in"] = json!(["last"]);
    });
    let renamed = built(&Circuit::parse(&text).unwrap(), &config()).unwrap();
    let usual = built(Circuit::named("deepseek2").unwrap(), &config()).unwrap();
    assert_eq!(renamed.to_text(None), usual.to_text(None));
}

#[test]
fn a_cache_that_contradicts_its_block_is_refused() {
    let cache =
        |problem: CacheError| CircuitError::Cache { block: "mla".into(), stream: "latent".into(), problem };
    let word = |word: &str| word.to_owned();
    let error = refused(|c| stream(c)["written_by"] = json!("linear"));
    assert_eq!(error, cache(CacheError::NeverWritten { op: word("linear") }));
    let error = refused(|c| stream(c)["read_by"] = json!(["mla_attention", "attend_latent"]));
    assert_eq!(error, cache(CacheError::NeverRead { op: word("attend_latent") }));
    assert_eq!(refused(|c| stream(c)["read_by"] = json!([])), cache(CacheError::NoReader));
    let error = refused(|c| c["blocks"]["mla"]["cache"] = json!({}));
    says(&error, &["block mla", "index_store writes the cache", "no stream"]);
    let error = refused(|c| c["blocks"]["dense"]["cache"] = c["blocks"]["mla"]["cache"].clone());
    says(&error, &["block dense, cache index", "kind feed_forward", "only attention blocks"]);
    says(&refused(|c| stream(c)["row"] = json!([])), &["per_token", "`row`"]);
    says(&refused(|c| stream(c)["shape"] = json!(["heads"])), &["per_token", "`row`"]);
    let error = not_built(|c| stream(c)["row"][1]["value"] = json!("k_pe"));
    assert_eq!(error, cache(CacheError::RowValue { value: word("k_pe"), op: word("mla_attention") }));
    let error = not_built(|c| {
        let again = op(c, "mla", "mla_attention").clone();
        c["blocks"]["mla"]["ops"].as_array_mut().unwrap().push(again);
    });
    assert_eq!(error, cache(CacheError::WrittenTwice { op: word("mla_attention"), count: 2 }));
    let error = not_built(|c| stream(c)["row"][0]["width"] = json!("vocab*vocab*vocab"));
    says(&error, &["32768016 elements", "16777216"]);
}

#[test]
fn an_expression_without_a_value_is_refused_with_its_place() {
    let error = not_built(|c| stream(c)["row"][0]["width"] = json!("kv_lora+ropes"));
    says(&error, &["block mla, cache latent, latent", "unknown dimension \"ropes\"", "\"kv_lora+ropes\""]);
    let error = not_built(|c| op(c, "mla", "split")["heads"] = json!("(heads"));
    says(&error, &["block mla, split of [\"q\"]", "is missing a ')'"]);
    let error = not_built(|c| c["blocks"]["mla"]["weights"]["kv_a"]["shape"][0] = json!("kv_lora*"));
    says(&error, &["weight slot kv_a", "\"kv_lora*\""]);
}

/// Recurrent states, windows and strides parse. They are refused as long as no operation uses them.
#[test]
fn unsupported_windows_strides_and_states_without_an_operation_are_refused() {
    let state = refused(|c| {
        let recurrent = json!({"about": "a matrix per head", "kind": "recurrent", "shape": ["heads", "nope", "v"],
            "written_by": "mla_attention", "read_by": ["mla_attention"]});
        *stream(c) = recurrent;
    });
    says(
        &state,
        &["block mla, cache latent", "a stream of kind recurrent, but mla_attention stores the other kind"],
    );
    says(
        &not_built(|c| stream(c)["range"] = json!({"last": "4096"})),
        &["a window (the last 4096 positions)"],
    );
    says(&not_built(|c| stream(c)["stride"] = json!("4")), &["a row for several tokens (stride 4)"]);
}
