//! `latent pull`: downloads a model into the cache folder.

use crate::client::HubClient;
use crate::download::Download;
use crate::error::HubError;
use crate::listing::RepoFile;
use crate::local::{LocalModel, MAX_INDEX, hf_file, in_hf_cache};
use crate::paths::below;
use crate::reference::ModelRef;
use crate::select::{QuantPolicy, Selection, add_shards, select_by};
use crate::settings::HubSettings;
use crate::store::{PulledSet, RepoStore, free_bytes, now};
use latent_files::{InputError, input_file};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

/// Number of files that are downloaded concurrently.
const PARALLEL: usize = 2;

/// Interval of progress reports, and of the enforcement of deadlines.
const TICK: Duration = Duration::from_millis(100);

/// An event of [`pull`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PullEvent {
    /// The files to download. Sent once, before the first byte.
    Plan {
        /// Quant, `safetensors`, or file.
        name: String,
        /// Number of files.
        files: usize,
        /// Bytes of all files.
        bytes: u64,
        /// Bytes of them that are present already.
        here: u64,
        /// The target folder.
        folder: PathBuf,
    },
    /// A message for the user: a failed attempt, a wait.
    Note(String),
    /// Progress, about ten times per second.
    Progress {
        /// Bytes that are present.
        done: u64,
        /// Bytes of all files; 0 before they are known.
        total: u64,
    },
}

/// The result of [`pull`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PullResult {
    /// The model.
    pub model: LocalModel,
    /// Whether nothing was downloaded.
    pub up_to_date: bool,
}

/// State shared by the downloading and the reporting thread.
struct PullProgress {
    // Accessed with `Relaxed`: the counts are only displayed.
    done: AtomicU64,
    total: AtomicU64,
    events: Mutex<Sender<PullEvent>>,
}

impl PullProgress {
    fn tell(&self, event: PullEvent) {
        let events = self.events.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        // Fails only if the receiver was dropped.
        let _ = events.send(event);
    }

    fn note(&self, text: String) {
        self.tell(PullEvent::Note(text));
    }
}

/// Downloads the newest state of a model into the cache folder, unless it is present. `report` is
/// called with each event and returns whether to continue. If it returns false, downloaded bytes
/// are kept.
///
/// # Errors
/// Any [`HubError`]. Downloaded bytes are kept, except those with a wrong checksum.
pub fn pull(
    settings: &HubSettings,
    model: &ModelRef,
    report: &mut dyn FnMut(PullEvent) -> bool,
) -> Result<PullResult, HubError> {
    pull_with(settings, model, &QuantPolicy::default(), report)
}

/// Like [`pull`], with a policy for references without a quant. A [`PullEvent::Note`] explains why
/// another quant than the default is chosen.
///
/// # Errors
/// Like [`pull`]; [`HubError::Choose`] with all quants if none is small enough.
pub fn pull_with(
    settings: &HubSettings,
    model: &ModelRef,
    policy: &QuantPolicy,
    report: &mut dyn FnMut(PullEvent) -> bool,
) -> Result<PullResult, HubError> {
    if settings.offline {
        return Err(HubError::Offline { what: model.to_string() });
    }
    let client = HubClient::new(settings)?;
    let (sender, events) = channel();
    let shared =
        PullProgress { done: AtomicU64::new(0), total: AtomicU64::new(0), events: Mutex::new(sender) };
    let done = &shared.done;
    let total = &shared.total;
    // The work runs on its own thread, so that this one can report progress and end requests that
    // hang.
    thread::scope(|scope| {
        let (ended, end) = channel();
        let (client, shared) = (&client, &shared);
        let work = move || {
            let result = work(client, settings, (model, policy), shared);
            // Cannot fail: `watch` returns only after it has received the result.
            let _ = ended.send(result);
        };
        let spawned = thread::Builder::new().name("pull".into()).spawn_scoped(scope, work);
        spawned.map_err(HubError::io(Path::new("thread")))?;
        watch(client, &events, &end, (done, total), report)
    })
    .map_err(|error| stopped(&client, model, done, error))
}

/// Replaces an error after the caller stopped. Closed connections fail with other errors.
fn stopped(client: &HubClient, model: &ModelRef, done: &AtomicU64, error: HubError) -> HubError {
    if !client.stopped() {
        return error;
    }
    HubError::Stopped { what: model.to_string(), kept: done.load(Ordering::Relaxed) }
}

/// Reports events to the caller until the work ends.
fn watch(
    client: &HubClient,
    events: &Receiver<PullEvent>,
    end: &Receiver<Result<PullResult, HubError>>,
    (done, total): (&AtomicU64, &AtomicU64),
    report: &mut dyn FnMut(PullEvent) -> bool,
) -> Result<PullResult, HubError> {
    loop {
        let ended = end.recv_timeout(TICK);
        client.enforce_deadlines();
        let mut proceed = true;
        // After `end`, so that events which the work sent before its result are reported too.
        for event in events.try_iter() {
            proceed &= report(event);
        }
        let (done, total) = (done.load(Ordering::Relaxed), total.load(Ordering::Relaxed));
        proceed &= report(PullEvent::Progress { done, total });
        match ended {
            Ok(result) => return result,
            Err(RecvTimeoutError::Timeout) if proceed || client.stopped() => {}
            // The loop continues until the work has ended and saved its parts.
            Err(RecvTimeoutError::Timeout) => client.stop(),
            Err(RecvTimeoutError::Disconnected) => {
                let problem = "the download panicked: please report this".into();
                return Err(HubError::Cache { path: PathBuf::new(), problem });
            }
        }
    }
}

fn work(
    client: &HubClient,
    settings: &HubSettings,
    (model, policy): (&ModelRef, &QuantPolicy),
    shared: &PullProgress,
) -> Result<PullResult, HubError> {
    let note = |text: String| shared.note(text);
    if client.keeps_token() {
        note(format!("{} is not https: the token is not sent", client.endpoint));
    }
    // All files are downloaded from this commit. A branch could change between two requests.
    let commit = client.commit(&model.repo, model.revision(), &note)?;
    let files = client.files(&model.repo, &commit, &note)?;
    let mut selection = select_by(model, policy, &files, &note)?;
    let store = RepoStore::new(settings, &model.repo);
    let pull = PullJob { client, settings, model, commit: &commit, store: &store, shared };
    check_names(&store.commit(&commit), &selection)?;
    if let Some(name) = selection.index {
        let index = pull.index(&selection, name)?;
        add_shards(&mut selection, &model.repo, &index, &files)?;
        check_names(&store.commit(&commit), &selection)?;
    }
    pull.bring(&selection)
}

/// Rejects paths out of the folder, and two names that are one file on file systems that ignore
/// case.
fn check_names(folder: &Path, selection: &Selection) -> Result<(), HubError> {
    let mut seen = BTreeSet::new();
    for file in &selection.files {
        below(folder, &file.path)?;
        if !seen.insert(file.path.to_lowercase()) {
            let problem = "the name of another file differs only in case";
            return Err(HubError::UnsafePath { path: file.path.clone(), problem });
        }
    }
    Ok(())
}

struct PullJob<'a> {
    client: &'a HubClient,
    settings: &'a HubSettings,
    model: &'a ModelRef,
    commit: &'a str,
    store: &'a RepoStore,
    shared: &'a PullProgress,
}

impl PullJob<'_> {
    /// The bytes of a folder's index. It is downloaded first, because it names the shards.
    fn index(&self, selection: &Selection, name: &str) -> Result<Vec<u8>, HubError> {
        let index: Vec<RepoFile> = selection.files.iter().filter(|file| file.path == name).cloned().collect();
        if index.iter().any(|file| file.size > MAX_INDEX) {
            let problem = format!("its {name} has more than {MAX_INDEX} bytes");
            return Err(HubError::NoModel { repo: self.model.repo.clone(), problem });
        }
        let mut path = hf_file(self.settings, &self.model.repo, self.commit, name);
        if path.is_none() {
            // Not counted as progress, whose total is not known yet. `bring` counts the file as
            // present.
            self.download(&index, &AtomicU64::new(0))?;
            path = Some(self.store.commit(self.commit).join(name));
        }
        let path = path.unwrap_or_default();
        let unread = |error: InputError| HubError::Setting { name: name.into(), problem: error.to_string() };
        input_file::read(&path, MAX_INDEX).map_err(unread)
    }

    /// Downloads the missing files of a selection.
    fn bring(&self, selection: &Selection) -> Result<PullResult, HubError> {
        let folder = self.store.commit(self.commit);
        // Files that are present were verified when they got their names, so only sizes are
        // compared.
        let missing: Vec<RepoFile> =
            selection.files.iter().filter(|file| !self.store.has(self.commit, file)).cloned().collect();
        if !missing.is_empty()
            && let Some(model) = in_hf_cache(self.settings, &self.model.repo, self.commit, selection)
        {
            self.shared.note("using its files in the Hugging Face cache".into());
            return Ok(PullResult { model, up_to_date: true });
        }
        let bytes = sum(&selection.files);
        let here = bytes.saturating_sub(sum(&missing));
        self.shared.total.store(bytes, Ordering::Relaxed);
        self.shared.done.store(here, Ordering::Relaxed);
        if !missing.is_empty() {
            self.check_space(&missing)?;
            let (name, files) = (selection.name.clone(), missing.len());
            let here = here.saturating_add(self.begun(&missing));
            self.shared.tell(PullEvent::Plan { name, files, bytes, here, folder: folder.clone() });
            self.download(&missing, &self.shared.done)?;
        }
        // The record is written last, and also if nothing was missing: it may be damaged, or the
        // set may have been pulled under another revision.
        let set = PulledSet {
            name: selection.name.clone(),
            tag: selection.tag.clone(),
            revision: self.model.revision().into(),
            model: selection.model.clone(),
            files: selection.files.clone(),
            pulled: now(),
        };
        self.store.add(self.commit, set)?;
        let path = if selection.model.is_empty() { folder } else { below(&folder, &selection.model)? };
        let model = LocalModel { path, name: selection.name.clone(), commit: self.commit.into(), bytes };
        Ok(PullResult { model, up_to_date: missing.is_empty() })
    }

    /// Bytes in partial files of an earlier process.
    fn begun(&self, files: &[RepoFile]) -> u64 {
        let halt = AtomicBool::new(false);
        let one = self.one(&self.shared.done, &halt, &|_| {});
        let len = |file: &RepoFile| {
            std::fs::metadata(one.part_path(file)).map_or(0, |part| part.len()).min(file.size)
        };
        files.iter().fold(0, |sum, file| sum.saturating_add(len(file)))
    }

    fn check_space(&self, missing: &[RepoFile]) -> Result<(), HubError> {
        let needed = sum(missing).saturating_sub(self.begun(missing));
        // Before the first byte, not after an hour of download.
        match free_bytes(&self.settings.cache) {
            Some(free) if free < needed => {
                Err(HubError::Space { folder: self.settings.cache.clone(), needed, free })
            }
            _ => Ok(()),
        }
    }

    fn one<'a>(
        &'a self,
        done: &'a AtomicU64,
        halt: &'a AtomicBool,
        note: &'a (dyn Fn(String) + Sync),
    ) -> Download<'a> {
        let PullJob { client, store, commit, .. } = *self;
        Download { client, store, repo: &self.model.repo, commit, done, halt, note }
    }

    /// Downloads files, several concurrently. The first error ends the others too.
    fn download(&self, files: &[RepoFile], done: &AtomicU64) -> Result<(), HubError> {
        let folder = self.store.commit(self.commit);
        self.store.make_folder(&self.store.parts())?;
        let mut targets = Vec::new();
        for file in files {
            let target = below(&folder, &file.path)?;
            self.store.make_folder(target.parent().unwrap_or(&folder))?;
            targets.push(target);
        }
        let note = |text: String| self.shared.note(text);
        let halt = AtomicBool::new(false);
        let one = self.one(done, &halt, &note);
        // A shared counter instead of fixed shares: files differ in size by orders of magnitude.
        let next = AtomicUsize::new(0);
        let failed = Mutex::new(None);
        let worker = || {
            while !one.ended() {
                let at = next.fetch_add(1, Ordering::Relaxed);
                let Some((file, target)) = files.get(at).zip(targets.get(at)) else { break };
                // Only the first error is reported.
                if let Err(error) = one.fetch(file, target) {
                    failed.lock().unwrap_or_else(std::sync::PoisonError::into_inner).get_or_insert(error);
                    halt.store(true, Ordering::SeqCst);
                }
            }
        };
        thread::scope(|scope| {
            for _ in 1..PARALLEL.min(files.len()) {
                // If the system refuses a thread, this thread downloads all files.
                let _ = thread::Builder::new().name("pull".into()).spawn_scoped(scope, worker);
            }
            worker();
        });
        if let Some(error) = failed.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner) {
            return Err(error);
        }
        if self.client.stopped() {
            let kept = done.load(Ordering::Relaxed);
            return Err(HubError::Stopped { what: self.model.to_string(), kept });
        }
        Ok(())
    }
}

fn sum(files: &[RepoFile]) -> u64 {
    files.iter().fold(0, |sum, file| sum.saturating_add(file.size))
}
