//! Agreement between ranks at startup: facts that must be equal, and minima.

use crate::wire::{Reader, Writer};
use crate::wrong_message;
use latent_backend::{Channel, Communicator, RankDifference, RankError};

/// A fact that must be equal on all ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgreementItem {
    /// Its name, such as `precision`.
    pub what: String,
    /// The value on this rank.
    pub value: String,
    /// What to do if ranks differ.
    pub advice: String,
}

impl AgreementItem {
    pub fn new(what: &str, value: impl ToString, advice: &str) -> AgreementItem {
        AgreementItem { what: what.to_owned(), value: value.to_string(), advice: advice.to_owned() }
    }
}

/// Compares the facts of all ranks with rank 0's. All ranks must call it, and all get the same
/// result.
///
/// # Errors
/// [`RankError::Differs`] with the first rank that differs, or a lost rank.
pub fn on_facts(communicator: &dyn Communicator, facts: &[AgreementItem]) -> Result<(), RankError> {
    let mut out = Writer::default();
    out.usize(facts.len());
    for fact in facts {
        [&fact.what, &fact.value, &fact.advice].into_iter().for_each(|text| out.bytes(text.as_bytes()));
    }
    let mut message = Vec::new();
    if communicator.rank() == 0 {
        for to in 1..communicator.ranks() {
            communicator.send(to, Channel::Commands, &out.0)?;
        }
        let mut differs = Ok(());
        for from in 1..communicator.ranks() {
            communicator.receive(from, Channel::Answers, &mut message)?;
            let theirs =
                read(&message).ok_or_else(|| wrong_message(communicator, from, "truncated facts".into()))?;
            let host = communicator.host(from);
            differs = differs.and(compare((from, host), facts, &theirs));
        }
        // An empty message permits the others to continue. None may start before rank 0 has
        // compared all facts, or it would wait in a later collective for ranks that have ended.
        if let Err(error) = differs {
            communicator.fail(&error.to_string());
            return Err(error);
        }
        return (1..communicator.ranks()).try_for_each(|to| communicator.send(to, Channel::Commands, &[]));
    }
    communicator.send(0, Channel::Answers, &out.0)?;
    communicator.receive(0, Channel::Commands, &mut message)?;
    let theirs = read(&message).ok_or_else(|| wrong_message(communicator, 0, "truncated facts".into()))?;
    let own = (communicator.rank(), communicator.host(communicator.rank()));
    // Each rank also compares by itself, so that the error on its host names the difference.
    compare(own, &theirs, facts)?;
    communicator.receive(0, Channel::Commands, &mut message)
}

fn read(message: &[u8]) -> Option<Vec<AgreementItem>> {
    let mut from = Reader(message);
    let count = from.usize()?;
    let mut facts = Vec::new();
    for _ in 0..count {
        let mut text = || Some(String::from_utf8_lossy(from.bytes()?).into_owned());
        facts.push(AgreementItem { what: text()?, value: text()?, advice: text()? });
    }
    Some(facts)
}

/// Returns an error with the first fact in which a rank differs from rank 0.
fn compare(
    (rank, host): (usize, String),
    expected: &[AgreementItem],
    found: &[AgreementItem],
) -> Result<(), RankError> {
    let differs = |what: &str, found: &str, expected: &str, advice: &str| {
        RankError::Differs(Box::new(RankDifference {
            rank,
            host: host.clone(),
            other: 0,
            what: what.to_owned(),
            found: found.to_owned(),
            expected: expected.to_owned(),
            advice: advice.to_owned(),
        }))
    };
    for fact in expected {
        match found.iter().find(|other| other.what == fact.what) {
            Some(other) if other.value == fact.value => {}
            Some(other) => return Err(differs(&fact.what, &other.value, &fact.value, &fact.advice)),
            None => return Err(differs(&fact.what, "nothing", &fact.value, &fact.advice)),
        }
    }
    Ok(())
}

/// The minimum over all ranks. All ranks must call it, and all get the same result.
pub fn on_least(communicator: &dyn Communicator, own: u64) -> Result<u64, RankError> {
    let mut message = Vec::new();
    let mut receive = |from, channel| {
        communicator.receive(from, channel, &mut message)?;
        Reader(&message).u64().ok_or_else(|| wrong_message(communicator, from, "an invalid number".into()))
    };
    if communicator.rank() > 0 {
        communicator.send(0, Channel::Answers, &own.to_le_bytes())?;
        return receive(0, Channel::Commands);
    }
    let mut least = own;
    for from in 1..communicator.ranks() {
        least = least.min(receive(from, Channel::Answers)?);
    }
    for to in 1..communicator.ranks() {
        communicator.send(to, Channel::Commands, &least.to_le_bytes())?;
    }
    Ok(least)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::local_ranks;

    #[test]
    fn all_ranks_agree_on_the_least_number() {
        let found: Vec<u64> = std::thread::scope(|scope| {
            let own = |(rank, number)| scope.spawn(move || on_least(&rank, number).unwrap());
            let threads: Vec<_> = local_ranks(3).into_iter().zip([7, 3, 9]).map(own).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(found, [3, 3, 3]);
    }

    #[test]
    fn a_rank_that_differs_is_named_on_every_rank() {
        let facts = |precision: &str| {
            vec![
                AgreementItem::new("version", "0.1.0", "install one"),
                AgreementItem::new("precision", precision, "give all the same precision"),
            ]
        };
        let found: Vec<Result<(), RankError>> = std::thread::scope(|scope| {
            let ranks = local_ranks(3).into_iter().zip(["default", "exact", "default"]);
            let run = |(rank, precision)| scope.spawn(move || on_facts(&rank, &facts(precision)));
            let threads: Vec<_> = ranks.map(run).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        // Ranks 0 and 1 find the difference themselves, and rank 2 gets it as the failure of rank
        // 0.
        for (rank, result) in found.into_iter().enumerate() {
            let error = result.unwrap_err().to_string();
            let text = "rank 1 on host this process differs from rank 0 in precision: exact instead of \
                        default; give all the same precision";
            assert!(
                error.contains(text) || error.contains("lost rank 1 on host this process"),
                "rank {rank}: {error}"
            );
        }
    }

    #[test]
    fn equal_facts_are_no_error() {
        let facts = [AgreementItem::new("version", "0.1.0", "")];
        std::thread::scope(|scope| {
            let threads: Vec<_> = local_ranks(4)
                .into_iter()
                .map(|rank| {
                    scope.spawn(|| {
                        let rank = rank;
                        on_facts(&rank, &facts)
                    })
                })
                .collect();
            threads.into_iter().for_each(|thread| thread.join().unwrap().unwrap());
        });
    }
}
