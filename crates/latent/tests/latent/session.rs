//! Saved sessions.

use crate::model;
use latent::engine::{EngineError, Session};
use latent::{Chat, ErrorKind};
use std::error::Error;

#[test]
fn a_session_is_resumed_by_another_model() {
    let first = model();
    let chat = Chat::new().user("Tell me a story about a fox and a lantern.");
    let done = first.chat(chat).temperature(0.0).max_tokens(150).finish().unwrap();
    let saved = first.session(&done).unwrap().to_bytes().unwrap();

    let second = model();
    let session = second.resume(&saved).unwrap();
    assert_eq!(session.tokens(), [&done.prompt[..], &done.tokens].concat());
    assert_eq!(session.chat(), done.chat().as_ref());
    let next = || session.chat().unwrap().clone().user("And then?");
    let resumed = second.chat(next()).temperature(0.0).max_tokens(20).finish().unwrap();
    assert!(resumed.usage.cached > 0, "{:?}", resumed.usage);
    assert_eq!(resumed.text, first.chat(next()).temperature(0.0).max_tokens(20).finish().unwrap().text);
    // A session as the prompt continues the answer where it ended.
    let continued = second.complete(&session).temperature(0.0).max_tokens(5).finish().unwrap();
    assert!(continued.usage.cached >= 128, "{:?}", continued.usage);
}

#[test]
fn damaged_sessions_are_refused() {
    let model = model();
    let done = model.complete("Once upon a time").temperature(0.0).max_tokens(100).finish().unwrap();
    let saved = model.session(&done).unwrap().to_bytes().unwrap();
    assert!(model.resume(&saved).is_ok());
    for end in [0, 5, 11, 30, saved.len() - 1] {
        let error = model.resume(&saved[..end]).unwrap_err();
        assert_eq!(error.kind(), &ErrorKind::File, "{end}: {error}");
    }
    for at in [3, 9, saved.len() / 2, saved.len() - 20] {
        let mut wrong = saved.clone();
        wrong[at] ^= 1;
        let error = model.resume(&wrong).unwrap_err();
        assert_eq!(error.kind(), &ErrorKind::File, "{at}: {error}");
    }
    // Heads that are JSON, but not objects.
    for head in ["[]", "5", "\"x\"", "null", "true", "{}", "[[1]]"] {
        let length = u32::try_from(head.len()).unwrap().to_le_bytes();
        let wrong = [&saved[..8], &length, head.as_bytes()].concat();
        let error = model.resume(&wrong).unwrap_err();
        assert_eq!(error.kind(), &ErrorKind::File, "{head}: {error}");
    }
    // Rows that belong to other tokens than the session states.
    let other = model.complete("The fox and the owl").temperature(0.0).max_tokens(100).finish().unwrap();
    let other = model.session(&other).unwrap().to_bytes().unwrap();
    let parts = |bytes: &[u8]| {
        let head = 12 + u32::from_le_bytes(bytes[8..12].try_into().unwrap()) as usize;
        (bytes[..head].to_vec(), bytes[head..].to_vec())
    };
    let error = model.resume(&[parts(&saved).0, parts(&other).1].concat()).unwrap_err();
    assert!(error.message().contains("other tokens"), "{error}");
    let error = model.resume_for(&saved, b"another owner").unwrap_err();
    assert_eq!(error.kind(), &ErrorKind::File, "{error}");
}

#[test]
fn prompt_caches_are_files_of_the_engine() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("story.kv");
    let first = model();
    let ask = |model: &latent::Model| model.complete("A fox and a lantern").temperature(0.0).max_tokens(100);
    let done = ask(&first).finish().unwrap();
    let tokens = [&done.prompt[..], &done.tokens].concat();
    let saved = first.save_prompt_cache(&tokens, Some(b"notes"), &path).unwrap();
    // The last token has not run.
    assert_eq!(saved, tokens.len() - 1);

    let second = model();
    let (restored, attachment) = second.restore_prompt_cache(&path).unwrap();
    assert_eq!((&restored[..], attachment.as_deref()), (&tokens[..saved], Some(&b"notes"[..])));
    let again = ask(&second).finish().unwrap();
    assert_eq!((again.usage.cached, &again.text), (done.prompt.len() - 1, &done.text));

    // The engine reads the file, and writes one that the model reads.
    let (file, other) = (path.clone(), folder.path().join("other.kv"));
    let written = other.clone();
    let known = first.with_engine(512, move |engine| {
        let (mut session, attachment) = engine.restore_session(&file)?;
        engine.save_session(&mut session, None, &written)?;
        engine.save_session(&mut Session::default(), None, &file)?;
        Ok::<_, EngineError>((session.tokens().to_vec(), attachment))
    });
    assert_eq!(known.unwrap().unwrap(), (restored.clone(), attachment));
    assert_eq!(second.restore_prompt_cache(&other).unwrap(), (restored, None));
    assert_eq!(second.restore_prompt_cache(&path).unwrap(), (Vec::new(), None));

    // Tokens that are not cached: a file without rows.
    assert_eq!(second.save_prompt_cache(&[7, 8, 9], Some(b"x"), &path).unwrap(), 0);
    assert_eq!(second.restore_prompt_cache(&path).unwrap(), (Vec::new(), Some(b"x".to_vec())));
    std::fs::write(&path, b"LATNTKV1").unwrap();
    let error = second.restore_prompt_cache(&path).unwrap_err();
    assert_eq!(error.kind(), &ErrorKind::File, "{error}");
    let source = error.source().and_then(|source| source.downcast_ref());
    assert!(matches!(source, Some(EngineError::CacheFile(_))), "{error:?}");
}
