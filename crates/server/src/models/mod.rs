//! Registry of the server's models. Models are loaded on demand, and unloaded when idle or when
//! another model needs their memory.

mod download_list;
mod downloads;
mod entry;
mod events;
mod lease;
mod load;
mod table;

pub(crate) use entry::LoadCounts;
pub(crate) use events::{ModelChange, ModelEvent};
pub(crate) use lease::Lease;

use crate::catalog::ModelCatalog;
use crate::config::ServerConfig;
use crate::error::{ApiError, ErrorKind};
use crate::ids;
use crate::model::{DrawingSource, LoadError, Loader, ModelSettings, ModelSource, ServedModel};
use crate::worker::{ModelState, StepHook, WorkerHandle};
use download_list::DownloadList;
use entry::{ModelEntry, ModelPhase};
use latent_engine::scheduler::SchedulerStats;
use lease::LeaseWaiter;
use load::ModelLoader;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};
use table::ModelTable;
use tokio::sync::{OwnedMutexGuard, broadcast};

/// Time after a failed load in which requests get its error without a new attempt. Otherwise each
/// request would read a large file only to fail again.
const RETRY: Duration = Duration::from_secs(5);

/// The models of a server.
pub(crate) struct Models {
    table: Arc<ModelTable>,
    loading: Arc<ModelLoader>,
    /// Parallel to the entries of the table. A removed model keeps its index.
    known: RwLock<Arc<Vec<Arc<KnownModel>>>>,
    catalog: Option<Arc<dyn ModelCatalog>>,
    downloads: DownloadList,
    /// Held while the list changes.
    changing: Arc<tokio::sync::Mutex<()>>,
    /// Whether the server has only ever had one model.
    single: AtomicBool,
    /// The single model is being loaded for the first time. Requests are refused until it is
    /// loaded.
    starting: AtomicBool,
    /// How long a request waits for its model (`load_seconds`).
    patience: Duration,
    /// Maximum number of requests that wait for one model.
    max_waiting: usize,
    /// Whether requests load their models.
    autoload: bool,
    /// When the server started.
    pub(crate) created: u64,
}

/// The metadata of a model, loaded or not.
struct KnownModel {
    name: String,
    aliases: Vec<String>,
    tags: Vec<String>,
    path: String,
    bytes: u64,
    definition: String,
    load_on_startup: bool,
    removable: bool,
    /// Whether lists omit it.
    hidden: AtomicBool,
    drawing: Option<DrawingSource>,
    /// The drawing, cached after its first request.
    drawn: Mutex<Option<Arc<str>>>,
}

/// A snapshot of a model's metadata and state.
pub(crate) struct ModelStatus {
    pub(crate) name: String,
    pub(crate) aliases: Vec<String>,
    pub(crate) tags: Vec<String>,
    pub(crate) path: String,
    pub(crate) bytes: u64,
    /// Whether it was downloaded and can be deleted.
    pub(crate) removable: bool,
    /// unloaded, loading, loaded, unloading or failed.
    pub(crate) state: &'static str,
    /// The error of a failed load.
    pub(crate) problem: Option<String>,
    pub(crate) served: Option<Arc<ServedModel>>,
    pub(crate) worker_handle: Option<Arc<WorkerHandle>>,
    /// Time until it is unloaded if it stays idle; `None`: when another model needs its memory.
    pub(crate) expires_in: Option<Duration>,
    pub(crate) counts: LoadCounts,
    /// Statistics over all of its schedulers.
    pub(crate) stats: SchedulerStats,
    /// Number of reloads after faults.
    pub(crate) reloads: u64,
}

/// The exclusive right to change the list of models.
pub(crate) struct ListTurn {
    _guard: OwnedMutexGuard<()>,
}

impl Models {
    pub(crate) fn new(
        sources: Vec<ModelSource>,
        config: &ServerConfig,
        catalog: Option<Arc<dyn ModelCatalog>>,
        before_step: Option<StepHook>,
    ) -> Models {
        let table = Arc::new(ModelTable::new(config.unload_idle));
        let (max, own) = (config.models_max, Arc::clone(&table));
        let models = Models {
            loading: Arc::new(ModelLoader::new(own, max, &config.scheduler, before_step)),
            table,
            known: RwLock::default(),
            catalog,
            downloads: DownloadList::default(),
            changing: Arc::default(),
            single: AtomicBool::new(sources.len() == 1 && !config.router),
            starting: AtomicBool::new(false),
            patience: Duration::from_secs(config.limits.load_seconds),
            max_waiting: config.scheduler.max_waiting,
            autoload: config.autoload,
            created: ids::now(),
        };
        models.set_sources(sources);
        models
    }

    /// A registry of one model that is already loaded.
    pub(crate) fn of(name: &str, worker_handle: Arc<WorkerHandle>, config: &ServerConfig) -> Models {
        let loader: Loader = Box::new(|_| Err("it cannot be loaded again".into()));
        let source = ModelSource {
            name: name.to_owned(),
            aliases: Vec::new(),
            tags: Vec::new(),
            path: String::new(),
            bytes: 0,
            loader,
            drawing: None,
            definition: String::new(),
            settings: ModelSettings::default(),
        };
        let models = Models::new(vec![source], config, None, None);
        models.table.change(0, |entry| entry.phase = ModelPhase::Loaded(worker_handle));
        models
    }

    /// Loads a single model and sends the result to `first`; several models are loaded on demand.
    /// Then unloads idle models forever. Must run on the HTTP runtime.
    pub(crate) async fn run(self: Arc<Self>, first: Sender<Result<(), LoadError>>) {
        if self.is_single() {
            self.table.change(0, |entry| entry.phase = ModelPhase::Loading(None));
            self.starting.store(true, Ordering::SeqCst);
            let models = Arc::clone(&self);
            tokio::spawn(async move {
                let result = Arc::clone(&models.loading).run(0, true).await;
                // Cleared before the result is sent: a caller that gets it may send a request at
                // once, which `open` would refuse.
                models.starting.store(false, Ordering::SeqCst);
                // The caller may not wait for the result.
                let _ = first.send(result);
            });
        } else {
            let _ = first.send(Ok(()));
            for (index, known) in self.known().iter().enumerate().filter(|(_, known)| known.load_on_startup) {
                if let Err(error) = self.load(index) {
                    tracing::error!("{} is not loaded: {error}", known.name);
                }
            }
        }
        self.unload_idle().await;
    }

    async fn unload_idle(&self) {
        // Changes wake the loop, since each release of a lease sets a new expiry.
        let mut changes = self.table.changes();
        loop {
            let next = self.table.unload_expired();
            let sleep = async {
                match next {
                    Some(at) => tokio::time::sleep_until(at.into()).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                _ = changes.changed() => {}
                () = sleep => {}
            }
        }
    }

    /// Whether the server has only ever had one model.
    pub(crate) fn is_single(&self) -> bool {
        self.single.load(Ordering::SeqCst)
    }

    fn known(&self) -> Arc<Vec<Arc<KnownModel>>> {
        Arc::clone(&self.known.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// The index of the model that a request names. Without a name, it is the first visible one.
    pub(crate) fn find(&self, name: Option<&str>) -> Result<usize, ApiError> {
        // Tools send fixed names such as `gpt-4o-mini`, so a single model answers under any name,
        // as in llama-server.
        if self.is_single() {
            return Ok(0);
        }
        let (known, entries) = (self.known(), self.table.lock());
        // A changed definition appends a second entry with the same name, so removed ones are
        // skipped.
        let position = |is: &dyn Fn(&KnownModel) -> bool| {
            known.iter().zip(entries.iter()).position(|(known, entry)| !entry.removed && is(known))
        };
        let at = |name: &str| position(&|known| known.is_called(name));
        let Some(name) = name.filter(|name| !name.is_empty()) else {
            let first = position(&|known| !known.hidden.load(Ordering::Relaxed));
            return first.ok_or_else(no_models);
        };
        // Ollama's clients append `:latest` to names without a tag.
        let found = at(name).or_else(|| at(name.strip_suffix(":latest")?));
        // `unknown` locks the entries again.
        drop(entries);
        found.ok_or_else(|| self.unknown(name))
    }

    /// The index of the model with this name. Aliases are not considered.
    fn position(&self, name: &str) -> Option<usize> {
        let (known, entries) = (self.known(), self.table.lock());
        known.iter().zip(entries.iter()).position(|(known, entry)| !entry.removed && known.name == name)
    }

    /// The error for an unknown name.
    pub(crate) fn unknown(&self, name: &str) -> ApiError {
        let names: Vec<String> = self.list().into_iter().map(|model| model.name).collect();
        let has = if names.is_empty() { "no models".to_owned() } else { names.join(", ") };
        let problem = format!("unknown model {name:?}; this server has {has}");
        ApiError::new(ErrorKind::NotFound, problem).with_code("model_not_found")
    }

    /// Replaces the list of models. Models with an unchanged definition stay loaded. Missing and
    /// changed ones are unloaded after their answers.
    fn set_sources(&self, sources: Vec<ModelSource>) {
        // Entries are only appended, never removed or moved: leases and waiting requests hold
        // indices.
        let mut known = Vec::clone(&self.known());
        let mut listed = vec![false; known.len()];
        for ModelSource { name, aliases, tags, path, bytes, loader, drawing, definition, settings } in sources
        {
            let hidden = settings.hidden;
            let same = |known: &Arc<KnownModel>| known.name == name && known.definition == definition;
            // `listed`: two equal sources need two entries.
            if let Some(index) = known.iter().position(same).filter(|index| !listed[*index]) {
                // Visibility is not part of the definition, so it changes without a reload.
                known[index].hidden.store(hidden, Ordering::Relaxed);
                // An earlier reload may have removed it.
                self.table.change(index, |entry| entry.removed = false);
                listed[index] = true;
                continue;
            }
            self.loading.push(&name, loader, &settings, !self.is_single());
            self.table.push(&name, settings.unload_idle);
            listed.push(true);
            known.push(Arc::new(KnownModel {
                name,
                aliases,
                tags,
                path,
                bytes,
                definition,
                load_on_startup: settings.load_on_startup,
                removable: settings.removable,
                hidden: AtomicBool::new(hidden),
                drawing,
                drawn: Mutex::default(),
            }));
        }
        for (index, _) in listed.iter().enumerate().filter(|(_, listed)| !**listed) {
            self.table.remove(index);
        }
        if known.len() > 1 {
            self.single.store(false, Ordering::SeqCst);
        }
        // Last: an index that `known` has must exist in the table and in the loader.
        *self.known.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(known);
    }

    /// Waits for the exclusive right to change the list of models.
    pub(crate) async fn turn(&self) -> ListTurn {
        // An async lock: requests that reload the list must not wait on the few blocking threads,
        // which prepare the prompts of all other requests.
        ListTurn { _guard: Arc::clone(&self.changing).lock_owned().await }
    }

    /// Reads the list of models again, if the server has a catalog. Blocks, so it must not be
    /// called on the HTTP thread.
    pub(crate) fn reload(&self, _turn: &ListTurn) -> Result<(), ApiError> {
        let Some(catalog) = &self.catalog else { return Ok(()) };
        let failed =
            |problem| ApiError::internal(format!("the list of models cannot be reloaded: {problem}"));
        self.set_sources(catalog.sources().map_err(failed)?);
        self.table.events().send("*", ModelChange::Reloaded);
        Ok(())
    }

    /// Subscribes to events about the models.
    pub(crate) fn events(&self) -> broadcast::Receiver<ModelEvent> {
        self.table.events().subscribe()
    }

    /// Whether the server is shutting down.
    pub(crate) fn is_draining(&self) -> bool {
        self.loading.is_draining()
    }

    /// Checks that the server accepts requests.
    ///
    /// # Errors
    /// The server is shutting down, or its single model is being loaded for the first time.
    pub(crate) fn open(&self) -> Result<(), ApiError> {
        if self.loading.is_draining() {
            let problem = "the server is shutting down";
            return Err(ApiError::new(ErrorKind::Unavailable, problem).retry(Duration::from_secs(2)));
        }
        if self.starting.load(Ordering::SeqCst) {
            let entries = self.table.lock();
            if let Some(worker_handle) = entries[0].worker_handle() {
                // Its error has the progress in percent.
                worker_handle.ready()?;
            }
            // The load has not created its worker yet.
            if !entries[0].is_loaded() {
                return Err(
                    ApiError::new(ErrorKind::Unavailable, "Loading model").retry(Duration::from_secs(2))
                );
            }
        }
        Ok(())
    }

    /// Checks that requests can be answered: [`Models::open`], and a single model has not failed.
    pub(crate) fn health(&self) -> Result<(), ApiError> {
        self.open()?;
        if !self.is_single() {
            return Ok(());
        }
        match &self.table.lock()[0].phase {
            ModelPhase::Loaded(worker_handle) => worker_handle.ready().map(|_| ()),
            ModelPhase::Failed { problem, .. } => Err(cannot_load(problem)),
            // The next request loads it.
            ModelPhase::Unloaded | ModelPhase::Loading(_) | ModelPhase::Unloading(_) => Ok(()),
        }
    }

    /// Progress of loading a single model: read and total bytes.
    pub(crate) fn progress(&self) -> Option<(u64, u64)> {
        let entries = self.table.lock();
        match entries.first().filter(|_| self.is_single())?.worker_handle()?.state() {
            ModelState::Loading { done, total } => Some((done, total)),
            ModelState::Ready(_) | ModelState::Failed(_) => None,
        }
    }

    /// Waits until a model is loaded and leases it to a request. `autoload` is the request's
    /// `?autoload=`.
    pub(crate) async fn lease(&self, index: usize, autoload: Option<bool>) -> Result<Arc<Lease>, ApiError> {
        self.wait(index, None, autoload.unwrap_or(self.autoload) || self.is_single()).await
    }

    /// `load`: whether to load a model that is not loaded.
    async fn wait(
        &self,
        index: usize,
        mut waiting: Option<LeaseWaiter>,
        load: bool,
    ) -> Result<Arc<Lease>, ApiError> {
        // Subscribed before the first attempt: a change after it ends the first wait at once.
        let mut changes = self.table.changes();
        let deadline = tokio::time::Instant::now() + self.patience;
        loop {
            if let Some(lease) = self.try_lease(index, &mut waiting, load)? {
                return Ok(Arc::new(lease));
            }
            if tokio::time::timeout_at(deadline, changes.changed()).await.is_err() {
                let (name, seconds) = (self.status(index).name, self.patience.as_secs());
                let problem = format!("the model {name} was not loaded within {seconds} s (load_seconds)");
                return Err(ApiError::new(ErrorKind::Unavailable, problem).retry(Duration::from_secs(5)));
            }
        }
    }

    fn try_lease(
        &self,
        index: usize,
        waiting: &mut Option<LeaseWaiter>,
        load: bool,
    ) -> Result<Option<Lease>, ApiError> {
        // Checked in every iteration: the server may begin to drain while a request waits.
        self.open()?;
        let mut entries = self.table.lock();
        let entry = &mut entries[index];
        if entry.removed {
            let problem = format!("the model {} was removed from the server", entry.name());
            return Err(ApiError::new(ErrorKind::NotFound, problem).with_code("model_not_found"));
        }
        match &entry.phase {
            ModelPhase::Loaded(worker_handle) => {
                let (served, worker_handle) = (worker_handle.ready()?, Arc::clone(worker_handle));
                // Counted under the lock that `unload` takes, so that no unload can come between.
                entry.users += 1;
                (entry.used, entry.expires) = (Instant::now(), None);
                return Ok(Some(Lease { served, worker_handle, table: Arc::clone(&self.table), index }));
            }
            // A request that waited for this load gets its error instead of starting another one.
            ModelPhase::Failed { problem, at } if waiting.is_some() || at.elapsed() < RETRY => {
                return Err(cannot_load(problem));
            }
            ModelPhase::Unloaded | ModelPhase::Failed { .. } if !load => {
                let name = entry.name();
                let problem = format!(
                    "the model {name} is not loaded, and this request does not load it: POST /models/load \
                     first"
                );
                return Err(ApiError::invalid(problem).with_code("model_not_loaded"));
            }
            ModelPhase::Unloaded | ModelPhase::Failed { .. } => {
                // The phase changes under the lock, so that concurrent requests share one load.
                entry.phase = ModelPhase::Loading(None);
                tokio::spawn(Arc::clone(&self.loading).run(index, false));
            }
            ModelPhase::Loading(_) | ModelPhase::Unloading(_) => {}
        }
        if waiting.is_none() {
            // At least 1: with a queue limit of 0, no request could wait for the load that it
            // starts.
            if entry.waiting >= self.max_waiting.max(1) {
                let problem =
                    format!("{} requests are waiting for this model: try again later", entry.waiting);
                return Err(ApiError::new(ErrorKind::Busy, problem).retry(Duration::from_secs(5)));
            }
            entry.waiting += 1;
            *waiting = Some(LeaseWaiter { table: Arc::clone(&self.table), index });
        }
        Ok(None)
    }

    pub(crate) fn is_loaded(&self, index: usize) -> bool {
        self.table.lock()[index].is_loaded()
    }

    /// Starts to load a model without a request, even if its last load failed just now.
    pub(crate) fn load(self: &Arc<Self>, index: usize) -> Result<(), ApiError> {
        self.open()?;
        // Without this, `try_lease` would repeat the error of a failure in the last [`RETRY`].
        self.table.change(index, ModelEntry::retry);
        let mut waiting = None;
        if self.try_lease(index, &mut waiting, true)?.is_none() {
            let models = Arc::clone(self);
            // The task waits like a request: it takes a lease and releases it, which starts the
            // model's idle time. The result is shown in the model's status.
            tokio::spawn(async move { models.wait(index, waiting, true).await.map(drop) });
        }
        Ok(())
    }

    /// Unloads a model after all running and waiting requests for it.
    pub(crate) fn unload(&self, index: usize) {
        self.table.change(index, ModelEntry::unload_soon);
    }

    pub(crate) fn list(&self) -> Vec<ModelStatus> {
        let (known, entries) = (self.known(), self.table.lock());
        let listed = entries.iter().zip(known.iter());
        listed
            .filter(|(entry, known)| !entry.removed && !known.hidden.load(Ordering::Relaxed))
            .map(|(entry, known)| status(entry, known))
            .collect()
    }

    pub(crate) fn status(&self, index: usize) -> ModelStatus {
        let known = self.known();
        status(&self.table.lock()[index], &known[index])
    }

    /// The loaded model that was used last, or the first model.
    pub(crate) fn latest(&self) -> Result<usize, ApiError> {
        let entries = self.table.lock();
        let loaded = entries.iter().enumerate().filter(|(_, entry)| entry.is_loaded());
        let latest = loaded.max_by_key(|(_, entry)| entry.used).map(|(index, _)| index);
        // `find` locks the entries again.
        drop(entries);
        latest.map_or_else(|| self.find(None), Ok)
    }

    /// The source of a model's drawing, and the cached drawing.
    pub(crate) fn drawing(&self, index: usize) -> (Option<DrawingSource>, Option<Arc<str>>) {
        let known = Arc::clone(&self.known()[index]);
        let drawn = known.drawn.lock().unwrap_or_else(PoisonError::into_inner).clone();
        (known.drawing.clone(), drawn)
    }

    pub(crate) fn keep_drawing(&self, index: usize, page: &Arc<str>) {
        *self.known()[index].drawn.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(page));
    }

    /// Refuses new requests. Running ones finish.
    pub(crate) fn drain(&self) {
        self.loading.drain();
    }

    /// Waits until all workers have ended.
    pub(crate) fn join(&self) {
        self.table.join();
    }
}

impl KnownModel {
    fn is_called(&self, name: &str) -> bool {
        self.name == name || self.aliases.iter().any(|alias| alias == name)
    }
}

fn no_models() -> ApiError {
    ApiError::new(ErrorKind::NotFound, "this server has no models").with_code("model_not_found")
}

fn cannot_load(problem: &str) -> ApiError {
    ApiError::internal(format!("the model cannot be loaded: {problem}"))
}

fn status(entry: &ModelEntry, known: &KnownModel) -> ModelStatus {
    let worker_handle = entry.worker_handle().cloned();
    let served = match worker_handle.as_ref().filter(|_| entry.is_loaded()).map(|own| own.state()) {
        Some(ModelState::Ready(served)) => Some(served),
        _ => None,
    };
    let (state, problem) = match &entry.phase {
        // The worker is reloading the model after a fault.
        ModelPhase::Loaded(_) if served.is_none() => ("loading", None),
        ModelPhase::Failed { problem, .. } => (entry.label(), Some(problem.clone())),
        _ => (entry.label(), None),
    };
    ModelStatus {
        name: served.as_ref().map_or_else(|| known.name.clone(), |served| served.about.id.clone()),
        aliases: known.aliases.clone(),
        tags: known.tags.clone(),
        path: known.path.clone(),
        bytes: known.bytes,
        removable: known.removable,
        state,
        problem,
        served,
        worker_handle,
        expires_in: entry.expires.map(|at| at.saturating_duration_since(Instant::now())),
        counts: entry.counts,
        stats: entry.stats(),
        reloads: entry.reloads(),
    }
}
