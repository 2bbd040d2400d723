//! Checks at start of what must be equal on all ranks.

use crate::wire::{Reader, Writer};
use crate::wrong_message;
use latent_backend::{Channel, Communicator, RankDifference, RankError};

/// One thing that ranks must have in common.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgreementItem {
    /// What it is: `precision`.
    pub what: String,
    /// What this rank has.
    pub value: String,
    /// What to do where ranks differ.
    pub advice: String,
}

impl AgreementItem {
    /// A fact.
    pub fn new(what: &str, value: impl ToString, advice: &str) -> AgreementItem {
        AgreementItem { what: what.to_owned(), value: value.to_string(), advice: advice.to_owned() }
    }
}

/// Compares the facts of all ranks with rank 0's. All ranks call it, and all get the same answer.
///
/// # Errors
/// [`RankError::Differs`] names the first rank that differs; a rank that is gone.
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
            let theirs = read(&message)
                .ok_or_else(|| wrong_message(communicator, from, "facts that end early".into()))?;
            let host = communicator.host(from);
            differs = differs.and(compare((from, host), facts, &theirs));
        }
        // no rank continues before rank 0 has compared the facts of all
        if let Err(error) = differs {
            communicator.fail(&error.to_string());
            return Err(error);
        }
        return (1..communicator.ranks()).try_for_each(|to| communicator.send(to, Channel::Commands, &[]));
    }
    communicator.send(0, Channel::Answers, &out.0)?;
    communicator.receive(0, Channel::Commands, &mut message)?;
    let theirs =
        read(&message).ok_or_else(|| wrong_message(communicator, 0, "facts that end early".into()))?;
    let own = (communicator.rank(), communicator.host(communicator.rank()));
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

/// The first fact in which a rank differs from rank 0.
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

/// The least of what the ranks have. All ranks call it, and all get the same.
pub fn on_least(communicator: &dyn Communicator, own: u64) -> Result<u64, RankError> {
    let mut message = Vec::new();
    let mut receive = |from, channel| {
        communicator.receive(from, channel, &mut message)?;
        Reader(&message).u64().ok_or_else(|| wrong_message(communicator, from, "no number".into()))
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
    fn all_ranks_take_the_least() {
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
        for (rank, result) in found.into_iter().enumerate() {
            let error = result.unwrap_err().to_string();
            let text = "rank 1 on host this process differs from rank 0 in precision: exact, there default; give all the same precision";
            assert!(
                error.contains(text) || error.contains("rank 1 on host this process is gone"),
                "rank {rank}: {error}"
            );
        }
    }

    #[test]
    fn ranks_that_agree_go_on() {
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
