//! Fair shares by key. Each key has a counter of the tokens that it was served, and the key with
//! the smallest counter goes first (the virtual token counter of Sheng et al., "Fairness in Serving
//! Large Language Models", 2024).
//!
//! A new or returning key starts no lower than the smallest counter of the keys with jobs. It is
//! served soon, but gets no credit for the time it was idle. The smallest counter alone would not
//! prevent starvation: while new keys keep arriving and others wait, it does not advance, and a key
//! that was served before never runs. A key therefore starts no lower than the virtual time either.
//! This is what a key that always had jobs would have been served (weighted fair queueing), and any
//! service advances it.

use super::job::FairnessKey;
use std::collections::HashMap;

/// Weight of a chosen token in prompt tokens, which share the work of a step.
pub(super) const CHOSEN: u64 = 2;

/// Maximum number of remembered keys. A server has a key per client, so idle ones must be dropped.
const MAX_KEYS: usize = 4096;

/// The counters.
#[derive(Debug, Default)]
pub(super) struct Fairness {
    keys: HashMap<FairnessKey, Counter>,
    /// The counter of the key whose job ended last. New keys start here if no key has jobs.
    last: u64,
    /// The virtual time.
    time: u64,
    /// Tokens that the division by the number of active keys has not added to `time` yet.
    remainder: u64,
}

#[derive(Debug, Default)]
struct Counter {
    served: u64,
    jobs: usize,
}

impl Fairness {
    /// Counts a submitted job of this key.
    pub(super) fn enter(&mut self, key: FairnessKey) {
        let active = self.keys.values().filter(|counter| counter.jobs > 0);
        let smallest = active.map(|counter| counter.served).min().unwrap_or(self.last);
        let counter = self.keys.entry(key).or_default();
        // `max` keeps the counter of a key that leaves and returns.
        if counter.jobs == 0 {
            counter.served = counter.served.max(smallest).max(self.time);
        }
        counter.jobs += 1;
    }

    /// Counts an ended job of this key.
    pub(super) fn leave(&mut self, key: FairnessKey) {
        if let Some(counter) = self.keys.get_mut(&key) {
            counter.jobs = counter.jobs.saturating_sub(1);
            self.last = counter.served;
        }
        // A dropped key that returns starts like a new one.
        if self.keys.len() > MAX_KEYS {
            self.keys.retain(|_, counter| counter.jobs > 0);
        }
    }

    /// Charges a key with prompt tokens that have run, or with chosen tokens times [`CHOSEN`].
    pub(super) fn charge(&mut self, key: FairnessKey, tokens: u64) {
        if let Some(counter) = self.keys.get_mut(&key) {
            counter.served += tokens;
        }
        let active = self.keys.values().filter(|counter| counter.jobs > 0).count().max(1) as u64;
        self.remainder += tokens;
        self.time += self.remainder / active;
        self.remainder %= active;
    }

    /// The counter of a key. The smallest goes first.
    pub(super) fn served(&self, key: FairnessKey) -> u64 {
        self.keys.get(&key).map_or(self.last, |counter| counter.served)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_key_starts_at_the_virtual_time() {
        let (a, b, c) = (FairnessKey(1), FairnessKey(2), FairnessKey(3));
        let mut fairness = Fairness::default();
        fairness.enter(a);
        fairness.charge(a, 1000);
        fairness.enter(b);
        assert_eq!((fairness.served(a), fairness.served(b)), (1000, 1000));
        fairness.charge(b, 10);
        fairness.charge(a, 500);
        fairness.enter(c);
        // The virtual time: 1000 for `a` alone, then the mean of 10 and 500.
        assert_eq!(fairness.served(c), 1255);
        // A key that leaves and returns keeps its counter.
        fairness.leave(a);
        fairness.enter(a);
        assert_eq!(fairness.served(a), 1500);
        // A key does not gain by leaving with the smallest counter.
        fairness.leave(b);
        fairness.charge(c, 200);
        fairness.enter(b);
        assert_eq!(fairness.served(b), 1455);
    }

    #[test]
    fn new_keys_do_not_starve_an_old_one() {
        let old = FairnessKey(0);
        let mut fairness = Fairness::default();
        fairness.enter(old);
        let mut served = 0;
        for round in 1..1000 {
            let new = FairnessKey(round);
            fairness.enter(new);
            let first = if fairness.served(new) < fairness.served(old) { new } else { old };
            fairness.charge(first, 10);
            served += u64::from(first == old);
            fairness.leave(new);
        }
        assert!(served >= 499, "{served}");
    }

    #[test]
    fn new_keys_that_always_wait_do_not_starve_one_that_was_served() {
        let mut fairness = Fairness::default();
        let mut waiting: Vec<FairnessKey> = (0..7).map(FairnessKey).collect();
        waiting.iter().for_each(|key| fairness.enter(*key));
        // Key 0 was served, the other keys were not.
        fairness.charge(waiting[0], 300);
        let mut next = 7;
        let rounds = (1..200).find(|_| {
            let at = (0..waiting.len()).min_by_key(|at| fairness.served(waiting[*at])).unwrap();
            let first = waiting.remove(at);
            fairness.charge(first, 110);
            fairness.leave(first);
            waiting.push(FairnessKey(next));
            fairness.enter(FairnessKey(next));
            next += 1;
            first == FairnessKey(0)
        });
        // Seven keys that take turns have 300 tokens each after 7 * 300 / 110 rounds.
        assert!(rounds.is_some_and(|rounds| rounds <= 30), "{rounds:?}");
    }
}
