//! Cancelling a request's job from anywhere, before and after the scheduler has taken it.

use latent_engine::scheduler::{Canceller, JobId};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

#[derive(Default)]
enum State {
    #[default]
    Waiting,
    Taken(Canceller, JobId),
    Gone,
}

/// A request's job.
#[derive(Clone, Default)]
pub(crate) struct Handle(Arc<Mutex<State>>);

impl Handle {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The client no longer waits for the answer.
    pub(crate) fn cancel(&self) {
        if let State::Taken(canceller, job) = std::mem::replace(&mut *self.state(), State::Gone) {
            canceller.cancel(job);
        }
    }

    /// The scheduler has taken the job.
    pub(crate) fn taken(&self, canceller: Canceller, job: JobId) {
        let mut state = self.state();
        match *state {
            State::Gone => canceller.cancel(job),
            _ => *state = State::Taken(canceller, job),
        }
    }

    pub(crate) fn is_gone(&self) -> bool {
        matches!(*self.state(), State::Gone)
    }
}

/// The requests that are being answered, by Dynamo's ids.
#[derive(Clone, Default)]
pub(crate) struct Requests(Arc<Mutex<HashMap<String, Handle>>>);

/// A request that is being answered; dropped, it cancels what still runs.
pub(crate) struct Entry {
    requests: Requests,
    id: String,
    handle: Handle,
}

impl Requests {
    fn map(&self) -> MutexGuard<'_, HashMap<String, Handle>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn enter(&self, id: &str) -> Entry {
        let handle = Handle::default();
        self.map().insert(id.to_owned(), handle.clone());
        Entry { requests: self.clone(), id: id.to_owned(), handle }
    }

    pub(crate) fn cancel(&self, id: &str) {
        let handle = self.map().get(id).cloned();
        if let Some(handle) = handle {
            handle.cancel();
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.map().is_empty()
    }
}

impl Entry {
    pub(crate) fn handle(&self) -> &Handle {
        &self.handle
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.handle.cancel();
        let mut map = self.requests.map();
        // an attempt of the same id may have come since
        if map.get(&self.id).is_some_and(|there| Arc::ptr_eq(&there.0, &self.handle.0)) {
            map.remove(&self.id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_there_until_its_answer_ends_and_a_later_one_of_its_id_stays() {
        let requests = Requests::default();
        let first = requests.enter("a");
        let second = requests.enter("a");
        drop(first);
        assert!(!requests.is_empty() && !second.handle().is_gone());
        requests.cancel("b");
        requests.cancel("a");
        assert!(second.handle().is_gone());
        drop(second);
        assert!(requests.is_empty());
    }
}
