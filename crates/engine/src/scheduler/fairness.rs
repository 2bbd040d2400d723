//! Fair shares by key: each key has a counter of the tokens that it was served, and the smallest counter goes first (the virtual token counter of
//! Sheng et al., "Fairness in Serving Large Language Models", 2024).
//!
//! A key that comes, or comes back, starts no lower than the smallest counter of those that have jobs, and than the virtual time, which is what a key
//! would have been served that always had jobs (weighted fair queueing): it is served soon, but
//! gets no credit for the time it was idle. Any service advances the virtual time, so that no key
//! starves, however many new keys arrive.

use super::job::FairnessKey;
use std::collections::HashMap;

/// Weight of a chosen token in prompt tokens, which share the work of a step.
pub(super) const CHOSEN: u64 = 2;

/// Keys without jobs that are remembered.
const REMEMBERED: usize = 4096;

/// The counters.
#[derive(Debug, Default)]
pub(super) struct Fairness {
    keys: HashMap<FairnessKey, Counter>,
    /// The counter of the key that left last.
    last: u64,
    /// The virtual time, and the tokens since its last advance.
    time: u64,
    rest: u64,
}

#[derive(Debug, Default)]
struct Counter {
    served: u64,
    jobs: usize,
}

impl Fairness {
    /// A job of this key has come.
    pub(super) fn enter(&mut self, key: FairnessKey) {
        let active = self.keys.values().filter(|counter| counter.jobs > 0);
        let smallest = active.map(|counter| counter.served).min().unwrap_or(self.last);
        let counter = self.keys.entry(key).or_default();
        if counter.jobs == 0 {
            counter.served = counter.served.max(smallest).max(self.time);
        }
        counter.jobs += 1;
    }

    /// A job of this key has gone.
    pub(super) fn leave(&mut self, key: FairnessKey) {
        if let Some(counter) = self.keys.get_mut(&key) {
            counter.jobs = counter.jobs.saturating_sub(1);
            self.last = counter.served;
        }
        if self.keys.len() > REMEMBERED {
            self.keys.retain(|_, counter| counter.jobs > 0);
        }
    }

    /// Tokens of a prompt that have run, or chosen ones times [`CHOSEN`].
    pub(super) fn charge(&mut self, key: FairnessKey, tokens: u64) {
        if let Some(counter) = self.keys.get_mut(&key) {
            counter.served += tokens;
        }
        let active = self.keys.values().filter(|counter| counter.jobs > 0).count().max(1) as u64;
        self.rest += tokens;
        self.time += self.rest / active;
        self.rest %= active;
    }

    /// What a key was served: the smallest goes first.
    pub(super) fn served(&self, key: FairnessKey) -> u64 {
        self.keys.get(&key).map_or(self.last, |counter| counter.served)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_comes_later_is_served_soon_but_not_for_free() {
        let (a, b, c) = (FairnessKey(1), FairnessKey(2), FairnessKey(3));
        let mut fairness = Fairness::default();
        fairness.enter(a);
        fairness.charge(a, 1000);
        fairness.enter(b);
        assert_eq!((fairness.served(a), fairness.served(b)), (1000, 1000));
        fairness.charge(b, 10);
        fairness.charge(a, 500);
        fairness.enter(c);
        // the mean of what a and b were served since b came
        assert_eq!(fairness.served(c), 1255);
        // who leaves and comes back has what it had
        fairness.leave(a);
        fairness.enter(a);
        assert_eq!(fairness.served(a), 1500);
        // a key does not gain by leaving with the smallest counter
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
        // the first was served before the others came to it
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
        // seven keys that take turns have 300 tokens each after 7 * 300 / 110 rounds
        assert!(rounds.is_some_and(|rounds| rounds <= 30), "{rounds:?}");
    }
}
