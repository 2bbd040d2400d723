//! Successful and interrupted pulls.

use super::*;
use support::{COMMIT, Misdeed, large, noise, sha256, small};

fn quants() -> Vec<support::HubFile> {
    vec![
        small("README.md", "# words"),
        large("m-Q8_0.gguf", noise(300_000, 1)),
        large("Q4_K_M/m ü-Q4_K_M-00001-of-00002.gguf", noise(200_000, 2)),
        large("Q4_K_M/m ü-Q4_K_M-00002-of-00002.gguf", noise(100_000, 3)),
    ]
}

#[test]
fn shards_are_pulled_over_pages_and_redirects() {
    let hub = Hub::new(quants());
    let place = CacheFixture::new(&hub);
    let mut plan = None;
    let mut last = (0, 0);
    let pulled = place.pull_with("hf:o/n", &mut |event| {
        match event {
            PullEvent::Plan { name, files, bytes, here, .. } => plan = Some((name, files, bytes, here)),
            PullEvent::Progress { done, total } => last = (done, total),
            other => panic!("{other:?}"),
        }
        true
    });
    let pulled = pulled.unwrap();
    assert_eq!(plan, Some(("Q4_K_M".into(), 2, 300_000, 0)));
    assert_eq!(last, (300_000, 300_000));
    assert!(!pulled.up_to_date && pulled.model.commit == COMMIT && pulled.model.bytes == 300_000);
    let folder = place.repo().join(COMMIT);
    assert_eq!(pulled.model.path, folder.join("Q4_K_M/m ü-Q4_K_M-00001-of-00002.gguf"));
    assert_eq!(std::fs::read(&pulled.model.path).unwrap(), noise(200_000, 2));
    let shard = "Q4_K_M/m ü-Q4_K_M-00002-of-00002.gguf";
    assert_eq!(std::fs::read(folder.join(shard)).unwrap(), noise(100_000, 3));
    let record = format!("{COMMIT}.json");
    assert_eq!(
        place.files().iter().filter(|f| **f != "lock" && **f != record).count(),
        2,
        "{:?}",
        place.files()
    );
    for reference in [
        "hf:o/n",
        "hf:o/n:q4_k_m",
        &format!("hf:o/n@{COMMIT}"),
        "hf:o/n@main:Q4_K_M",
        &format!("hf:o/n/{shard}"),
    ] {
        assert_eq!(place.find(reference), Some(pulled.model.clone()), "{reference}");
    }
    for reference in ["hf:o/n:Q8_0", "hf:o/other", "hf:o/n@v1"] {
        assert_eq!(place.find(reference), None, "{reference}");
    }
    let again = place.pull("hf:o/n:Q4_K_M").unwrap();
    assert!(again.up_to_date && again.model == pulled.model);
    assert_eq!(hub.seen().iter().filter(|seen| seen.host == "storage").count(), 2);
}

#[test]
fn a_folder_is_pulled_with_the_shards_of_its_index() {
    let index = r#"{"metadata": {"total_size": 2}, "weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}"#;
    let hub = Hub::new(vec![
        small("config.json", "{}"),
        small("tokenizer_config.json", ""),
        large("tokenizer.json", noise(5000, 1)),
        small("model.safetensors.index.json", index),
        large("model-1.safetensors", noise(70_000, 2)),
        large("model-2.safetensors", noise(80_000, 3)),
        large("consolidated.safetensors", noise(10, 4)),
        small("modeling_evil.py", "import os"),
    ]);
    let place = CacheFixture::new(&hub);
    let pulled = place.pull("hf:o/n").unwrap();
    let folder = place.repo().join(COMMIT);
    assert_eq!((pulled.model.name.as_str(), &pulled.model.path), ("safetensors", &folder));
    let mut names: Vec<_> =
        std::fs::read_dir(&folder).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    let expected = [
        "config.json",
        "model-1.safetensors",
        "model-2.safetensors",
        "model.safetensors.index.json",
        "tokenizer.json",
        "tokenizer_config.json",
    ];
    assert_eq!(names, expected);
    assert_eq!(place.find("hf:o/n"), Some(pulled.model.clone()));
    assert_eq!(place.find("hf:o/n:safetensors"), Some(pulled.model));
    assert!(place.pull("hf:o/n").unwrap().up_to_date);
}

#[test]
fn a_part_of_an_earlier_process_is_resumed() {
    let bytes = noise(500_000, 7);
    let hub = Hub::new(vec![large("m-Q4_0.gguf", bytes.clone())]);
    let place = CacheFixture::new(&hub);
    // The state after a process was killed during a download.
    let parts = place.repo().join("parts");
    std::fs::create_dir_all(&parts).unwrap();
    std::fs::write(parts.join(format!("{}.part", sha256(&bytes))), &bytes[..123_456]).unwrap();
    let mut here = None;
    let pulled = place.pull_with("hf:o/n", &mut |event| {
        if let PullEvent::Plan { here: bytes, .. } = event {
            here = Some(bytes);
        }
        true
    });
    assert_eq!(std::fs::read(pulled.unwrap().model.path).unwrap(), bytes);
    assert_eq!(here, Some(123_456));
    let seen = hub.downloads("m-Q4_0.gguf");
    assert_eq!(seen.iter().map(|seen| seen.headers["range"].as_str()).collect::<Vec<_>>(), ["bytes=123456-"]);
}

#[test]
fn a_stopped_pull_keeps_its_bytes_for_the_next() {
    let bytes = noise(2_000_000, 8);
    let hub = Hub::new(vec![large("m-Q4_0.gguf", bytes.clone())]);
    let place = CacheFixture::new(&hub);
    hub.misbehave("m-Q4_0.gguf", [Misdeed::Stall(1_500_000)]);
    let start = std::time::Instant::now();
    let stopped =
        place.pull_with("hf:o/n", &mut |event| !matches!(event, PullEvent::Progress { done: 1_500_000, .. }));
    let error = stopped.unwrap_err();
    assert!(start.elapsed() < Duration::from_secs(5), "it waited for the server");
    assert!(matches!(error, HubError::Stopped { kept: 1_500_000, .. }), "{error}");
    assert!(error.to_string().contains("1.50 MB of hf:o/n are kept"), "{error}");
    assert_eq!(place.find("hf:o/n"), None);
    let pulled = place.pull("hf:o/n").unwrap();
    assert_eq!(std::fs::read(pulled.model.path).unwrap(), bytes);
    let seen = hub.downloads("m-Q4_0.gguf");
    assert_eq!(seen[1].headers["range"], "bytes=1500000-");
    assert!(seen[1].headers.contains_key("if-range"), "the ETag was not kept");
    assert_eq!(
        place.files().iter().filter(|path| path.starts_with("parts/")).count(),
        0,
        "{:?}",
        place.files()
    );
}

#[test]
fn a_newer_commit_shares_unchanged_files() {
    let same = large("m-Q4_0.gguf", noise(300_000, 1));
    let hub = Hub::new(vec![same.clone()]);
    let place = CacheFixture::new(&hub);
    let old = place.pull("hf:o/n").unwrap().model;
    let newer = "f".repeat(40);
    hub.set_files(&newer, vec![same, large("m-Q8_0.gguf", noise(10, 2))]);
    let new = place.pull("hf:o/n:Q4_0").unwrap();
    assert!(new.model.commit == newer && new.model.path != old.path);
    assert_eq!(hub.downloads("m-Q4_0.gguf").len(), 1, "the same bytes came twice");
    assert_eq!(place.find(&format!("hf:o/n@{COMMIT}")), Some(old));
    place.pull("hf:o/n:Q8_0").unwrap();
    let removed = latent_hub::remove(&place.settings, &format!("hf:o/n@{COMMIT}").parse().unwrap()).unwrap();
    if cfg!(unix) {
        assert_eq!(removed.freed, 0, "the other commit has the bytes still");
    }
    assert_eq!(std::fs::read(new.model.path).unwrap().len(), 300_000);
}

#[test]
fn empty_files_are_pulled() {
    let hub = Hub::new(vec![large("empty.gguf", "")]);
    let place = CacheFixture::new(&hub);
    assert_eq!(std::fs::read(place.pull("hf:o/n/empty.gguf").unwrap().model.path).unwrap(), b"");
}

#[test]
fn concurrent_pulls_download_once() {
    let bytes = noise(400_000, 9);
    let hub = Hub::new(vec![large("m-Q4_0.gguf", bytes.clone())]);
    let place = CacheFixture::new(&hub);
    hub.misbehave("m-Q4_0.gguf", [Misdeed::Slow(Duration::from_millis(60))]);
    let results = std::thread::scope(|scope| {
        let pulls: Vec<_> = (0..3).map(|_| scope.spawn(|| place.pull("hf:o/n").unwrap())).collect();
        pulls.into_iter().map(|pull| pull.join().unwrap()).collect::<Vec<_>>()
    });
    for pulled in results {
        assert_eq!(std::fs::read(pulled.model.path).unwrap(), bytes);
    }
    assert_eq!(hub.downloads("m-Q4_0.gguf").len(), 1);
}

#[test]
fn a_short_name_takes_the_largest_quant_that_fits() {
    let hub = Hub::new(vec![
        large("G-Q4_K_M.gguf", noise(300_000, 1)),
        large("G-Q8_0.gguf", noise(500_000, 2)),
        large("G-Q3_K_M.gguf", noise(200_000, 3)),
        large("G-Q2_K.gguf", noise(100_000, 4)),
    ]);
    hub.rename("unsloth/GLM-4.7-Flash-GGUF");
    let model = latent_hub::model_ref("glm-4.7-flash").unwrap();
    for (max_bytes, name, notes) in
        [(None, "Q4_K_M", 0), (Some(300_000), "Q4_K_M", 0), (Some(299_999), "Q3_K_M", 1)]
    {
        let place = CacheFixture::new(&hub);
        let policy = QuantPolicy { preferred: Some("Q4_K_M".into()), max_bytes };
        let mut told = Vec::new();
        let pulled = pull_with(&place.settings, &model, &policy, &mut |event| {
            told.extend(if let PullEvent::Note(text) = event { Some(text) } else { None });
            true
        });
        let pulled = pulled.unwrap();
        assert_eq!((pulled.model.name.as_str(), told.len()), (name, notes), "{told:?}");
        // A model that is already present is used, even if another would fit.
        assert_eq!(find(&place.settings, &model).unwrap(), Some(pulled.model));
    }
    let place = CacheFixture::new(&hub);
    let policy = QuantPolicy { preferred: None, max_bytes: Some(1000) };
    let error = pull_with(&place.settings, &model, &policy, &mut |_| true).unwrap_err().to_string();
    assert!(
        error.contains("all of its models exceed") && error.contains("GGUF:Q2_K  # 100.00 kB"),
        "{error}"
    );
    assert!(!place.files().iter().any(|file| file.ends_with(".gguf")), "{:?}", place.files());
}
