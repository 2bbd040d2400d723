//! The prefix cache in memory and on disk: cached rows give the same bits as computed ones, and
//! rows of other texts, tenants or damaged files are never used.

use crate::support::demo;
use crate::support::jobs;
use crate::support::jobs::{HeardEvents, alone, engine, job, nothing_is_left, prompt, request, scheduler};
use latent_engine::cache::{BlockHash, CacheSalt, DiskCache, PrefixChange};
use latent_engine::scheduler::{Job, JobId, Scheduler, SchedulerOptions};
use latent_engine::{Draft, Engine, EngineOptions};
use latent_text::Tokenizer;
use latent_types::CacheType;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Tokens with the bits of their log-probabilities and of those of the likeliest alternatives.
fn bits(heard: &HeardEvents, id: JobId) -> Vec<(u32, u32, Vec<u32>)> {
    let of = |chosen: latent_engine::ChosenToken| {
        let (own, top) = chosen.logprob.unwrap();
        (chosen.token, own.to_bits(), top.iter().map(|other| other.logprob.to_bits()).collect())
    };
    heard.chosen(id).into_iter().map(of).collect()
}

fn with_logprobs(mut job: Job) -> Job {
    job.request.logprobs = Some(5);
    job
}

fn ask(scheduler: &mut Scheduler, heard: &mut HeardEvents, prompt: Vec<u32>, tokens: usize) -> JobId {
    let job = with_logprobs(job(&Arc::clone(scheduler.tokenizer()), prompt, tokens));
    let id = scheduler.submit(job).unwrap();
    heard.run(scheduler);
    id
}

#[test]
fn a_cached_prefix_gives_the_same_bits() {
    let mut scheduler = scheduler(1024, 4096, SchedulerOptions::default());
    let mut heard = HeardEvents::default();
    let text = prompt(2, 400);
    let first = ask(&mut scheduler, &mut heard, text.clone(), 20);
    // The last token of a prompt always runs, since its logits are needed. Of the 399 others, the
    // last 15 are in a partial block.
    let again = ask(&mut scheduler, &mut heard, text.clone(), 20);
    assert_eq!((heard.cached(first), heard.cached(again)), (0, 399));
    assert_eq!(bits(&heard, first), bits(&heard, again));
    // A prompt that continues the answer: the last token of an answer was sampled but never run, so
    // that 400 + 20 - 1 rows are cached.
    let answer = heard.tokens(first);
    let longer: Vec<u32> = text.iter().chain(&answer).copied().chain(prompt(5, 30)).collect();
    let next = ask(&mut scheduler, &mut heard, longer.clone(), 10);
    assert_eq!(heard.cached(next), 419);
    // A prompt that departs from the text within a block.
    let mut other = text[..350].to_vec();
    other.extend(prompt(8, 60));
    let left = ask(&mut scheduler, &mut heard, other.clone(), 10);
    assert_eq!(
        heard.cached(left),
        350 + other[350..].iter().zip(&text[350..]).take_while(|(a, b)| a == b).count()
    );
    let stats = scheduler.stats();
    assert_eq!((stats.prefixes.lookups, stats.prefixes.hits), (4, 3));
    assert_eq!(stats.prefixes.tokens_saved, 399 + 419 + heard.cached(left) as u64);
    assert!(stats.blocks_cached > 0 && stats.blocks_used == 0, "{stats:?}");
    scheduler.clear_prefixes();
    let (fresh, fresh_left) =
        (ask(&mut scheduler, &mut heard, longer, 10), ask(&mut scheduler, &mut heard, other, 10));
    assert_eq!(heard.cached(fresh), 0);
    assert_eq!((bits(&heard, fresh), bits(&heard, fresh_left)), (bits(&heard, next), bits(&heard, left)));
    nothing_is_left(&mut scheduler);
}

#[test]
fn tenants_do_not_share_prefixes() {
    let mut scheduler = scheduler(512, 2048, SchedulerOptions::default());
    let tokenizer = Arc::clone(scheduler.tokenizer());
    let mut heard = HeardEvents::default();
    let mut ask = |salt, expected| {
        let id = scheduler.submit(Job { salt, ..job(&tokenizer, prompt(1, 200), 3) }).unwrap();
        heard.run(&mut scheduler);
        assert_eq!(heard.cached(id), expected);
    };
    let (alice, bob) = (CacheSalt::of(b"alice"), CacheSalt::of(b"bob"));
    ask(alice, 0);
    ask(bob, 0);
    ask(CacheSalt::SHARED, 0);
    ask(alice, 199);
    ask(bob, 199);
    ask(CacheSalt::SHARED, 199);
    nothing_is_left(&mut scheduler);
}

#[test]
fn jobs_submitted_together_run_their_common_prefix_once() {
    let mut scheduler = scheduler(1024, 8192, SchedulerOptions::default());
    let tokenizer = Arc::clone(scheduler.tokenizer());
    let mut heard = HeardEvents::default();
    let with_end = |end: u32| prompt(1, 640).into_iter().chain(prompt(20 + end, 10)).collect::<Vec<_>>();
    let ids: Vec<_> =
        (0..8).map(|end| scheduler.submit(job(&tokenizer, with_end(end), 12)).unwrap()).collect();
    heard.run(&mut scheduler);
    let ran = scheduler.stats().tokens_in;
    assert!(ran <= 650 + 7 * 75, "{ran} tokens ran");
    nothing_is_left(&mut scheduler);
    let mut engine = scheduler.into_engine();
    for (end, id) in ids.into_iter().enumerate() {
        let answer = alone(&mut engine, &tokenizer, &request(&tokenizer, with_end(end as u32), 12));
        heard.is_answer(id, &answer);
    }
}

#[test]
fn the_least_recently_used_blocks_are_evicted() {
    // 17 blocks: room for three texts of five blocks, but not for a fourth.
    let mut scheduler = scheduler(512, 17 * 64, SchedulerOptions::default());
    let mut heard = HeardEvents::default();
    let mut cached = |scheduler: &mut Scheduler, kind| {
        let id = ask(scheduler, &mut heard, prompt(kind, 310), 5);
        heard.cached(id)
    };
    assert_eq!([1, 2, 3].map(|kind| cached(&mut scheduler, kind)), [0, 0, 0]);
    assert_eq!(cached(&mut scheduler, 1), 309);
    // The second text is the least recently used one, since the first was asked for again.
    assert_eq!([4, 1, 3].map(|kind| cached(&mut scheduler, kind)), [0, 309, 309]);
    assert!(cached(&mut scheduler, 2) < 309);
    assert!(scheduler.stats().prefixes.evicted >= 5);
    nothing_is_left(&mut scheduler);
}

/// Applies changes to a list of the cached blocks, as a router of requests would. A block is kept
/// only after its parent, and dropped only after its children.
fn account(blocks: &mut Vec<(BlockHash, Option<BlockHash>)>, changes: Vec<PrefixChange>) {
    for change in changes {
        match change {
            PrefixChange::Kept { name, parent, tokens, .. } => {
                assert_eq!(tokens.len(), 64);
                assert!(blocks.iter().all(|(there, _)| *there != name), "{name:?} comes twice");
                let before = |parent: BlockHash| blocks.iter().any(|(there, _)| *there == parent);
                assert!(parent.is_none_or(before), "{name:?} comes before {parent:?}");
                blocks.push((name, parent));
            }
            PrefixChange::Dropped { name, .. } => {
                assert!(
                    blocks.iter().all(|(_, parent)| *parent != Some(name)),
                    "{name:?} goes with blocks behind it"
                );
                let at = blocks.iter().position(|(there, _)| *there == name).expect("a block that came");
                blocks.remove(at);
            }
        }
    }
}

#[test]
fn prefix_changes_add_up_to_the_cached_blocks() {
    // 17 blocks: room for three texts of five blocks, so that blocks are evicted too.
    let mut scheduler = scheduler(512, 17 * 64, SchedulerOptions::default());
    let mut heard = HeardEvents::default();
    ask(&mut scheduler, &mut heard, prompt(1, 310), 5);
    assert!(scheduler.take_prefix_changes().is_empty(), "no watcher is registered");
    scheduler.watch_prefixes();
    let mut blocks = Vec::new();
    account(&mut blocks, scheduler.take_prefix_changes());
    assert_eq!(blocks.len(), 4, "what was there: full blocks of 314 tokens");
    for kind in [1, 2, 3, 4, 1, 5] {
        ask(&mut scheduler, &mut heard, prompt(kind, 310), 5);
        account(&mut blocks, scheduler.take_prefix_changes());
        let text = &prompt(kind, 310);
        let cached = ask(&mut scheduler, &mut heard, text.clone(), 1);
        assert_eq!(heard.cached(cached), 309);
        account(&mut blocks, scheduler.take_prefix_changes());
    }
    assert!(scheduler.stats().prefixes.evicted > 0, "something had to go");
    // Partial blocks have no names, and are not reported.
    assert!(blocks.len() <= scheduler.stats().prefixes.blocks);
    scheduler.clear_prefixes();
    account(&mut blocks, scheduler.take_prefix_changes());
    assert!(blocks.is_empty(), "{blocks:?}");
    nothing_is_left(&mut scheduler);
}

fn on_disk(path: &Path, max_bytes: u64) -> SchedulerOptions {
    let disk = DiskCache { path: path.to_owned(), max_bytes };
    disk.check().unwrap();
    SchedulerOptions { disk: Some(disk), ..SchedulerOptions::default() }
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

#[test]
fn prefixes_on_disk_survive_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("made/here");
    let text = prompt(2, 400);
    let mut heard = HeardEvents::default();
    let mut before = scheduler(1024, 4096, on_disk(&path, 1 << 30));
    let first = ask(&mut before, &mut heard, text.clone(), 20);
    before.flush_disk();
    let stats = before.stats().disk;
    assert_eq!((stats.blocks_written, stats.files, stats.errors), (6, 1, 0));
    // Blocks that are on disk already are not written again.
    ask(&mut before, &mut heard, text.clone(), 20);
    before.flush_disk();
    assert_eq!(before.stats().disk.blocks_written, 6);
    drop(before);

    let mut heard_after = HeardEvents::default();
    let mut after = scheduler(1024, 4096, on_disk(&path, 1 << 30));
    let again = ask(&mut after, &mut heard_after, text.clone(), 20);
    assert_eq!(heard_after.cached(again), 6 * 64);
    assert_eq!(bits(&heard_after, again), bits(&heard, first));
    let stats = after.stats();
    assert_eq!((stats.disk.blocks_read, stats.disk.tokens_saved, stats.disk.errors), (6, 384, 0));
    // Only the new blocks of a longer text are written, to a file of their own.
    let longer: Vec<u32> = text.iter().copied().chain(prompt(9, 300)).collect();
    ask(&mut after, &mut heard_after, longer, 5);
    after.flush_disk();
    let stats = after.stats().disk;
    assert_eq!((stats.blocks_written, stats.files), (5, 2));
    nothing_is_left(&mut after);
    // The blocks in memory were cleared, those on disk were not.
    let third = ask(&mut after, &mut heard_after, text, 20);
    assert_eq!(heard_after.cached(third), 6 * 64);
    drop(after);
    // Another tenant does not find them.
    let mut other = scheduler(1024, 4096, on_disk(&path, 1 << 30));
    let tokenizer = Arc::clone(other.tokenizer());
    let id = other.submit(Job { salt: CacheSalt::of(b"x"), ..job(&tokenizer, prompt(2, 400), 2) }).unwrap();
    let mut of_other = HeardEvents::default();
    of_other.run(&mut other);
    assert_eq!(of_other.cached(id), 0);
}

#[test]
fn two_schedulers_share_a_folder() {
    let folder = tempfile::tempdir().unwrap();
    let (mut one, mut two) = (
        scheduler(512, 2048, on_disk(folder.path(), 1 << 30)),
        scheduler(512, 2048, on_disk(folder.path(), 1 << 30)),
    );
    let (mut of_one, mut of_two) = (HeardEvents::default(), HeardEvents::default());
    for kind in 0..6 {
        let a = ask(&mut one, &mut of_one, prompt(kind, 260), 5);
        one.flush_disk();
        let b = ask(&mut two, &mut of_two, prompt(kind, 260), 5);
        assert_eq!((of_one.cached(a), of_two.cached(b)), (0, 256), "{kind}");
        assert_eq!(bits(&of_one, a), bits(&of_two, b));
        // Both write a common prefix and an ending of their own, without waiting for each other.
        let text = |end: u32| prompt(40 + kind, 130).into_iter().chain(prompt(end, 70)).collect::<Vec<_>>();
        ask(&mut one, &mut of_one, text(1), 5);
        ask(&mut two, &mut of_two, text(2), 5);
    }
    one.flush_disk();
    two.flush_disk();
    assert_eq!((one.stats().disk.errors, two.stats().disk.errors), (0, 0));
    // The files are deleted while the schedulers run, as another process may do.
    files(folder.path()).iter().for_each(|file| std::fs::remove_file(file).unwrap());
    two.clear_prefixes();
    let id = ask(&mut two, &mut of_two, prompt(0, 260), 5);
    assert_eq!((of_two.cached(id), of_two.tokens(id).len()), (0, 5));
    nothing_is_left(&mut one);
    nothing_is_left(&mut two);
}

#[test]
fn a_damaged_file_is_never_used_and_fails_no_job() {
    let folder = tempfile::tempdir().unwrap();
    let (text, mut heard) = (prompt(1, 200), HeardEvents::default());
    let mut writer = scheduler(256, 1024, on_disk(folder.path(), 1 << 30));
    let expected = ask(&mut writer, &mut heard, text.clone(), 4);
    writer.flush_disk();
    drop(writer);
    let file = files(folder.path()).remove(0);
    let whole = std::fs::read(&file).unwrap();
    let header = u32::from_le_bytes(whole[28..32].try_into().unwrap()) as usize;
    let (mut engine, tokenizer) = engine(256, 1024);
    let read = |engine: Engine, tokenizer: &Arc<Tokenizer>, bytes: &[u8], cached: usize| {
        std::fs::write(&file, bytes).unwrap();
        let mut reader = Scheduler::new(engine, Arc::clone(tokenizer), on_disk(folder.path(), 1 << 30));
        let id = reader.submit(with_logprobs(job(tokenizer, text.clone(), 4))).unwrap();
        let mut of_reader = HeardEvents::default();
        of_reader.run(&mut reader);
        assert_eq!(of_reader.cached(id), cached);
        assert_eq!(bits(&of_reader, id), bits(&heard, expected));
        reader.flush_disk();
        assert_eq!(reader.stats().disk.errors > 0, cached < 192);
        nothing_is_left(&mut reader);
        reader.into_engine()
    };
    engine = read(engine, &tokenizer, &whole, 192);
    // A power cut leaves such files when the file system reorders the data and the rename.
    for len in [0, 1, 39, 40, header - 1, header, header + 1, whole.len() - 1] {
        engine = read(engine, &tokenizer, &whole[..len], 0);
    }
    let mut longer = whole.clone();
    longer.push(0);
    engine = read(engine, &tokenizer, &longer, 0);
    let block = (whole.len() - header) / 3;
    for (at, cached) in [(8, 0), (60, 0), (header + 5, 0), (header + block + 5, 64), (whole.len() - 1, 128)] {
        let mut wrong = whole.clone();
        wrong[at] ^= 0x40;
        engine = read(engine, &tokenizer, &wrong, cached);
    }
    // A damaged file is replaced by a whole one: otherwise its blocks could not be cached any more.
    assert_eq!(std::fs::read(&file).unwrap(), whole);
}

#[test]
fn the_oldest_files_are_removed_when_the_budget_is_full() {
    let folder = tempfile::tempdir().unwrap();
    let mut scheduler = scheduler(512, 8192, on_disk(folder.path(), 1 << 30));
    let mut heard = HeardEvents::default();
    ask(&mut scheduler, &mut heard, prompt(0, 260), 2);
    scheduler.flush_disk();
    let one = scheduler.stats().disk.bytes;
    let tokenizer = Arc::clone(scheduler.tokenizer());
    let engine = scheduler.into_engine();
    let mut scheduler = Scheduler::new(engine, tokenizer, on_disk(folder.path(), 3 * one + one / 2));
    let mut heard = HeardEvents::default();
    for kind in 1..8 {
        ask(&mut scheduler, &mut heard, prompt(kind, 260), 2);
        scheduler.flush_disk();
        let there: u64 = files(folder.path()).iter().map(|file| file.metadata().unwrap().len()).sum();
        assert!(there <= 3 * one + one / 2 && there == scheduler.stats().disk.bytes);
    }
    let stats = scheduler.stats().disk;
    assert_eq!((stats.files, stats.removed, stats.errors), (3, 5, 0));
    // A budget too small for a single file: its four blocks are dropped.
    let tokenizer = Arc::clone(scheduler.tokenizer());
    let engine = scheduler.into_engine();
    let small = tempfile::tempdir().unwrap();
    let mut scheduler = Scheduler::new(engine, tokenizer, on_disk(small.path(), one / 2));
    ask(&mut scheduler, &mut HeardEvents::default(), prompt(0, 260), 2);
    scheduler.flush_disk();
    let stats = scheduler.stats().disk;
    assert_eq!((stats.files, stats.blocks_dropped, stats.errors), (0, 4, 0));
}

#[test]
fn an_unusable_folder_fails_no_job() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, b"x").unwrap();
    let disk = DiskCache { path: file, max_bytes: 1 << 20 };
    assert!(disk.check().unwrap_err().to_string().contains("file"));
    let options = SchedulerOptions { disk: Some(disk), ..SchedulerOptions::default() };
    let mut without = scheduler(512, 1024, options);
    ask(&mut without, &mut HeardEvents::default(), prompt(0, 200), 2);
    // A folder that is deleted while the scheduler runs.
    let deleted = folder.path().join("deleted");
    let mut vanished = scheduler(512, 1024, on_disk(&deleted, 1 << 30));
    std::fs::remove_dir_all(&deleted).unwrap();
    let mut heard = HeardEvents::default();
    let id = ask(&mut vanished, &mut heard, prompt(1, 200), 2);
    vanished.flush_disk();
    assert!(heard.tokens(id).len() == 2 && vanished.stats().disk.errors > 0);
    // Rows of another cache type have other bytes: their files are skipped without an error.
    let path = folder.path().join("types");
    let mut first = scheduler(512, 1024, on_disk(&path, 1 << 30));
    ask(&mut first, &mut HeardEvents::default(), prompt(1, 200), 2);
    first.flush_disk();
    drop(first);
    let options = EngineOptions { cache: Some(CacheType::F16), ..jobs::options(512, 1024) };
    let demo::DemoEngine { engine, tokenizer, .. } = demo::demo(&options);
    let mut other = Scheduler::new(engine, tokenizer, on_disk(&path, 1 << 30));
    let mut of_other = HeardEvents::default();
    let id = ask(&mut other, &mut of_other, prompt(1, 200), 2);
    assert_eq!((of_other.cached(id), other.stats().disk.errors), (0, 0));
}

#[test]
fn a_saved_prefix_gives_the_same_bits_in_another_engine() {
    let folder = tempfile::tempdir().unwrap();
    let path_of = |draft| folder.path().join(if draft == Draft::Mtp { "drafted" } else { "plain" });
    for draft in [Draft::None, Draft::Mtp] {
        let path = path_of(draft);
        let make = || {
            let demo = demo::demo(&EngineOptions { draft, ..jobs::options(512, 2048) });
            Scheduler::new(demo.engine, demo.tokenizer, SchedulerOptions::default())
        };
        let salt = CacheSalt::of(b"alice");
        let ask = |scheduler: &mut Scheduler, heard: &mut HeardEvents, text: &[u32]| {
            let job = with_logprobs(job(&Arc::clone(scheduler.tokenizer()), text.to_vec(), 20));
            let id = scheduler.submit(Job { salt, ..job }).unwrap();
            heard.run(scheduler);
            id
        };
        let (mut first, mut heard) = (make(), HeardEvents::default());
        assert_eq!(first.save_prefix(salt, &prompt(2, 100), &path).unwrap(), 0);
        assert!(!path.exists());
        let text = prompt(2, 200);
        let id = ask(&mut first, &mut heard, &text);
        let whole = [text.clone(), heard.tokens(id)].concat();
        let saved = first.save_prefix(salt, &whole, &path).unwrap();
        // The MTP row of a token needs the token after it, so that the last rows of a text may be
        // missing.
        let drafts = usize::from(draft == Draft::Mtp);
        assert!(saved <= 219 && saved + 3 * drafts >= 219, "{saved}");
        let again = ask(&mut first, &mut heard, &text);
        let (mut other, mut there) = (make(), HeardEvents::default());
        for foreign in [CacheSalt::SHARED, CacheSalt::of(b"bob")] {
            let refused = other.restore_prefix(foreign, &path).unwrap_err().to_string();
            assert!(refused.contains("another key"), "{refused}");
        }
        nothing_is_left(&mut other);
        assert_eq!(other.restore_prefix(salt, &path).unwrap(), whole[..saved]);
        let elsewhere = ask(&mut other, &mut there, &text);
        assert_eq!((there.cached(elsewhere), heard.cached(again)), (199, 199));
        assert_eq!(bits(&there, elsewhere), bits(&heard, again));
        assert!(drafts == 0 || there.finished(elsewhere).2.drafts.accepted > 0);
        assert_eq!(other.forget_prefix(CacheSalt::SHARED, &whole), 0);
        assert!(other.forget_prefix(salt, &whole) > 0);
        nothing_is_left(&mut other);
        nothing_is_left(&mut first);
    }
    // A file with rows of the MTP layer is refused by an engine without that layer.
    let mut plain = scheduler(512, 2048, SchedulerOptions::default());
    let refused =
        plain.restore_prefix(CacheSalt::of(b"alice"), &path_of(Draft::Mtp)).unwrap_err().to_string();
    assert!(refused.contains("number of cache streams"), "{refused}");
}
