//! Modified files of the on-disk prefix cache.

use crate::model;
use crate::source::FuzzSource;
use latent_backend_reference::{ReferenceBackend, ToyRecurrence};
use latent_engine::cache::{DiskCache, StateOptions, whole_prefix_blocks};
use latent_engine::scheduler::{Job, JobEvent, JobId, Scheduler, SchedulerOptions};
use latent_engine::{Engine, EngineOptions, Request};
use latent_text::Tokenizer;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// An engine, and a file of two blocks that it has written.
struct WrittenPrefix {
    /// `None` while an input runs, and after an input has panicked.
    engine: Option<Engine>,
    tokenizer: Arc<Tokenizer>,
    name: String,
    file: Vec<u8>,
    /// The answer to the prompt that begins with these blocks.
    answer: Vec<u32>,
}

/// Number of models: one has only cached rows, one has recurrent states, too.
const MODELS: usize = 2;
const RECURRENT: usize = 1;

/// Offsets in the file: the size of the header (u32), and the first block's entry. The layout is
/// described in the engine's `cache/prefix/disk/segment.rs`.
const HEADER_BYTES: usize = 28;
const START: usize = 40;

/// A prompt of two full blocks (64 tokens each) and some more tokens.
fn text() -> Vec<u32> {
    (0..140).map(|i| (i * i + 7) % 250).collect()
}

fn engine(model: usize) -> Result<Engine, Box<dyn std::error::Error>> {
    let states = StateOptions { sequences: 3, snapshots: 2, every: 64 };
    let options = EngineOptions { context: Some(192), states, ..model::options() };
    Ok(match model {
        RECURRENT => {
            let backend = ReferenceBackend::with_recurrences(vec![ToyRecurrence::new(0.5)]);
            Engine::load(&backend, &model::tiny(model), &options, &mut |_, _| {})?
        }
        _ => model::load(&model::tiny(model), &options)?,
    })
}

fn scheduler(engine: Engine, tokenizer: &Arc<Tokenizer>, folder: &Path) -> Scheduler {
    let disk = Some(DiskCache { path: folder.to_owned(), max_bytes: 64 << 20 });
    Scheduler::new(engine, Arc::clone(tokenizer), SchedulerOptions { disk, ..SchedulerOptions::default() })
}

/// Runs the prompt. Returns the answer and the number of rows that came from disk.
fn ask(scheduler: &mut Scheduler) -> (Vec<u32>, usize) {
    let request = Request { prompt: text(), max_tokens: Some(2), ..Request::default() };
    let (mut tokens, mut rows) = (Vec::new(), 0);
    let submitted = scheduler.submit(Job { request, ..Job::default() });
    submitted.unwrap_or_else(|refusal| panic!("{refusal}"));
    let mut steps = 0;
    let mut listener = |_: JobId, event: JobEvent| match event {
        JobEvent::Started { from_disk, .. } => rows = from_disk,
        JobEvent::Token(chosen) => tokens.push(chosen.token),
        _ => {}
    };
    while scheduler.step(&mut listener).unwrap_or_else(|error| panic!("a step fails: {error}")) {
        steps += 1;
        assert!(steps < 1000, "a prompt waits for its blocks for ever");
    }
    (tokens, rows)
}

fn written(model: usize) -> &'static Mutex<WrittenPrefix> {
    static ALL: [OnceLock<Mutex<WrittenPrefix>>; MODELS] = [const { OnceLock::new() }; MODELS];
    ALL[model].get_or_init(|| {
        let make = || -> Result<WrittenPrefix, Box<dyn std::error::Error>> {
            let folder = tempfile::tempdir()?;
            let tokenizer = Arc::new(Tokenizer::from_checkpoint(&model::tiny(model))?);
            let mut scheduler = scheduler(engine(model)?, &tokenizer, folder.path());
            let (answer, _) = ask(&mut scheduler);
            scheduler.flush_disk();
            let entry = std::fs::read_dir(folder.path())?.next().ok_or("no file was written")??;
            let (name, file) =
                (entry.file_name().to_string_lossy().into_owned(), std::fs::read(entry.path())?);
            let mut corrected = file.clone();
            fix_checksum(&mut corrected);
            // A different checksum algorithm in the engine would make all inputs fail the checksum,
            // and the target would test nothing.
            assert!(corrected == file, "checksums are made otherwise");
            Ok(WrittenPrefix { engine: Some(scheduler.into_engine()), tokenizer, name, file, answer })
        };
        Mutex::new(make().unwrap_or_else(|error| panic!("{error}")))
    })
}

/// Changes a few bytes in a file of the prefix cache; half of the inputs also correct the header's
/// checksum. The engine must either use its blocks, or remove the file and compute the prompt.
///
/// # Panics
/// If blocks or states of the cache leak, the answer does not arrive, or the answer differs
/// although the checksum was not corrected.
pub fn prefix_file(bytes: &[u8]) {
    let mut source = FuzzSource::new(bytes);
    let mut written = written(source.below(MODELS)).lock().unwrap_or_else(PoisonError::into_inner);
    let WrittenPrefix { engine, tokenizer, name, file, answer } = &mut *written;
    let mut changed = file.clone();
    let corrects_checksum = source.once_in(2);
    for _ in 0..source.below(5) {
        change(&mut source, &mut changed);
    }
    if corrects_checksum {
        fix_checksum(&mut changed);
    }
    let Ok(folder) = tempfile::tempdir() else { return };
    if std::fs::write(folder.path().join(name.as_str()), &changed).is_err() {
        return;
    }
    let taken = engine.take().unwrap_or_else(|| panic!("an input before this one has lost the engine"));
    // Blocks and states that are free before must be free again after all prefixes are cleared.
    let free = |engine: &Engine| (engine.kv_cache().available(), engine.kv_cache().available_states());
    let before = free(&taken);
    let mut scheduler = scheduler(taken, tokenizer, folder.path());
    let (tokens, from_disk) = ask(&mut scheduler);
    scheduler.clear_prefixes();
    let after = free(scheduler.engine());
    *engine = Some(scheduler.into_engine());
    assert_eq!(after, before, "blocks or states of the cache are lost");
    if !corrects_checksum {
        assert_eq!(tokens, *answer, "{from_disk} rows of a changed file are used");
    }
    let id = changed.get(8..16).and_then(|id| id.try_into().ok()).map(u64::from_le_bytes);
    let whole = id.and_then(|id| whole_prefix_blocks(&changed, id));
    assert!(from_disk == 0 || whole.is_some(), "{from_disk} rows of a file whose header is damaged are used");
    assert!(changed != *file || from_disk > 0, "a whole file is not used");
}

/// Changes the file at a random place, in most cases in the header.
fn change(source: &mut FuzzSource<'_>, file: &mut Vec<u8>) {
    let length = file.len();
    // Name, 64 tokens, then MTP rows, states, size and checksum.
    let entry = 16 + 4 * 64 + 24;
    let at = match source.below(4) {
        0 => source.u64() as usize % length.max(1),
        1 => source.below(START),
        // The counts, sizes and states at the end of an entry.
        which => START + (which - 2) * entry + 16 + 4 * 64 + source.below(56),
    };
    match source.below(6) {
        0 => file.truncate(at),
        1 => file.extend(std::iter::repeat_n(source.byte(), source.below(200))),
        // Aligned, so that a whole field changes.
        2 => put(file, at / 4 * 4, &(source.number() as u32).to_le_bytes()),
        3 => put(file, at / 8 * 8, &source.number().to_le_bytes()),
        4 => put(file, at, &[source.byte()]),
        // Another length, and a header that agrees with it.
        _ => {
            file.resize(source.u64() as usize % (1 << 20), 0x11);
            let length = file.len() as u64;
            put(file, HEADER_BYTES + 4, &length.to_le_bytes());
        }
    }
}

fn put(file: &mut [u8], at: usize, bytes: &[u8]) {
    for (place, byte) in file.iter_mut().skip(at).zip(bytes) {
        *place = *byte;
    }
}

/// Corrects the checksum at the end of the header, whose size the file states.
fn fix_checksum(file: &mut [u8]) {
    let header = file.get(HEADER_BYTES..HEADER_BYTES + 4).and_then(|bytes| bytes.try_into().ok());
    let end = header.map_or(0, u32::from_le_bytes) as usize;
    if end < 8 || end > file.len() {
        return;
    }
    let sum = checksum(&file[..end - 8]);
    put(file, end - 8, &sum.to_le_bytes());
}

/// The checksum of the engine's `cache/prefix/disk/segment.rs`: four 64-bit sums, each similar to
/// FNV-1a over every fourth word. It is private to the engine, so this is a copy.
fn checksum(bytes: &[u8]) -> u64 {
    let mix = |sum: u64, word: u64| (sum ^ word).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(23);
    let word = |bytes: &[u8]| bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
    let mut sums =
        [0xcbf2_9ce4_8422_2325u64, 0x9e37_79b9_7f4a_7c15, 0xc2b2_ae3d_27d4_eb4f, 0x1656_67b1_9e37_79f9];
    let words = bytes.chunks_exact(8);
    let rest = word(words.remainder());
    words.enumerate().for_each(|(index, bytes)| sums[index % 4] = mix(sums[index % 4], word(bytes)));
    sums.iter().fold(mix(bytes.len() as u64, rest), |sum, other| mix(sum, *other))
}
