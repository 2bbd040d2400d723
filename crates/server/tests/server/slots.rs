//! `POST /slots/{id}`: saves the cached text of a slot to a file, restores and erases it.

use crate::support::{TestServer, config, demo, start};
use latent_server::{ApiKeys, ServerConfig};
use serde_json::{Value, json};
use std::path::Path;

const FOX: &str = "The quick brown fox and the lazy dog went to the river, where they met an owl who knew every tree of the forest by its name.";

fn with_folder(folder: &Path) -> TestServer {
    start(ServerConfig { slot_save_path: Some(folder.into()), ..config() })
}

/// Continues a text in a slot, with greedy sampling.
fn complete(server: &TestServer, prompt: &str, slot: i32) -> Value {
    let body =
        json!({"prompt": prompt, "n_predict": 40, "ignore_eos": true, "temperature": 0, "id_slot": slot});
    server.post("/completion", &body).ok()
}

fn cached(answer: &Value) -> u64 {
    answer["timings"]["cache_n"].as_u64().unwrap()
}

#[test]
fn a_slot_is_saved_and_restored_by_another_server() {
    let folder = tempfile::tempdir().unwrap();
    let server = with_folder(folder.path());
    let first = complete(&server, FOX, 3);
    assert_eq!((&first["id_slot"], cached(&first)), (&json!(3), 0));
    let prompt = first["tokens_evaluated"].as_u64().unwrap();
    assert!(prompt > 20);
    let saved = server.post("/slots/3?action=save", &json!({"filename": "fox.bin"})).ok();
    // The last token of the answer was sampled but has not run, so it is not cached.
    assert_eq!((&saved["id_slot"], &saved["n_saved"]), (&json!(3), &json!(prompt + 39)));
    assert_eq!(saved["filename"], "fox.bin");
    let bytes = std::fs::metadata(folder.path().join("fox.bin")).unwrap().len();
    assert_eq!(saved["n_written"], bytes);
    assert!(saved["timings"]["save_ms"].is_f64());
    let again = complete(&server, FOX, 0);
    drop(server);
    let server = with_folder(folder.path());
    let restored = server.post("/slots/0?action=restore", &json!({"filename": "fox.bin"})).ok();
    assert_eq!((&restored["id_slot"], &restored["n_restored"]), (&json!(0), &json!(prompt + 39)));
    assert_eq!(restored["n_read"], bytes);
    // The last token of the prompt always runs, for its logits.
    let elsewhere = complete(&server, FOX, -1);
    assert_eq!((cached(&elsewhere), &elsewhere["content"]), (prompt - 1, &again["content"]));
    // The answer is cached too.
    let longer = format!("{FOX}{} And then", first["content"].as_str().unwrap());
    assert!(cached(&complete(&server, &longer, -1)) >= prompt + 30);
    // A restored slot can be saved again, with the same bytes.
    server.post("/slots/0?action=restore", &json!({"filename": "fox.bin"})).ok();
    server.post("/slots/0?action=save", &json!({"filename": "copy.bin"})).ok();
    let read = |name| std::fs::read(folder.path().join(name)).unwrap();
    assert_eq!(read("copy.bin"), read("fox.bin"));
    server.assert_idle();
}

#[test]
fn an_erased_slot_is_forgotten_and_texts_of_others_are_not() {
    let folder = tempfile::tempdir().unwrap();
    let server = with_folder(folder.path());
    let prompt = complete(&server, FOX, 0)["tokens_evaluated"].as_u64().unwrap();
    let erased = server.ask("POST", "/slots/0?action=erase", &[], "").ok();
    assert_eq!(erased, json!({"id_slot": 0, "n_erased": prompt + 39}));
    assert_eq!(server.ask("POST", "/slots/0?action=erase", &[], "").ok()["n_erased"], 0);
    assert_eq!(cached(&complete(&server, FOX, 0)), 0);
    // A longer text in slot 1 begins with that of slot 0, which erasing slot 1 must keep.
    let longer = FOX.repeat(4);
    complete(&server, &longer, 1);
    let erased = server.ask("POST", "/slots/1?action=erase", &[], "").ok()["n_erased"].as_u64().unwrap();
    assert!(erased > prompt, "{erased}");
    assert!(cached(&complete(&server, FOX, 0)) >= 20);
    server.assert_idle();
}

#[test]
fn wrong_names_slots_and_actions_are_refused() {
    let server = demo();
    for action in ["save", "restore", "erase"] {
        let path = format!("/slots/0?action={action}");
        let (message, _) = server.post(&path, &json!({"filename": "a"})).error(501);
        assert!(message.contains("--slot-save-path"), "{message}");
    }
    let folder = tempfile::tempdir().unwrap();
    let inner = folder.path().join("inner");
    std::fs::create_dir(&inner).unwrap();
    let server = with_folder(&inner);
    complete(&server, FOX, 0);
    let name = |name: &str| json!({"filename": name});
    let long = "a".repeat(256);
    for wrong in ["", ".", "..", "../a", "a/b", "/a", "a\\b", "c:a", "a\0b", ".hidden", "a ", &long] {
        for action in ["save", "restore"] {
            let (message, _) = server.post(&format!("/slots/0?action={action}"), &name(wrong)).error(400);
            assert!(message.contains("`filename`: expected the name of a file"), "{wrong:?}: {message}");
        }
    }
    for (path, body, status, word) in [
        ("/slots/16?action=save", name("a"), 400, "from 0 to 15"),
        ("/slots/-1?action=save", name("a"), 400, "from 0 to 15"),
        ("/slots/x?action=save", name("a"), 400, "from 0 to 15"),
        ("/slots/0", name("a"), 400, "action=save"),
        ("/slots/0?action=copy", name("a"), 400, "action=save"),
        ("/slots/0?action=save", json!({}), 400, "filename"),
        ("/slots/0?action=save", json!({"filename": 1}), 400, "filename"),
        ("/slots/1?action=save", name("a"), 400, "id_slot"),
        ("/slots/0?action=restore", name("missing"), 404, "missing"),
    ] {
        let (message, _) = server.post(path, &body).error(status);
        assert!(message.contains(word), "{path}: {message}");
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    assert_eq!(std::fs::read_dir(&inner).unwrap().count(), 0);
    server.assert_idle();
}

#[test]
fn files_that_cannot_be_used_are_refused_and_change_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let server = with_folder(folder.path());
    complete(&server, FOX, 0);
    server.post("/slots/0?action=save", &json!({"filename": "good"})).ok();
    server.ask("POST", "/slots/0?action=erase", &[], "").ok();
    let good = std::fs::read(folder.path().join("good")).unwrap();
    let damaged = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = good.clone();
        change(&mut bytes);
        bytes
    };
    for (what, bytes, word) in [
        ("empty", Vec::new(), "truncated"),
        ("text", b"not a cache".to_vec(), "LATNTKV1"),
        ("cut", damaged(&|bytes| bytes.truncate(good.len() / 2)), "match its size"),
        ("longer", damaged(&|bytes| bytes.extend([0; 5000])), "damaged"),
        ("model", damaged(&|bytes| bytes[8] ^= 1), "another model"),
        ("count", damaged(&|bytes| bytes[16..24].fill(0xff)), "match its size"),
        ("type", damaged(&|bytes| bytes[28] ^= 1), "cache type"),
        ("row", damaged(&|bytes| bytes[good.len() / 2] ^= 1), "checksum"),
        ("attachment", damaged(&|bytes| bytes[good.len() - 20] ^= 1), "checksum"),
        (
            "no attachment",
            damaged(&|bytes| bytes.truncate(good.len() - 56)),
            "not a cached prompt of a server",
        ),
    ] {
        std::fs::write(folder.path().join(what), bytes).unwrap();
        let (message, _) = server.post("/slots/1?action=restore", &json!({"filename": what})).error(400);
        let path = folder.path().display().to_string();
        assert!(
            message.contains(word) && message.contains(what) && !message.contains(&path),
            "{what}: {message}"
        );
        server.assert_idle();
    }
    assert_eq!(cached(&complete(&server, FOX, 0)), 0);
    server.post("/slots/1?action=restore", &json!({"filename": "good"})).ok();
}

#[test]
fn a_key_reads_no_texts_of_another() {
    let folder = tempfile::tempdir().unwrap();
    let keys = ApiKeys::parse("first-secret-key\nsecond-secret-key").unwrap();
    let server = start(ServerConfig { keys, slot_save_path: Some(folder.path().into()), ..config() });
    let ask = |key: &str, path: &str, body: Value| {
        let header = format!("Bearer {key}-secret-key");
        server.ask("POST", path, &[("Authorization", &header)], &body.to_string())
    };
    let fox = || json!({"prompt": FOX, "n_predict": 4, "id_slot": 2, "ignore_eos": true});
    ask("first", "/completion", fox()).ok();
    let name = || json!({"filename": "fox"});
    for action in ["save", "erase"] {
        let (message, _) = ask("second", &format!("/slots/2?action={action}"), name()).error(403);
        assert!(message.contains("another API key"), "{message}");
    }
    ask("first", "/slots/2?action=save", name()).ok();
    let (message, _) = ask("second", "/slots/2?action=restore", name()).error(400);
    assert!(message.contains("key"), "{message}");
    assert_eq!(cached(&ask("second", "/completion", fox()).ok()), 0);
    ask("first", "/slots/0?action=restore", name()).ok();
}

#[test]
fn least_recently_used_texts_make_room_for_a_restored_one() {
    let folder = tempfile::tempdir().unwrap();
    let server = with_folder(folder.path());
    complete(&server, FOX, 0);
    server.post("/slots/0?action=save", &json!({"filename": "fox"})).ok();
    server.ask("POST", "/slots/0?action=erase", &[], "").ok();
    // Other texts fill the cache and evict this one.
    let mut kind = 0;
    let free = || {
        let stats = server.stats();
        let blocks = |name: &str| stats["kv_blocks"][name].as_u64().unwrap();
        blocks("total") - blocks("used") - blocks("cached")
    };
    while free() > 1 {
        kind += 1;
        assert!(kind < 200, "the cache is never full: {}", server.stats());
        complete(&server, &format!("{kind} {FOX}"), -1);
    }
    server.post("/slots/0?action=restore", &json!({"filename": "fox"})).ok();
    assert!(cached(&complete(&server, FOX, -1)) > 20);
    server.assert_idle();
}
