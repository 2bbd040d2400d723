//! Ranks that are threads of the test.

use latent_backend::Backend;
use latent_engine::{Engine, EngineError, EngineOptions, Hosts, Rank};
use latent_formats::Checkpoint;
use latent_hosts::local_ranks;
use std::sync::Arc;

/// Runs `lead` with the engine of rank 0, while the other ranks of `partition` follow. What each rank ended with: rank 0 first.
pub fn on_ranks<T: Send>(
    partition: &str,
    backend: &(dyn Fn() -> Box<dyn Backend> + Sync),
    checkpoint: &Arc<Checkpoint>,
    options: &(dyn Fn(usize) -> EngineOptions + Sync),
    lead: impl FnOnce(&mut Engine) -> T + Send,
) -> (Result<T, EngineError>, Vec<Result<(), EngineError>>) {
    let partition: latent_graph::Partition = partition.parse().unwrap();
    let mut communicators = local_ranks(partition.ranks()).into_iter();
    let load = |communicator| {
        let communicator: Arc<dyn latent_backend::Communicator> = Arc::new(communicator);
        let hosts = Hosts { partition: partition.clone(), communicator: Arc::clone(&communicator) };
        let options = EngineOptions { hosts: Some(hosts), ..options(communicator.rank()) };
        Engine::load_rank(&*backend(), checkpoint, &options, &mut |_, _| {})
    };
    std::thread::scope(|scope| {
        let first = communicators.next().unwrap();
        let follow = |communicator| {
            let load = &load;
            scope.spawn(move || match load(communicator)? {
                Rank::Follows(follower) => follower.run(),
                Rank::Leads(_) => panic!("only rank 0 leads"),
            })
        };
        let followers: Vec<_> = communicators.map(follow).collect();
        let led = match load(first) {
            Ok(Rank::Leads(mut engine)) => Ok(lead(&mut engine)),
            Ok(Rank::Follows(_)) => panic!("rank 0 leads"),
            Err(error) => Err(error),
        };
        (led, followers.into_iter().map(|thread| thread.join().unwrap()).collect())
    })
}
