//! LoRA adapters: scales of the server and of requests.

use crate::support::{config, demo, loader_of, open_demo, source, until, wrap};
use latent_formats::{AdapterFile, Checkpoint, CheckpointSource};
use latent_server::{Extras, Server};
use latent_testing::{random_pairs, write_gguf_adapter};
use latent_types::TensorType;
use serde_json::{Value, json};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

fn completion(more: Value) -> Value {
    let mut body = json!({"prompt": "Once upon a time", "n_predict": 12, "temperature": 0, "seed": 1});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

#[test]
fn adapters_have_scales_of_the_server_and_of_requests() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("adapter.gguf");
    let base = open_demo();
    let CheckpointSource::Gguf(gguf) = base.source() else { panic!("a GGUF file") };
    let architecture = gguf.metadata.str("general.architecture").unwrap().unwrap();
    let pairs =
        random_pairs(&base, 5, Some(4), |name| name.contains("attn_output") || name.contains("attn_kv_b"));
    write_gguf_adapter(&path, architecture, 16.0, TensorType::F16, &pairs.unwrap()).unwrap();
    let own = path.clone();
    let open = move || {
        let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models");
        let model = Checkpoint::open(&models.join("mla-demo-Q4_K_M.gguf")).unwrap();
        Arc::new(model.with_adapters(vec![(AdapterFile::open(&own).unwrap(), 1.0)]).unwrap())
    };
    let model = source("demo", loader_of("demo", Box::new(open)));
    let server = Server::start(config(), vec![model], Extras::default()).unwrap();
    server.wait_loaded(Duration::from_secs(60)).expect("it loads in time").unwrap();
    let server = wrap(server);
    let listed = server.get("/lora-adapters").ok();
    assert_eq!((&listed[0]["id"], &listed[0]["scale"]), (&json!(0), &json!(1.0)), "{listed}");
    assert_eq!(listed[0]["path"], path.display().to_string());

    let answer = |more: Value| server.post("/completion", &completion(more)).ok();
    let text = |more: Value| answer(more)["content"].as_str().unwrap().to_owned();
    let plain_server = demo();
    let plain = plain_server.post("/completion", &completion(json!({}))).ok();
    let plain = plain["content"].as_str().unwrap();
    let adapted = text(json!({}));
    assert_ne!(adapted, plain, "the adapter changes nothing");
    let off = json!({"lora": [{"id": 0, "scale": 0.0}]});
    assert_eq!(text(off.clone()), plain);
    assert_eq!(text(json!({"lora": []})), plain, "adapters that are not named have scale 0");
    assert_eq!(text(json!({"lora": [{"id": 0, "scale": 1.0}]})), adapted);
    // Cached rows are valid only for the scales with which they were computed.
    assert!(answer(json!({}))["timings"]["cache_n"].as_u64().unwrap() > 0);
    let other = answer(json!({"lora": [{"id": 0, "scale": 0.5}]}));
    assert_eq!(other["timings"]["cache_n"], 0, "{other}");
    let chat = json!({"messages": [{"role": "user", "content": "Once upon a time"}], "max_tokens": 12, "temperature": 0});
    let mut without = chat.clone();
    without["lora"] = json!([{"id": 0, "scale": 0.0}]);
    let of = |body: &Value| {
        server.post("/v1/chat/completions", body).ok()["choices"][0]["message"]["content"].clone()
    };
    assert_eq!(
        of(&without),
        plain_server.post("/v1/chat/completions", &chat).ok()["choices"][0]["message"]["content"]
    );
    assert_ne!(of(&chat), of(&without));

    let set = server.post("/lora-adapters", &json!([{"id": 0, "scale": 0.0}])).ok();
    assert_eq!(set["success"], true);
    assert_eq!(server.get("/lora-adapters").ok()[0]["scale"], 0.0);
    assert_eq!(text(json!({})), plain);
    assert_eq!(text(json!({"lora": [{"id": 0, "scale": 1.0}]})), adapted);

    for (body, word) in [
        (json!({"lora": [{"id": 1, "scale": 1.0}]}), "lora[0].id"),
        (json!({"lora": [{"id": 0}]}), "lora[0].scale"),
        (json!({"lora": 7}), "lora"),
    ] {
        let (message, _) = server.post("/completion", &completion(body)).error(400);
        assert!(message.contains(word), "{message}");
    }
    let (message, _) = server.post("/lora-adapters", &json!([{"id": 3, "scale": 1}])).error(400);
    assert!(message.contains("[0].id"), "{message}");
    assert_eq!(server.get("/lora-adapters").ok()[0]["scale"], 0.0, "a refused list changes nothing");
    // Scales that were set outlive the loaded model.
    server.post("/models/unload", &json!({"model": "demo"})).ok();
    until("unloaded", || server.get("/lora-adapters").ok() == json!([]));
    assert_eq!(text(json!({})), plain, "the scales are lost when the model is loaded again");
    assert_eq!(server.get("/lora-adapters").ok()[0]["scale"], 0.0);
    assert_eq!(plain_server.get("/lora-adapters").ok(), json!([]));
    let (message, _) = plain_server.post("/completion", &completion(off)).error(400);
    assert!(message.contains("--lora"), "{message}");
}
