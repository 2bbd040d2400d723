//! Ranks that are threads of the test.
#![allow(dead_code, reason = "each test program uses a part of it")]

use latent_backend::{Backend, Channel, Communicator, RankError};
use latent_engine::{Engine, EngineError, EngineOptions, Hosts, Rank};
use latent_formats::Checkpoint;
use latent_hosts::{LocalRank, local_ranks};
use std::sync::Arc;

type SendHook = dyn Fn(usize, Channel, &[u8]) -> Result<(), RankError> + Send + Sync;
type ReceiveHook = dyn Fn(usize, Channel) -> Result<(), RankError> + Send + Sync;

/// A rank with hooks that see each message and can make it fail.
pub struct TappedRank {
    rank: LocalRank,
    /// Called before a message is sent.
    sends: Box<SendHook>,
    /// Called after a message was received.
    received: Box<ReceiveHook>,
}

impl TappedRank {
    pub fn sends(
        rank: LocalRank,
        sends: impl Fn(usize, Channel, &[u8]) -> Result<(), RankError> + Send + Sync + 'static,
    ) -> Arc<dyn Communicator> {
        Arc::new(TappedRank { rank, sends: Box::new(sends), received: Box::new(|_, _| Ok(())) })
    }

    pub fn received(
        rank: LocalRank,
        received: impl Fn(usize, Channel) -> Result<(), RankError> + Send + Sync + 'static,
    ) -> Arc<dyn Communicator> {
        Arc::new(TappedRank { rank, sends: Box::new(|_, _, _| Ok(())), received: Box::new(received) })
    }
}

impl Communicator for TappedRank {
    fn rank(&self) -> usize {
        self.rank.rank()
    }

    fn ranks(&self) -> usize {
        self.rank.ranks()
    }

    fn host(&self, rank: usize) -> String {
        self.rank.host(rank)
    }

    fn send(&self, to: usize, channel: Channel, message: &[u8]) -> Result<(), RankError> {
        (self.sends)(to, channel, message)?;
        self.rank.send(to, channel, message)
    }

    fn receive(&self, from: usize, channel: Channel, message: &mut Vec<u8>) -> Result<(), RankError> {
        self.rank.receive(from, channel, message)?;
        (self.received)(from, channel)
    }

    fn fail(&self, cause: &str) {
        self.rank.fail(cause);
    }
}

/// Runs `lead` with the engine of rank 0 while the other ranks of `partition` follow. Gives the
/// result of `lead` and those of the other ranks.
pub fn on_ranks<T: Send>(
    partition: &str,
    backend: &(dyn Fn() -> Box<dyn Backend> + Sync),
    checkpoint: &Arc<Checkpoint>,
    options: &(dyn Fn(usize) -> EngineOptions + Sync),
    lead: impl FnOnce(&mut Engine) -> T + Send,
) -> (Result<T, EngineError>, Vec<Result<(), EngineError>>) {
    let own = |rank: LocalRank| -> Arc<dyn Communicator> { Arc::new(rank) };
    on_ranks_over(&own, partition, backend, checkpoint, options, |mut engine| lead(&mut engine))
}

/// Like [`on_ranks`], with other communicators and an engine that `lead` owns.
pub fn on_ranks_over<T: Send>(
    communicator: &(dyn Fn(LocalRank) -> Arc<dyn Communicator> + Sync),
    partition: &str,
    backend: &(dyn Fn() -> Box<dyn Backend> + Sync),
    checkpoint: &Arc<Checkpoint>,
    options: &(dyn Fn(usize) -> EngineOptions + Sync),
    lead: impl FnOnce(Engine) -> T + Send,
) -> (Result<T, EngineError>, Vec<Result<(), EngineError>>) {
    on_ranks_of(&|_| Arc::clone(checkpoint), communicator, partition, backend, options, lead)
}

/// Like [`on_ranks_over`], with a separate checkpoint for each rank.
pub fn on_ranks_of<T: Send>(
    checkpoint: &(dyn Fn(usize) -> Arc<Checkpoint> + Sync),
    communicator: &(dyn Fn(LocalRank) -> Arc<dyn Communicator> + Sync),
    partition: &str,
    backend: &(dyn Fn() -> Box<dyn Backend> + Sync),
    options: &(dyn Fn(usize) -> EngineOptions + Sync),
    lead: impl FnOnce(Engine) -> T + Send,
) -> (Result<T, EngineError>, Vec<Result<(), EngineError>>) {
    let partition: latent_graph::Partition = partition.parse().unwrap();
    let mut ranks = local_ranks(partition.ranks()).into_iter();
    let load = |rank| {
        let communicator = communicator(rank);
        let hosts = Hosts { partition: partition.clone(), communicator: Arc::clone(&communicator) };
        let options = EngineOptions { hosts: Some(hosts), ..options(communicator.rank()) };
        let checkpoint = checkpoint(communicator.rank());
        Engine::load_rank(&*backend(), &checkpoint, &options, &mut |_, _| {})
    };
    std::thread::scope(|scope| {
        let first = ranks.next().unwrap();
        let follow = |rank| {
            let load = &load;
            scope.spawn(move || match load(rank)? {
                Rank::Follows(follower) => follower.run(),
                Rank::Leads(_) => panic!("only rank 0 leads"),
            })
        };
        let followers: Vec<_> = ranks.map(follow).collect();
        let led = match load(first) {
            Ok(Rank::Leads(engine)) => Ok(lead(*engine)),
            Ok(Rank::Follows(_)) => panic!("rank 0 leads"),
            Err(error) => Err(error),
        };
        (led, followers.into_iter().map(|thread| thread.join().unwrap()).collect())
    })
}
