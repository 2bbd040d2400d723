//! The thread of a model.

use crate::error::{Error, ErrorKind};
use latent_engine::worker::{WorkerCommand, WorkerCommands, WorkerHooks, WorkerModel};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

/// A thread that runs a model. Dropping it stops the running step, and waits until the model's
/// memory is released.
pub(crate) struct ModelWorker {
    /// `None` only while it is dropped.
    commands: Option<WorkerCommands>,
    thread: Option<JoinHandle<()>>,
}

impl ModelWorker {
    /// Starts the thread. `load` loads the model there, at the start and after each fault of the
    /// engine, if `reload`. The receiver gets the result of the first time.
    pub(crate) fn start<T: Send + 'static>(
        reload: bool,
        load: impl FnMut() -> Result<(WorkerModel, T), Error> + Send + 'static,
    ) -> Result<(ModelWorker, Receiver<Result<T, Error>>), Error> {
        let (commands, queue) = WorkerCommands::channel();
        let (first, loaded) = channel();
        let thread = queue
            .start("latent-model", LoadHooks { load, reload, first: Some(first) })
            .map_err(|error| Error::new(ErrorKind::Engine, format!("cannot start a thread: {error}")))?;
        Ok((ModelWorker { commands: Some(commands), thread: Some(thread) }, loaded))
    }

    pub(crate) fn commands(&self) -> Result<&WorkerCommands, Error> {
        self.commands.as_ref().ok_or_else(Error::gone)
    }

    pub(crate) fn send(&self, command: WorkerCommand) -> Result<(), Error> {
        self.commands()?.send(command).map_err(|_| Error::gone())
    }

    /// Ends the thread without waiting for it.
    pub(crate) fn detach(mut self) {
        // Dropping a `JoinHandle` detaches its thread. `drop` then closes the commands, so the
        // thread ends after loading.
        self.thread = None;
    }

    /// Leaks the handles in a forked child.
    pub(crate) fn forget(&mut self) {
        // The child does not have the thread, so joining it would never return.
        std::mem::forget(self.commands.take());
        std::mem::forget(self.thread.take());
    }
}

impl Drop for ModelWorker {
    fn drop(&mut self) {
        // While commands may arrive, the thread does not end, and `join` would wait forever.
        if let Some(commands) = self.commands.take() {
            commands.end();
        }
        if let Some(thread) = self.thread.take() {
            // The thread catches its panics and reports them as errors.
            let _ = thread.join();
        }
    }
}

struct LoadHooks<F, T> {
    load: F,
    reload: bool,
    first: Option<Sender<Result<T, Error>>>,
}

impl<F, T> WorkerHooks for LoadHooks<F, T>
where
    F: FnMut() -> Result<(WorkerModel, T), Error> + Send,
    T: Send,
{
    fn load(&mut self, _lost: Option<&str>) -> Result<WorkerModel, String> {
        // `Model::load` waits for the first result, so a panic must reach it as an error.
        let loaded = catch_unwind(AssertUnwindSafe(&mut self.load));
        let loaded = loaded.unwrap_or_else(|panic| Err(Error::panicked(&*panic)));
        let (model, about) = match loaded {
            Ok((model, about)) => (Ok(model), Ok(about)),
            Err(error) => (Err(error.to_string()), Err(error)),
        };
        // Only the caller of `Model::load` waits for this, so later results are not sent.
        if let Some(first) = self.first.take() {
            // The caller may have stopped waiting.
            let _ = first.send(about);
        }
        model
    }

    fn faulted(&mut self, _problem: &str) -> bool {
        self.reload
    }
}
