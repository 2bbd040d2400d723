//! Jobs that are submitted, cancelled and overdue at random, over a cache that is too small for
//! them: every block is accounted for after every step, and every text is the same as alone.

use crate::support::exhaustive;
use crate::support::jobs::{HeardEvents, alone, engine, nothing_is_left, prompt, request, ticking};
use latent_engine::cache::{CacheSalt, DiskCache};
use latent_engine::scheduler::{
    FairnessKey, Job, JobChoice, JobError, JobEvent, JobId, Scheduler, SchedulerOptions,
};
use latent_engine::{Answer, Pooling, Request, StopReason};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

const POOLINGS: [Pooling; 4] = [Pooling::Mean, Pooling::Last, Pooling::First, Pooling::None];

/// SplitMix64.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % end as u64) as usize
    }

    fn one_in(&mut self, of: usize) -> bool {
        self.below(of) == 0
    }
}

/// A job of the test, with the index of its request.
struct AskedJob {
    id: JobId,
    request: usize,
}

/// Checks the events of a job against the answer of its request alone. Gives whether the job ran to
/// its end.
fn check(heard: &HeardEvents, asked: &AskedJob, answers: &[Answer]) -> bool {
    let (answer, tokens) = (&answers[asked.request], heard.tokens(asked.id));
    assert!(answer.tokens.starts_with(&tokens), "{:?}: {tokens:?}", asked.id);
    match heard.0[&asked.id].last() {
        Some(JobEvent::Finished { reason: StopReason::Interrupted, .. }) => false,
        Some(JobEvent::Finished { .. }) => {
            heard.is_answer(asked.id, answer);
            true
        }
        Some(JobEvent::Failed(JobError::Deadline { completion })) => {
            assert_eq!(*completion, tokens.len());
            false
        }
        Some(JobEvent::Embedded { .. }) => true,
        other => panic!("{:?}: {other:?}", asked.id),
    }
}

#[test]
fn random_jobs_generate_the_same_text_and_leak_no_block() {
    let (mut engine, tokenizer) = engine(384, 640);
    let mut requests: Vec<Request> = Vec::new();
    for (kind, len, tokens) in
        [(0, 3, 40), (1, 70, 30), (1, 150, 60), (2, 200, 100), (3, 64, 64), (2, 320, 200), (4, 129, 1)]
    {
        let mut request = request(&tokenizer, prompt(kind, len), tokens);
        if len % 2 == 0 {
            (request.sampling.temperature, request.sampling.seed) = (0.8, len as u64);
        }
        requests.push(request);
    }
    let answers: Vec<_> = requests.iter().map(|request| alone(&mut engine, &tokenizer, request)).collect();
    for seed in 0..if exhaustive() { 8 } else { 2 } {
        let mut random = Random(seed);
        let folder = tempfile::tempdir().unwrap();
        let (clock, passed) = ticking(500);
        let options = SchedulerOptions {
            max_running: 1 + random.below(8),
            prefix_cache: seed % 3 != 0,
            disk: (seed % 2 == 0).then(|| DiskCache { path: folder.path().to_owned(), max_bytes: 4 << 20 }),
            min_chunk: 1 + random.below(40),
            clock: Arc::clone(&clock),
            ..SchedulerOptions::default()
        };
        let mut scheduler = Scheduler::new(engine, Arc::clone(&tokenizer), options);
        let (mut heard, mut asked) = (HeardEvents::default(), Vec::<AskedJob>::new());
        for _ in 0..300 {
            if asked.len() < 60 && random.one_in(3) {
                let at = random.below(requests.len());
                let deadline =
                    random.one_in(6).then(|| clock() + Duration::from_millis(random.below(80) as u64));
                let job = Job {
                    request: requests[at].clone(),
                    salt: if random.one_in(4) { CacheSalt::of(b"other") } else { CacheSalt::SHARED },
                    key: FairnessKey(random.below(3) as u64),
                    priority: random.below(6) as i32 / 4,
                    deadline,
                    uncached: random.one_in(5),
                    embed: random.one_in(10),
                    pooling: POOLINGS[random.below(POOLINGS.len())],
                    processors: Vec::new(),
                };
                let seed = requests[at].sampling.seed;
                let more = if job.embed || !random.one_in(4) { 0 } else { 1 + random.below(2) };
                let choices = (0..more).map(|_| JobChoice { seed, processors: Vec::new() }).collect();
                let ids = scheduler.submit_choices(job, choices).unwrap();
                asked.extend(ids.into_iter().map(|id| AskedJob { id, request: at }));
            }
            if !asked.is_empty() && random.one_in(12) {
                scheduler.cancel(asked[random.below(asked.len())].id);
            }
            if random.one_in(50) {
                scheduler.clear_prefixes();
            }
            passed.fetch_add(random.below(2000) as u64, Ordering::Relaxed);
            heard.step(&mut scheduler);
        }
        heard.run(&mut scheduler);
        let ended = asked.iter().filter(|asked| check(&heard, asked, &answers)).count();
        let stats = nothing_is_left(&mut scheduler);
        println!("seed {seed}: {ended} of {} ended, {} preemptions", asked.len(), stats.preemptions);
        assert_eq!(stats.submitted, asked.len() as u64);
        assert_eq!(stats.finished + stats.cancelled + stats.failed, stats.submitted);
        assert_eq!((stats.finished, stats.disk.errors), (ended as u64, 0));
        engine = scheduler.into_engine();
    }
}
