//! Models from a hub on the loopback interface that the test serves.

#[path = "../../../hub/tests/support/mod.rs"]
mod support;

use latent::hub::HubSettings;
use latent::{ErrorKind, Model};
use std::sync::{Arc, Mutex};
use support::{Hub, large};

const DEMO: &[u8] = include_bytes!("../../../../models/mla-demo-Q4_K_M.gguf");

fn settings(hub: &Hub, home: &std::path::Path, offline: bool) -> HubSettings {
    HubSettings::from_variables(&|name| match name {
        "HOME" => Some(home.into()),
        "HF_ENDPOINT" => Some(hub.url.clone().into()),
        "HF_HUB_OFFLINE" => offline.then(|| "1".into()),
        _ => None,
    })
    .unwrap()
}

#[test]
fn a_model_of_the_hub_is_downloaded_once_and_runs() {
    let hub = Hub::new(vec![large("m-Q4_K_M.gguf", DEMO)]);
    let home = tempfile::tempdir().unwrap();
    let told = Arc::new(Mutex::new((0, 0)));
    let own = Arc::clone(&told);
    let model = Model::builder("hf.co/o/n:Q4_K_M")
        .hub(settings(&hub, home.path(), false))
        .download_progress(move |done, total| *own.lock().unwrap() = (done, total))
        .context(64)
        .load()
        .unwrap();
    assert_eq!(*told.lock().unwrap(), (DEMO.len() as u64, DEMO.len() as u64));
    assert_eq!(model.complete("Once upon").max_tokens(2).finish().unwrap().tokens.len(), 2);
    // The second load is offline: the file is in the cache folder.
    let again = Model::builder("hf:o/n").hub(settings(&hub, home.path(), true)).context(64).load().unwrap();
    assert_eq!(again.description().name, model.description().name);
}

#[test]
fn errors_of_the_hub_have_their_kinds() {
    let hub = Hub::new(vec![large("m-Q4_K_M.gguf", DEMO)]);
    let home = tempfile::tempdir().unwrap();
    let kind = |reference: &str, offline| {
        let loaded = Model::builder(reference).hub(settings(&hub, home.path(), offline)).load();
        loaded.err().unwrap().kind().clone()
    };
    assert_eq!(kind("hf:", false), ErrorKind::Argument { name: None });
    assert_eq!(kind("hf:o/n:Q8_0", false), ErrorKind::Argument { name: None });
    assert_eq!(kind("hf:o/n", true), ErrorKind::NotFound);
    assert_eq!(kind("hf:o/n/other.gguf", false), ErrorKind::Argument { name: None });
    assert_eq!(kind("hf:o/other", false), ErrorKind::NotFound);
    assert_eq!(kind("./hf:o/n", false), ErrorKind::NotFound);
    // The caller cancels.
    let builder = Model::builder("hf:o/n").hub(settings(&hub, home.path(), false));
    assert_eq!(*builder.load_while(&mut || false).err().unwrap().kind(), ErrorKind::Cancelled);
}
