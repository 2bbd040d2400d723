//! Ranks that are threads of one process, for tests.

use latent_backend::{Channel, Communicator, RankError};
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// State that all ranks share.
#[derive(Default)]
struct LocalMailbox {
    mail: Mutex<LocalMail>,
    changed: Condvar,
}

#[derive(Default)]
struct LocalMail {
    /// Messages by sender, receiver and channel.
    waiting: HashMap<(usize, usize, Channel), VecDeque<Vec<u8>>>,
    /// The first rank that failed, and the cause.
    failed: Option<(usize, String)>,
    /// Ranks that were dropped.
    gone: Vec<usize>,
}

/// A rank that is a thread of this process.
pub struct LocalRank {
    rank: usize,
    ranks: usize,
    mailbox: Arc<LocalMailbox>,
}

/// Creates the ranks of a job. Each is for one thread.
pub fn local_ranks(ranks: usize) -> Vec<LocalRank> {
    let mailbox = Arc::new(LocalMailbox::default());
    (0..ranks).map(|rank| LocalRank { rank, ranks, mailbox: Arc::clone(&mailbox) }).collect()
}

impl LocalRank {
    fn mail(&self) -> MutexGuard<'_, LocalMail> {
        self.mailbox.mail.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn failure(&self, mail: &LocalMail) -> Option<RankError> {
        let (rank, cause) = mail.failed.clone().filter(|(rank, _)| *rank != self.rank)?;
        Some(RankError::Failed { rank, host: self.host(rank), cause })
    }
}

impl Communicator for LocalRank {
    fn rank(&self) -> usize {
        self.rank
    }

    fn ranks(&self) -> usize {
        self.ranks
    }

    fn host(&self, _rank: usize) -> String {
        "this process".into()
    }

    fn send(&self, to: usize, channel: Channel, message: &[u8]) -> Result<(), RankError> {
        let mut mail = self.mail();
        if let Some(error) = self.failure(&mail) {
            return Err(error);
        }
        mail.waiting.entry((self.rank, to, channel)).or_default().push_back(message.to_vec());
        self.mailbox.changed.notify_all();
        Ok(())
    }

    fn receive(&self, from: usize, channel: Channel, message: &mut Vec<u8>) -> Result<(), RankError> {
        let mut mail = self.mail();
        loop {
            // Messages that have arrived come before failures, as over MPI: they were sent before
            // the failure.
            let next = mail.waiting.get_mut(&(from, self.rank, channel)).and_then(VecDeque::pop_front);
            if let Some(next) = next {
                *message = next;
                return Ok(());
            }
            if let Some(error) = self.failure(&mail) {
                return Err(error);
            }
            if mail.gone.contains(&from) {
                let cause = "its thread has ended".into();
                return Err(RankError::Lost { rank: from, host: self.host(from), cause });
            }
            mail = self.mailbox.changed.wait(mail).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn fail(&self, cause: &str) {
        let mut mail = self.mail();
        // The first failure: later ones are usually its consequences.
        mail.failed.get_or_insert_with(|| (self.rank, cause.to_owned()));
        self.mailbox.changed.notify_all();
    }
}

impl Drop for LocalRank {
    fn drop(&mut self) {
        self.mail().gone.push(self.rank);
        self.mailbox.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_keep_their_order_within_a_channel() {
        let ranks = local_ranks(2);
        for i in 0..3u8 {
            ranks[0].send(1, Channel::Values, &[i]).unwrap();
            ranks[0].send(1, Channel::Commands, &[10 + i]).unwrap();
        }
        let mut message = Vec::new();
        for (channel, first) in [(Channel::Commands, 10), (Channel::Values, 0)] {
            for i in 0..3 {
                ranks[1].receive(0, channel, &mut message).unwrap();
                assert_eq!(message, [first + i]);
            }
        }
    }

    #[test]
    fn receiving_from_a_lost_or_failed_rank_returns_its_cause() {
        let mut ranks = local_ranks(3);
        let (two, one) = (ranks.pop().unwrap(), ranks.pop().unwrap());
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                let mut message = Vec::new();
                ranks[0].receive(1, Channel::Values, &mut message).unwrap_err().to_string()
            });
            drop(one);
            assert!(waiting.join().unwrap().contains("lost rank 1 on host this process"));
        });
        two.fail("no memory for 3 GiB");
        let error = ranks[0].receive(2, Channel::Values, &mut Vec::new()).unwrap_err();
        assert_eq!(error.to_string(), "rank 2 on host this process failed: no memory for 3 GiB");
        assert!(ranks[0].send(2, Channel::Values, &[]).is_err());
    }
}
