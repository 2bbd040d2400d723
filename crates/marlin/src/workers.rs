//! The thread pool, with memory for each worker. Divides lists of tasks among the workers.

use latent_kernels::W4Scratch;
use latent_threads::{Placement, ThreadPool};
use std::sync::{Mutex, PoisonError};

/// Memory of one worker, which is reused by later products.
#[derive(Default)]
pub(crate) struct WorkerMemory {
    pub scratch: W4Scratch,
    /// Input rows as f32, before they are packed.
    pub rows: Vec<f32>,
}

pub(crate) struct Workers {
    pool: ThreadPool,
    memory: Vec<Mutex<WorkerMemory>>,
}

impl Workers {
    pub(crate) fn new(placement: &Placement) -> std::io::Result<Workers> {
        let pool = ThreadPool::placed(placement)?;
        let memory = (0..pool.threads()).map(|_| Mutex::default()).collect();
        Ok(Workers { pool, memory })
    }

    pub(crate) fn count(&self) -> usize {
        self.pool.threads()
    }

    /// Runs all tasks. Each worker has a contiguous share of them; with `alone`, the caller runs
    /// all.
    pub(crate) fn each<T: Send>(
        &mut self,
        tasks: Vec<T>,
        alone: bool,
        work: impl Fn(T, &mut WorkerMemory) + Sync,
    ) {
        if alone || tasks.len() < 2 || self.count() == 1 {
            // No lock is needed: `&mut self` excludes other users.
            let memory = self.memory[0].get_mut().unwrap_or_else(PoisonError::into_inner);
            tasks.into_iter().for_each(|task| work(task, memory));
            return;
        }
        // The locks let workers take tasks by value out of a shared list. Each task belongs to one
        // worker, so no lock is ever waited for.
        let tasks: Vec<Mutex<Option<T>>> = tasks.into_iter().map(|task| Mutex::new(Some(task))).collect();
        let memory = &self.memory;
        self.pool.run(&|worker| {
            let mut memory = memory[worker.index].lock().unwrap_or_else(PoisonError::into_inner);
            for task in &tasks[worker.share(tasks.len(), 1)] {
                let task = task.lock().unwrap_or_else(PoisonError::into_inner).take();
                if let Some(task) = task {
                    work(task, &mut memory);
                }
            }
        });
    }
}
