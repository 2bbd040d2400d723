//! The models of a server: loaded when they are first asked for, unloaded when idle or when another model needs their memory.

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

/// How long a failed load is remembered before a request tries it again.
const RETRY: Duration = Duration::from_secs(5);

/// The models of a server.
pub(crate) struct Models {
    table: Arc<ModelTable>,
    loading: Arc<ModelLoader>,
    /// As the entries of the table. A model that the list no longer has keeps its number.
    known: RwLock<Arc<Vec<Arc<KnownModel>>>>,
    catalog: Option<Arc<dyn ModelCatalog>>,
    downloads: DownloadList,
    /// Held while the list changes.
    changing: Arc<tokio::sync::Mutex<()>>,
    /// Whether the server has one model and has had no other.
    single: AtomicBool,
    /// The only model is being loaded for the first time: requests are refused until then.
    starting: AtomicBool,
    /// How long a request waits for its model.
    patience: Duration,
    /// Most requests that wait for one model.
    max_waiting: usize,
    /// Whether requests load their models.
    autoload: bool,
    /// When the server started.
    pub(crate) created: u64,
}

/// What is known of a model before it is loaded.
struct KnownModel {
    name: String,
    aliases: Vec<String>,
    tags: Vec<String>,
    path: String,
    bytes: u64,
    definition: String,
    load_on_startup: bool,
    removable: bool,
    /// Whether lists leave it out.
    hidden: AtomicBool,
    drawing: Option<DrawingSource>,
    drawn: Mutex<Option<Arc<str>>>,
}

/// A model as lists show it.
pub(crate) struct ModelStatus {
    pub(crate) name: String,
    /// Further names.
    pub(crate) aliases: Vec<String>,
    pub(crate) tags: Vec<String>,
    pub(crate) path: String,
    pub(crate) bytes: u64,
    /// Whether it was downloaded, and can be deleted.
    pub(crate) removable: bool,
    /// unloaded, loading, loaded, unloading or failed.
    pub(crate) state: &'static str,
    /// Why it could not be loaded.
    pub(crate) problem: Option<String>,
    pub(crate) served: Option<Arc<ServedModel>>,
    pub(crate) worker_handle: Option<Arc<WorkerHandle>>,
    /// Idle time after which it is unloaded; none: when another model needs its memory.
    pub(crate) stays: Option<Duration>,
    pub(crate) counts: LoadCounts,
    /// What its schedulers have done since the server started.
    pub(crate) stats: SchedulerStats,
    /// Faults after which it was loaded again.
    pub(crate) reloads: u64,
}

/// The right to change the list of models.
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

    /// One model that is there already.
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

    /// Loads the only model, and tells what came of it; several are loaded when they are asked for. To be called on the HTTP runtime.
    pub(crate) async fn run(self: Arc<Self>, first: Sender<Result<(), LoadError>>) {
        if self.is_single() {
            self.table.change(0, |entry| entry.phase = ModelPhase::Loading(None));
            self.starting.store(true, Ordering::SeqCst);
            let models = Arc::clone(&self);
            tokio::spawn(async move {
                let result = Arc::clone(&models.loading).run(0, true).await;
                models.starting.store(false, Ordering::SeqCst);
                // the caller may not wait for it
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

    /// Whether the server has one model and has had no other.
    pub(crate) fn is_single(&self) -> bool {
        self.single.load(Ordering::SeqCst)
    }

    fn known(&self) -> Arc<Vec<Arc<KnownModel>>> {
        Arc::clone(&self.known.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// The model that a request names: the first where it names none. A server with one model has it under any name.
    pub(crate) fn find(&self, name: Option<&str>) -> Result<usize, ApiError> {
        if self.is_single() {
            return Ok(0);
        }
        let (known, entries) = (self.known(), self.table.lock());
        let position = |is: &dyn Fn(&KnownModel) -> bool| {
            known.iter().zip(entries.iter()).position(|(known, entry)| !entry.removed && is(known))
        };
        let at = |name: &str| position(&|known| known.is_called(name));
        let Some(name) = name.filter(|name| !name.is_empty()) else {
            let first = position(&|known| !known.hidden.load(Ordering::Relaxed));
            return first.ok_or_else(no_models);
        };
        // as Ollama's clients name a model without a tag
        let found = at(name).or_else(|| at(name.strip_suffix(":latest")?));
        // the error locks the entries
        drop(entries);
        found.ok_or_else(|| self.unknown(name))
    }

    /// The number of the model with this name; aliases do not count.
    fn position(&self, name: &str) -> Option<usize> {
        let (known, entries) = (self.known(), self.table.lock());
        known.iter().zip(entries.iter()).position(|(known, entry)| !entry.removed && known.name == name)
    }

    /// The error for a name that no model has.
    pub(crate) fn unknown(&self, name: &str) -> ApiError {
        let names: Vec<String> = self.list().into_iter().map(|model| model.name).collect();
        let has = if names.is_empty() { "no models".to_owned() } else { names.join(", ") };
        let problem = format!("unknown model {name:?}; this server has {has}");
        ApiError::new(ErrorKind::NotFound, problem).with_code("model_not_found")
    }

    /// Makes these the models of the server. One whose definition is the same stays as it is; one that is missing or was changed is unloaded
    /// once its answers have ended.
    fn set_sources(&self, sources: Vec<ModelSource>) {
        let mut known = Vec::clone(&self.known());
        let mut stays = vec![false; known.len()];
        for ModelSource { name, aliases, tags, path, bytes, loader, drawing, definition, settings } in sources
        {
            let hidden = settings.hidden;
            let same = |known: &Arc<KnownModel>| known.name == name && known.definition == definition;
            if let Some(index) = known.iter().position(same).filter(|index| !stays[*index]) {
                known[index].hidden.store(hidden, Ordering::Relaxed);
                self.table.change(index, |entry| entry.removed = false);
                stays[index] = true;
                continue;
            }
            self.loading.push(&name, loader, &settings, !self.is_single());
            self.table.push(&name, settings.unload_idle);
            stays.push(true);
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
        for (index, _) in stays.iter().enumerate().filter(|(_, stays)| !**stays) {
            self.table.remove(index);
        }
        if known.len() > 1 {
            self.single.store(false, Ordering::SeqCst);
        }
        *self.known.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(known);
    }

    /// Waits until nothing else changes the list of models. Requests wait here, and not on the few threads that may wait for files.
    pub(crate) async fn turn(&self) -> ListTurn {
        ListTurn { _guard: Arc::clone(&self.changing).lock_owned().await }
    }

    /// Reads the list of models again, if the server has one that can change. To be called where waiting is allowed.
    pub(crate) fn reload(&self, _turn: &ListTurn) -> Result<(), ApiError> {
        let Some(catalog) = &self.catalog else { return Ok(()) };
        let failed =
            |problem| ApiError::internal(format!("the list of models cannot be read again: {problem}"));
        self.set_sources(catalog.sources().map_err(failed)?);
        self.table.events().send("*", ModelChange::Reloaded);
        Ok(())
    }

    /// Receives the events about the models from now on.
    pub(crate) fn events(&self) -> broadcast::Receiver<ModelEvent> {
        self.table.events().subscribe()
    }

    /// Whether the server is shutting down.
    pub(crate) fn is_draining(&self) -> bool {
        self.loading.is_draining()
    }

    /// Whether requests are taken at all.
    ///
    /// # Errors
    /// The server ends, or its only model is loaded for the first time.
    pub(crate) fn open(&self) -> Result<(), ApiError> {
        if self.loading.is_draining() {
            let problem = "the server is shutting down";
            return Err(ApiError::new(ErrorKind::Unavailable, problem).retry(Duration::from_secs(2)));
        }
        if self.starting.load(Ordering::SeqCst) {
            let entries = self.table.lock();
            if let Some(worker_handle) = entries[0].worker_handle() {
                worker_handle.ready()?;
            }
            if !entries[0].is_loaded() {
                return Err(
                    ApiError::new(ErrorKind::Unavailable, "Loading model").retry(Duration::from_secs(2))
                );
            }
        }
        Ok(())
    }

    /// Whether requests can be answered: as [`Models::open`], and a single model has not failed.
    pub(crate) fn health(&self) -> Result<(), ApiError> {
        self.open()?;
        if !self.is_single() {
            return Ok(());
        }
        match &self.table.lock()[0].phase {
            ModelPhase::Loaded(worker_handle) => worker_handle.ready().map(|_| ()),
            ModelPhase::Failed { problem, .. } => Err(cannot_load(problem)),
            ModelPhase::Unloaded | ModelPhase::Loading(_) | ModelPhase::Unloading(_) => Ok(()),
        }
    }

    /// How far the loading of the only model is: bytes read, of how many.
    pub(crate) fn progress(&self) -> Option<(u64, u64)> {
        let entries = self.table.lock();
        match entries.first().filter(|_| self.is_single())?.worker_handle()?.state() {
            ModelState::Loading { done, total } => Some((done, total)),
            ModelState::Ready(_) | ModelState::Failed(_) => None,
        }
    }

    /// The model for a request, which waits while it is loaded; `autoload`: whether the request loads it, if it says so.
    pub(crate) async fn lease(&self, index: usize, autoload: Option<bool>) -> Result<Arc<Lease>, ApiError> {
        self.wait(index, None, autoload.unwrap_or(self.autoload) || self.is_single()).await
    }

    /// `load`: whether a model that is not loaded is loaded.
    async fn wait(
        &self,
        index: usize,
        mut waiting: Option<LeaseWaiter>,
        load: bool,
    ) -> Result<Arc<Lease>, ApiError> {
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
                entry.users += 1;
                (entry.used, entry.expires) = (Instant::now(), None);
                return Ok(Some(Lease { served, worker_handle, table: Arc::clone(&self.table), index }));
            }
            ModelPhase::Failed { problem, at } if waiting.is_some() || at.elapsed() < RETRY => {
                return Err(cannot_load(problem));
            }
            ModelPhase::Unloaded | ModelPhase::Failed { .. } if !load => {
                let name = entry.name();
                let problem = format!(
                    "the model {name} is not loaded, and this request loads none: POST /models/load first"
                );
                return Err(ApiError::invalid(problem).with_code("model_not_loaded"));
            }
            ModelPhase::Unloaded | ModelPhase::Failed { .. } => {
                entry.phase = ModelPhase::Loading(None);
                tokio::spawn(Arc::clone(&self.loading).run(index, false));
            }
            ModelPhase::Loading(_) | ModelPhase::Unloading(_) => {}
        }
        if waiting.is_none() {
            if entry.waiting >= self.max_waiting.max(1) {
                let problem = format!("{} requests wait for this model: try again later", entry.waiting);
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

    /// Begins to load a model before its first request. A failed load is tried again.
    pub(crate) fn load(self: &Arc<Self>, index: usize) -> Result<(), ApiError> {
        self.open()?;
        self.table.change(index, ModelEntry::retry);
        let mut waiting = None;
        if self.try_lease(index, &mut waiting, true)?.is_none() {
            let models = Arc::clone(self);
            // what comes of it stands in the model's status
            tokio::spawn(async move { models.wait(index, waiting, true).await.map(drop) });
        }
        Ok(())
    }

    /// Unloads a model: once those who use it and those who wait for it have their answers.
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

    /// The model that was used last, else the first.
    pub(crate) fn latest(&self) -> Result<usize, ApiError> {
        let entries = self.table.lock();
        let loaded = entries.iter().enumerate().filter(|(_, entry)| entry.is_loaded());
        let latest = loaded.max_by_key(|(_, entry)| entry.used).map(|(index, _)| index);
        drop(entries);
        latest.map_or_else(|| self.find(None), Ok)
    }

    /// What draws a model, and its drawing once that was made.
    pub(crate) fn drawing(&self, index: usize) -> (Option<DrawingSource>, Option<Arc<str>>) {
        let known = Arc::clone(&self.known()[index]);
        let drawn = known.drawn.lock().unwrap_or_else(PoisonError::into_inner).clone();
        (known.drawing.clone(), drawn)
    }

    pub(crate) fn keep_drawing(&self, index: usize, page: &Arc<str>) {
        *self.known()[index].drawn.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(page));
    }

    /// Takes no more requests; running ones finish.
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
        // it is loaded again after a fault
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
        stays: entry.expires.map(|at| at.saturating_duration_since(Instant::now())),
        counts: entry.counts,
        stats: entry.stats(),
        reloads: entry.reloads(),
    }
}
