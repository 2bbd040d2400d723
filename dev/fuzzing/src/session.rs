//! Modified files of saved sequences.

use crate::model;
use crate::source::FuzzSource;
use latent_backend_reference::{ReferenceBackend, ToyRecurrence};
use latent_engine::cache::Sequence;
use latent_engine::{Engine, EngineOptions, LogitsRequest, SeqInput, Session};
use std::sync::{Mutex, OnceLock, PoisonError};

/// An engine, and the file in which it saved a sequence of five tokens with an attachment.
struct SavedSession {
    engine: Engine,
    file: Vec<u8>,
    /// Offset of the attachment.
    rows_end: usize,
}

/// Bytes of an attachment without its content: magic, length and checksum.
const FRAME: usize = 24;

const ATTACHMENT: &[u8] = br#"[{"role": "user", "content": "Hi"}]"#;

const CACHES: [Option<latent_types::CacheType>; 4] =
    [None, Some(latent_types::CacheType::Int8), Some(latent_types::CacheType::F32), None];

/// Index of the model with recurrent state.
const RECURRENT: usize = 3;

fn saved(chosen: usize) -> &'static Mutex<SavedSession> {
    static ALL: [OnceLock<Mutex<SavedSession>>; CACHES.len()] = [const { OnceLock::new() }; CACHES.len()];
    ALL[chosen].get_or_init(|| {
        let make = || -> Result<SavedSession, Box<dyn std::error::Error>> {
            let options = EngineOptions { cache: CACHES[chosen], ..model::options() };
            let mut engine = match chosen {
                RECURRENT => {
                    let backend = ReferenceBackend::with_recurrences(vec![ToyRecurrence::new(0.5)]);
                    Engine::load(&backend, &model::tiny(chosen), &options, &mut |_, _| {})?
                }
                _ => model::load(&model::tiny(chosen), &options)?,
            };
            let mut sequence = Sequence::default();
            // In the model with recurrent state, the file then holds two states.
            engine.snapshot_at(&mut sequence, 2)?;
            let tokens = [256, 5, 99, 300, 7];
            let mut items = [SeqInput::tokens(&mut sequence, &tokens, LogitsRequest::Nothing)];
            engine.step(&mut items, &mut |_, _, _| {})?;
            let folder = tempfile::tempdir()?;
            let path = folder.path().join("saved.kv");
            let mut session = Session::from(sequence);
            engine.save_session(&mut session, Some(ATTACHMENT), &path)?;
            engine.release(session.sequence);
            let file = std::fs::read(path)?;
            // The attachment ends the file.
            let rows_end = file.len() - ATTACHMENT.len() - FRAME;
            Ok(SavedSession { engine, file, rows_end })
        };
        Mutex::new(make().unwrap_or_else(|error| panic!("{error}")))
    })
}

/// Changes a few bytes in a saved sequence and its attachment, and corrects the checksums. The file
/// must be refused, or restored and continued.
///
/// # Panics
/// If blocks or states of the cache leak, or a restored sequence has fewer rows than tokens.
pub fn session(bytes: &[u8]) {
    let mut source = FuzzSource::new(bytes);
    let mut saved = saved(source.below(CACHES.len())).lock().unwrap_or_else(PoisonError::into_inner);
    let SavedSession { engine, file, rows_end } = &mut *saved;
    let (mut rows, mut attachment) = (file[..*rows_end].to_vec(), file[*rows_end..].to_vec());
    for _ in 0..source.below(6) {
        change(&mut source, &mut rows);
    }
    if source.once_in(2) {
        change(&mut source, &mut attachment);
    }
    for part in [&mut rows, &mut attachment] {
        // A wrong checksum refuses the file at once, so most inputs correct it.
        if !source.once_in(8) {
            fix_checksum(part);
        }
    }
    let file = if source.once_in(4) { rows } else { [rows, attachment].concat() };
    let Ok(folder) = tempfile::tempdir() else { return };
    let path = folder.path().join("changed.kv");
    if std::fs::write(&path, &file).is_err() {
        return;
    }
    // A refused file must not keep any block or state that reading it has taken.
    let free = |engine: &Engine| (engine.kv_cache().available(), engine.kv_cache().available_states());
    let before = free(engine);
    if let Ok((Session { mut sequence }, _)) = engine.restore_session(&path) {
        assert_eq!(sequence.len(), sequence.tokens().len());
        let mut items = [SeqInput::tokens(&mut sequence, &[1], LogitsRequest::Last)];
        let _ = engine.step(&mut items, &mut |_, _, _| {});
        engine.release(sequence);
    }
    assert_eq!(free(engine), before, "blocks or states of the cache are lost");
}

/// Changes the file at a random place, in most cases in its first 128 bytes, which hold counts and
/// sizes.
fn change(source: &mut FuzzSource<'_>, file: &mut Vec<u8>) {
    let length = file.len();
    let at = if source.once_in(4) { source.u64() as usize % length.max(1) } else { source.below(128) };
    match source.below(6) {
        0 => file.truncate(at),
        1 => file.extend(std::iter::repeat_n(source.byte(), source.below(200))),
        2 => put(file, at, &(source.number() as u32).to_le_bytes()),
        3 => put(file, at / 8 * 8, &source.number().to_le_bytes()),
        4 => put(file, at, &[source.byte()]),
        // Another number of tokens, and a size that agrees with it.
        _ => {
            let rows = source.below(200);
            let row = (length.saturating_sub(128)) / 5;
            put(file, 16, &(rows as u64).to_le_bytes());
            // Without a bound several such changes would multiply the size beyond the available
            // memory.
            file.resize((length.saturating_sub(5 * row) + rows * row).min(1 << 22), 0x11);
        }
    }
}

fn put(file: &mut [u8], at: usize, bytes: &[u8]) {
    for (place, byte) in file.iter_mut().skip(at).zip(bytes) {
        *place = *byte;
    }
}

/// Corrects the checksum (FNV-1a) in the last eight bytes.
fn fix_checksum(file: &mut [u8]) {
    let Some(end) = file.len().checked_sub(8) else { return };
    let step = |sum: u64, byte: &u8| (sum ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
    let sum = file[..end].iter().fold(0xcbf2_9ce4_8422_2325, step);
    file[end..].copy_from_slice(&sum.to_le_bytes());
}
