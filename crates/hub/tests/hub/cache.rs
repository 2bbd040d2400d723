//! The cache folder: listing, removal, links, and Hugging Face's own cache.

use super::*;
use latent_hub::{list, pulled_reference, remove};
use support::{COMMIT, Misdeed, large, noise, small};

fn hub() -> Hub {
    Hub::new(vec![large("m-Q4_0.gguf", noise(1000, 1)), large("m-Q8_0.gguf", noise(3000, 2))])
}

fn remove_in(place: &CacheFixture, text: &str) -> Result<latent_hub::RemovalReport, HubError> {
    remove(&place.settings, &pulled_reference(&place.settings, text)?)
}

#[test]
fn pulled_models_are_listed_and_removed_one_by_one() {
    let hub = hub();
    let place = CacheFixture::new(&hub);
    assert_eq!(list(&place.settings), []);
    place.pull("hf:o/n:Q4_0").unwrap();
    place.pull("hf:o/n/m-Q8_0.gguf").unwrap();
    place.pull("hf:o/n@v1:Q8_0").unwrap();
    let listed = list(&place.settings);
    let names: Vec<_> =
        listed.iter().map(|l| (l.reference.as_str(), l.model.bytes, l.files, l.complete)).collect();
    let expected = [
        ("hf:o/n:Q4_0", 1000, 1, true),
        ("hf:o/n/m-Q8_0.gguf", 3000, 1, true),
        ("hf:o/n@v1:Q8_0", 3000, 1, true),
    ];
    assert_eq!(names, expected);
    for listed in &listed {
        assert_eq!(place.find(&listed.reference).as_ref(), Some(&listed.model), "{}", listed.reference);
    }
    // The file stays, because another model shares it.
    let removed = remove_in(&place, "hf:o/n@v1").unwrap();
    assert_eq!((removed.models.as_slice(), removed.freed), (&["hf:o/n@v1:Q8_0".to_owned()][..], 0));
    assert!(place.find("hf:o/n:Q8_0").is_some());
    let removed = remove_in(&place, "o/n:q8_0").unwrap();
    assert_eq!((removed.models.len(), removed.freed), (1, 3000));
    assert!(place.find("hf:o/n:Q8_0").is_none() && place.find("hf:o/n:Q4_0").is_some());
    let removed = remove_in(&place, "n").unwrap();
    assert_eq!((removed.models.as_slice(), removed.freed), (&["hf:o/n:Q4_0".to_owned()][..], 1000));
    assert!(!place.repo().exists() && !place.repo().parent().unwrap().exists());
    // Removing the last quant also removes the folders.
    place.pull("hf:o/n:Q4_0").unwrap();
    remove_in(&place, "hf:o/n:Q4_0").unwrap();
    assert!(!place.repo().parent().unwrap().exists(), "{:?}", place.files());
    for gone in ["n", "hf:o/n", "o/n:Q4_0"] {
        let error = remove_in(&place, gone).unwrap_err();
        assert!(matches!(error, HubError::NotPulled { .. }), "{gone}: {error}");
    }
}

#[test]
fn incomplete_models_are_listed_and_removed() {
    let hub = hub();
    let mut place = CacheFixture::new(&hub);
    place.settings.attempts = 1;
    hub.misbehave("m-Q8_0.gguf", [Misdeed::Truncate(700)]);
    place.fails("hf:o/n:Q8_0");
    let listed = list(&place.settings);
    assert_eq!((listed.len(), listed[0].model.bytes, listed[0].complete), (1, 700, false));
    let removed = remove_in(&place, "hf:o/n").unwrap();
    assert_eq!(removed.freed, 700);
    assert_eq!(list(&place.settings), []);
}

#[test]
fn a_model_is_not_removed_while_it_is_downloaded() {
    let hub = hub();
    let place = CacheFixture::new(&hub);
    hub.misbehave("m-Q8_0.gguf", [Misdeed::Slow(Duration::from_millis(100))]);
    std::thread::scope(|scope| {
        scope.spawn(|| place.pull("hf:o/n:Q8_0").unwrap());
        while hub.downloads("m-Q8_0.gguf").is_empty() {
            std::thread::sleep(Duration::from_millis(5));
        }
        let error = remove_in(&place, "hf:o/n").unwrap_err();
        assert!(error.to_string().contains("in progress"), "{error}");
    });
    remove_in(&place, "hf:o/n").unwrap();
}

#[test]
#[cfg(unix)]
fn links_are_not_followed_by_pull_and_remove() {
    use std::os::unix::fs::symlink;
    let hub = hub();
    let place = CacheFixture::new(&hub);
    let outside = tempfile::tempdir().unwrap();
    std::fs::write(outside.path().join("precious"), "x").unwrap();
    std::fs::create_dir_all(place.repo().parent().unwrap()).unwrap();
    symlink(outside.path(), place.repo()).unwrap();
    let error = place.pull("hf:o/n").unwrap_err();
    assert!(error.to_string().contains("symbolic link"), "{error}");
    assert!(remove_in(&place, "hf:o/n").unwrap_err().to_string().contains("symbolic link"));
    std::fs::remove_file(place.repo()).unwrap();
    place.pull("hf:o/n:Q4_0").unwrap();
    // A link in place of a folder of the commit.
    std::fs::remove_dir_all(place.repo().join(COMMIT)).unwrap();
    std::fs::write(outside.path().join("m-Q4_0.gguf"), noise(1000, 1)).unwrap();
    symlink(outside.path(), place.repo().join(COMMIT)).unwrap();
    assert!(remove_in(&place, "hf:o/n:Q4_0").unwrap_err().to_string().contains("symbolic link"));
    assert!(place.find("hf:o/n:Q4_0").is_some(), "half of it is gone");
    assert!(remove_in(&place, "hf:o/n").unwrap_err().to_string().contains("symbolic link"));
    assert!(outside.path().join("precious").exists() && outside.path().join("m-Q4_0.gguf").exists());
}

#[test]
fn a_forged_record_cannot_name_paths_outside() {
    let hub = hub();
    let place = CacheFixture::new(&hub);
    std::fs::create_dir_all(place.repo().join(COMMIT)).unwrap();
    std::fs::write(place.repo().join("../victim"), "12345").unwrap();
    let record = r#"{"sets": [{"name": "Q4_0", "revision": "main", "model": "../../victim", "pulled": 1,
        "files": [{"path": "../../victim", "size": 5}]}]}"#;
    std::fs::write(place.repo().join(format!("{COMMIT}.json")), record).unwrap();
    assert_eq!(place.find("hf:o/n:Q4_0"), None);
    assert!(matches!(remove_in(&place, "hf:o/n:Q4_0"), Err(HubError::UnsafePath { .. })));
    assert!(place.repo().join("../victim").exists());
    std::fs::write(place.repo().join(format!("{COMMIT}.json")), "{ not json").unwrap();
    assert_eq!(list(&place.settings), []);
    assert!(place.pull("hf:o/n:Q4_0").is_ok());
}

#[test]
fn files_in_the_cache_of_hugging_face_are_used() {
    let hub = Hub::new(vec![
        large("m-Q4_0.gguf", noise(1000, 1)),
        small("config.json", "{}"),
        large("model.safetensors", noise(500, 2)),
        small("tokenizer.json", "{ }"),
    ]);
    let place = CacheFixture::new(&hub);
    let folder = place.settings.hf_cache.clone().unwrap().join("models--o--n");
    let snapshot = folder.join("snapshots").join(COMMIT);
    std::fs::create_dir_all(&snapshot).unwrap();
    std::fs::create_dir_all(folder.join("refs")).unwrap();
    std::fs::write(folder.join("refs/main"), COMMIT).unwrap();
    std::fs::write(snapshot.join("m-Q4_0.gguf"), noise(1000, 1)).unwrap();
    let found = place.find("hf:o/n").unwrap();
    assert_eq!((found.path, found.name.as_str()), (snapshot.join("m-Q4_0.gguf"), "Q4_0"));
    assert!(place.find(&format!("hf:o/n@{COMMIT}:Q4_0")).is_some());
    for lacking in ["hf:o/n:Q8_0", "hf:o/n:safetensors", "hf:o/n@v1"] {
        assert_eq!(place.find(lacking), None, "{lacking}");
    }
    let pulled = place.pull("hf:o/n").unwrap();
    assert!(pulled.up_to_date && pulled.model.path.starts_with(&snapshot));
    assert_eq!(hub.downloads("m-Q4_0.gguf").len(), 0);
    // An incomplete folder is not a model.
    for (name, bytes) in [("config.json", b"{}".to_vec()), ("model.safetensors", noise(500, 2))] {
        std::fs::write(snapshot.join(name), bytes).unwrap();
    }
    assert_eq!(place.find("hf:o/n:safetensors"), None);
    assert!(place.pull("hf:o/n:safetensors").unwrap().model.path.starts_with(place.repo()));
    std::fs::remove_dir_all(place.repo()).unwrap();
    std::fs::write(snapshot.join("tokenizer.json"), "{ }").unwrap();
    assert_eq!(place.find("hf:o/n:safetensors").unwrap().path, snapshot);
    // `remove` does not touch Hugging Face's cache.
    assert!(matches!(remove_in(&place, "hf:o/n"), Err(HubError::NotPulled { .. })));
    assert_eq!(list(&place.settings), []);
}

/// The result of `work` within a minute. Opening a pipe would block forever.
#[cfg(unix)]
fn bounded<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || sender.send(work()));
    receiver.recv_timeout(Duration::from_secs(60)).expect("it waits for a pipe")
}

#[cfg(unix)]
fn make_pipe(path: &Path) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    let _ = std::fs::remove_file(path);
    assert!(std::process::Command::new("mkfifo").arg(path).status().unwrap().success());
}

/// The result of a pull, whether the model is then found, and the number of listed models.
#[cfg(unix)]
fn pulled_found_and_listed(place: &CacheFixture) -> (Result<(), String>, bool, usize) {
    let settings = place.settings.clone();
    bounded(move || {
        let model = "hf:o/n:Q4_0".parse().unwrap();
        let pulled = pull(&settings, &model, &mut |_| true).map(drop).map_err(|error| error.to_string());
        (pulled, find(&settings, &model).unwrap().is_some(), list(&settings).len())
    })
}

/// Every bookkeeping file of a pull: its path in the repository's folder, and whether a pull
/// succeeds if something else is at that path.
#[cfg(unix)]
fn bookkeeping_files() -> [(String, bool); 5] {
    let digest = support::sha256(&noise(1000, 1));
    [
        (format!("{COMMIT}.json"), false),
        ("lock".into(), false),
        (format!("parts/{digest}.lock"), false),
        (format!("parts/{digest}.part"), false),
        // Without an ETag, the checksum still detects bytes of another file.
        (format!("parts/{digest}.etag"), true),
    ]
}

#[test]
#[cfg(unix)]
fn pipes_in_the_cache_do_not_block() {
    for (file, passed) in bookkeeping_files() {
        let hub = hub();
        let place = CacheFixture::new(&hub);
        let path = place.repo().join(&file);
        make_pipe(&path);
        let (pulled, found, listed) = pulled_found_and_listed(&place);
        assert_eq!((pulled.is_ok(), found, listed > 0), (passed, passed, passed), "{file}: {pulled:?}");
        if let Err(error) = pulled {
            assert!(error.contains("it is a pipe") && error.contains(&file), "{file}: {error}");
        }
        // The pipe can be removed together with the repository.
        let settings = place.settings.clone();
        let removed = bounded(move || remove(&settings, &"hf:o/n".parse().unwrap()));
        assert!(removed.is_ok() && !place.repo().exists(), "{file}: {removed:?}");
    }
}

#[test]
#[cfg(unix)]
fn nothing_is_written_through_links_in_the_cache() {
    use std::os::unix::fs::symlink;
    for (file, passed) in bookkeeping_files() {
        for there in [true, false] {
            let hub = hub();
            let place = CacheFixture::new(&hub);
            let outside = tempfile::tempdir().unwrap();
            let victim = outside.path().join("victim");
            if there {
                std::fs::write(&victim, "precious").unwrap();
            }
            let path = place.repo().join(&file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            symlink(&victim, &path).unwrap();
            let (pulled, ..) = pulled_found_and_listed(&place);
            assert_eq!(pulled.is_ok(), passed, "{file}: {pulled:?}");
            if let Err(error) = pulled {
                assert!(error.contains("symbolic link") && error.contains(&file), "{file}: {error}");
            }
            let kept = std::fs::read_to_string(&victim).ok();
            assert_eq!(kept.as_deref(), there.then_some("precious"), "{file}");
        }
        // A hard link to the file.
        let hub = hub();
        let place = CacheFixture::new(&hub);
        let path = place.repo().join(&file);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        let victim = place.settings.cache.join("victim");
        std::fs::write(&victim, "precious").unwrap();
        std::fs::hard_link(&victim, &path).unwrap();
        let _ = pulled_found_and_listed(&place);
        assert_eq!(std::fs::read_to_string(&victim).unwrap(), "precious", "{file}");
    }
}

#[test]
#[cfg(unix)]
fn pipes_in_hugging_faces_cache_and_token_files_do_not_block() {
    let hub = Hub::new(vec![
        small("config.json", "{}"),
        large("model.safetensors", noise(500, 2)),
        small("tokenizer.json", "{ }"),
        small("model.safetensors.index.json", r#"{"weight_map": {"a": "model.safetensors"}}"#),
    ]);
    let place = CacheFixture::new(&hub);
    let folder = place.settings.hf_cache.clone().unwrap().join("models--o--n");
    let snapshot = folder.join("snapshots").join(COMMIT);
    make_pipe(&folder.join("refs/main"));
    for name in ["config.json", "model.safetensors", "tokenizer.json", "model.safetensors.index.json"] {
        make_pipe(&snapshot.join(name));
    }
    let found = |place: &CacheFixture| {
        let settings = place.settings.clone();
        bounded(move || find(&settings, &"hf:o/n:safetensors".parse().unwrap()).unwrap())
    };
    assert_eq!(found(&place), None);
    std::fs::remove_file(folder.join("refs/main")).unwrap();
    std::fs::write(folder.join("refs/main"), COMMIT).unwrap();
    assert_eq!(found(&place), None);
    let settings = place.settings.clone();
    let pulled = bounded(move || pull(&settings, &"hf:o/n:safetensors".parse().unwrap(), &mut |_| true));
    assert!(pulled.unwrap().model.path.starts_with(place.repo()));
    // The default token file, and one that a variable names.
    let token = place.folder.path().join("token");
    make_pipe(&token);
    let home = place.folder.path().as_os_str().to_owned();
    for name in ["HF_HOME", "HF_TOKEN_PATH"] {
        let (home, token) = (home.clone(), token.clone());
        let error = bounded(move || {
            HubSettings::from_variables(&|other| match other {
                "HOME" => Some("/h".into()),
                "HF_HOME" if name == other => Some(home.clone()),
                "HF_TOKEN_PATH" if name == other => Some(token.as_os_str().to_owned()),
                _ => None,
            })
            .unwrap_err()
            .to_string()
        });
        assert!(error.contains("it is a pipe") && error.contains("token"), "{error}");
    }
}
