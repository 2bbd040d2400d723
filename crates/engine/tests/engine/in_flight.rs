//! Several steps in flight over ranks that share a model layer by layer: that they overlap, their bits, and what is left of those that end early.

use crate::support::demo;
use crate::support::jobs::{HeardEvents, alone, engine, nothing_is_left, options, prompt, request};
use crate::support::ranks::{TappedRank, on_ranks, on_ranks_over};
use latent_backend::{Backend, Channel, Communicator, RankError};
use latent_engine::cache::Sequence;
use latent_engine::scheduler::{Job, JobError, JobEvent, Scheduler, SchedulerOptions};
use latent_engine::{Engine, EngineError, EngineOptions, LogitsRequest, Request, SeqInput};
use latent_formats::Checkpoint;
use latent_hosts::LocalRank;
use latent_text::Tokenizer;
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

fn checkpoint() -> Arc<Checkpoint> {
    Arc::new(Checkpoint::open(&demo::models().join("mla-demo-Q4_K_M.gguf")).unwrap())
}

fn one_thread(context: usize, cache: usize) -> EngineOptions {
    EngineOptions { threads: Some(1), ..options(context, cache) }
}

/// What rank 0 has told rank 1 to do, and what rank 1 has answered.
#[derive(Default)]
struct MessageCounts {
    /// Results of rank 1 that wait until the next step was submitted.
    held: usize,
    told: usize,
    returned: usize,
}

#[derive(Default)]
struct MessageWatch {
    counts: Mutex<MessageCounts>,
    changed: Condvar,
}

impl MessageWatch {
    fn counts(&self) -> MutexGuard<'_, MessageCounts> {
        self.counts.lock().unwrap()
    }
}

/// A rank whose results arrive only after rank 0 has submitted another step: an engine that runs
/// steps one by one waits for ever.
fn watched(rank: LocalRank, watch: &Arc<MessageWatch>) -> Arc<dyn Communicator> {
    let (me, watch) = (rank.rank(), Arc::clone(watch));
    TappedRank::sends(rank, move |to, channel, _| {
        let mut counts = watch.counts();
        match (me, to, channel) {
            (0, 1, Channel::Commands) => counts.told += usize::from(counts.held > 0),
            (1, 0, Channel::Values) if counts.returned < counts.held => {
                counts.returned += 1;
                let mine = counts.returned;
                let waits = |counts: &mut MessageCounts| counts.told <= mine;
                let limit = Duration::from_secs(60);
                let (waited, out) = watch.changed.wait_timeout_while(counts, limit, waits).unwrap();
                if out.timed_out() {
                    let problem = "no step was submitted while another was here".to_owned();
                    return Err(RankError::Setup(problem));
                }
                counts = waited;
            }
            _ => {}
        }
        watch.changed.notify_all();
        drop(counts);
        Ok(())
    })
}

/// Logits of tokens that are the same in every run, for some sequences that decode in turn, with as many steps in flight as can be.
fn in_turn(engine: &mut Engine, sequences: usize, tokens: usize) -> Vec<Vec<Vec<f32>>> {
    let mut logits = vec![Vec::new(); sequences];
    let mut of_each: Vec<Sequence> = (0..sequences).map(|_| Sequence::default()).collect();
    let mut tickets = VecDeque::new();
    let most = engine.steps_in_flight();
    let mut collect = |engine: &mut Engine, tickets: &mut VecDeque<_>| {
        let (number, ticket): (usize, _) = tickets.pop_front().unwrap();
        engine.collect(ticket, &mut |_, _, row| logits[number].push(row.to_vec())).unwrap();
    };
    for at in 0..tokens {
        for (number, sequence) in of_each.iter_mut().enumerate() {
            if tickets.len() == most.min(sequences) {
                collect(engine, &mut tickets);
            }
            let token = [24 + (at * 37 + number * 11) as u32 % 900];
            let mut inputs = [SeqInput::tokens(sequence, &token, LogitsRequest::Last)];
            let (ticket, outcome) = engine.submit(&mut inputs).unwrap();
            outcome.all().unwrap();
            tickets.push_back((number, ticket.unwrap()));
        }
    }
    while !tickets.is_empty() {
        collect(engine, &mut tickets);
    }
    logits
}

fn one_by_one(engine: &mut Engine, sequences: usize, tokens: usize) -> Vec<Vec<Vec<f32>>> {
    let run = |number: usize| {
        let mut sequence = Sequence::default();
        let mut logits = Vec::new();
        for at in 0..tokens {
            let token = [24 + (at * 37 + number * 11) as u32 % 900];
            let mut inputs = [SeqInput::tokens(&mut sequence, &token, LogitsRequest::Last)];
            engine.step(&mut inputs, &mut |_, _, row| logits.push(row.to_vec())).unwrap().all().unwrap();
        }
        logits
    };
    (0..sequences).map(run).collect()
}

#[test]
fn a_step_is_submitted_while_the_next_rank_works_on_another() {
    let (checkpoint, watch) = (checkpoint(), Arc::new(MessageWatch::default()));
    let communicator = |rank| watched(rank, &watch);
    let steps = 2 * 6;
    let (led, followed) = on_ranks_over(
        &communicator,
        "pipeline=2",
        &latent_backends::cpu,
        &checkpoint,
        &|_| one_thread(256, 256),
        |mut engine| {
            // the last step has none after it
            watch.counts().held = steps - 1;
            in_turn(&mut engine, 2, 6)
        },
    );
    let shared = led.unwrap();
    followed.into_iter().for_each(|result| result.unwrap());
    let counts = watch.counts();
    // and told to end
    assert_eq!((counts.told, counts.returned), (steps + 1, steps - 1));
    drop(counts);
    let options = one_thread(256, 256);
    let mut alone = Engine::load(&*latent_backends::cpu(), &checkpoint, &options, &mut |_, _| {}).unwrap();
    assert!(shared == one_by_one(&mut alone, 2, 6), "not the bits of one host");
}

#[test]
fn a_scheduler_keeps_every_rank_at_work() {
    let (checkpoint, watch) = (checkpoint(), Arc::new(MessageWatch::default()));
    let communicator = |rank| watched(rank, &watch);
    let tokenizer = Arc::new(Tokenizer::from_checkpoint(&checkpoint).unwrap());
    let (led, _) = on_ranks_over(
        &communicator,
        "pipeline=2",
        &latent_backends::cpu,
        &checkpoint,
        &|_| one_thread(256, 1024),
        |engine| {
            let options = SchedulerOptions { prefix_cache: false, ..SchedulerOptions::default() };
            let mut scheduler = Scheduler::new(engine, Arc::clone(&tokenizer), options);
            for kind in 0..4 {
                let request = request(&tokenizer, prompt(kind, 3), 12);
                scheduler.submit(Job { request, ..Job::default() }).unwrap();
            }
            // the prompts are one step: they are short
            let mut heard = HeardEvents::default();
            heard.steps(&mut scheduler, 2);
            // two steps for each token but the last ones; nothing else is told to other ranks
            watch.counts().held = 16;
            heard.run(&mut scheduler);
            let stats = nothing_is_left(&mut scheduler);
            assert_eq!(stats.finished, 4);
        },
    );
    led.unwrap();
    assert_eq!(watch.counts().returned, 16);
}

type MakeBackend = fn() -> Box<dyn Backend>;

#[test]
fn steps_in_flight_have_the_bits_of_one_host() {
    let checkpoint = checkpoint();
    let backends: [MakeBackend; 2] = [latent_backends::cpu, latent_backends::reference];
    for (backend, tokens) in backends.into_iter().zip([5, 2]) {
        let options = one_thread(256, 512);
        let mut alone = Engine::load(&*backend(), &checkpoint, &options, &mut |_, _| {}).unwrap();
        let expected = one_by_one(&mut alone, 4, tokens);
        for (partition, depth) in [("pipeline=2", 2), ("pipeline=3", 3), ("pipeline=2,experts=2", 2)] {
            let (led, followed) =
                on_ranks(partition, &backend, &checkpoint, &|_| one_thread(256, 512), |engine| {
                    assert_eq!(engine.steps_in_flight(), depth, "{partition}");
                    let logits = in_turn(engine, 4, tokens);
                    // with steps in flight the bits are those of one after the other on the same ranks
                    assert!(logits == one_by_one(engine, 4, tokens), "{partition}");
                    logits
                });
            assert!(partition.contains("experts") || led.unwrap() == expected, "{partition}");
            followed.into_iter().for_each(|result| result.unwrap());
        }
    }
}

#[test]
fn steps_for_which_there_is_no_room_are_refused() {
    let checkpoint = checkpoint();
    let refused = |engine: &mut Engine| {
        let mut sequence = Sequence::default();
        let mut inputs = [SeqInput::tokens(&mut sequence, &[24], LogitsRequest::Last)];
        let error = engine.submit(&mut inputs).unwrap_err();
        assert!(matches!(error, EngineError::Options(_)) && sequence.is_empty(), "{error}");
        error.to_string()
    };
    let load = |options: &EngineOptions| {
        Engine::load(&*latent_backends::cpu(), &checkpoint, options, &mut |_, _| {}).unwrap()
    };
    let mut alone = load(&one_thread(256, 256));
    assert!(refused(&mut alone).contains("a model of one stretch of layers"));
    let (led, _) =
        on_ranks("pipeline=2", &latent_backends::cpu, &checkpoint, &|_| one_thread(256, 256), |engine| {
            let expected = one_by_one(engine, 2, 2);
            let mut sequences = [Sequence::default(), Sequence::default()];
            let mut tickets: Vec<_> = sequences
                .iter_mut()
                .enumerate()
                .map(|(number, sequence)| {
                    let token = [24 + number as u32 * 11];
                    let mut inputs = [SeqInput::tokens(sequence, &token, LogitsRequest::Last)];
                    engine.submit(&mut inputs).unwrap().0.unwrap()
                })
                .collect();
            assert!(refused(engine).contains("2 steps are in flight, as many as there can be"));
            // those that are in flight are as they were, and then there is room
            let mut logits = Vec::new();
            engine.collect(tickets.remove(0), &mut |_, _, row| logits.push(row.to_vec())).unwrap();
            assert!(logits[0] == expected[0][0]);
            let mut inputs = [SeqInput::tokens(&mut sequences[0], &[61], LogitsRequest::Last)];
            tickets.push(engine.submit(&mut inputs).unwrap().0.unwrap());
            for ticket in tickets {
                engine.collect(ticket, &mut |_, _, row| logits.push(row.to_vec())).unwrap();
            }
            assert!(logits[1..] == [expected[1][0].clone(), expected[0][1].clone()]);
        });
    led.unwrap();
}

/// Prompts in chunks, one of them stopped, and a ticket that is never collected.
fn prompts(engine: &mut Engine) -> Vec<Vec<f32>> {
    let tokens = prompt(3, 90);
    let mut heard = Vec::new();
    let mut sequence = Sequence::default();
    let mut hear = |row: usize, logits: &[f32]| heard.push((row, logits.to_vec()));
    let rows = LogitsRequest::Rows(&[3, 40, 89]);
    engine.prefill(&mut sequence, &tokens, 16, rows, &mut hear, &mut |_| true).unwrap();
    assert_eq!(
        (sequence.len(), heard.iter().map(|(row, _)| *row).collect::<Vec<_>>()),
        (90, vec![3, 40, 89])
    );
    let mut stopped = Sequence::default();
    let mut quiet = |_: usize, _: &[f32]| {};
    let error =
        engine.prefill(&mut stopped, &tokens, 16, LogitsRequest::Last, &mut quiet, &mut |done| done < 32);
    assert!(matches!(error, Err(EngineError::Stopped)), "{error:?}");
    let ran = stopped.len();
    assert!((32..90).contains(&ran) && ran.is_multiple_of(16), "{ran} tokens");
    // a stopped prompt can be continued
    let mut last = |_: usize, logits: &[f32]| heard.push((89, logits.to_vec()));
    engine.prefill(&mut stopped, &tokens[ran..], 16, LogitsRequest::Last, &mut last, &mut |_| true).unwrap();
    let mut inputs = [SeqInput::tokens(&mut stopped, &[30], LogitsRequest::Last)];
    if engine.steps_in_flight() > 1 {
        let (forgotten, _) = engine.submit(&mut inputs).unwrap();
        assert!(forgotten.is_some());
    } else {
        engine.step(&mut inputs, &mut |_, _, _| {}).unwrap().all().unwrap();
    }
    let mut inputs = [SeqInput::tokens(&mut stopped, &[31], LogitsRequest::Last)];
    engine
        .step(&mut inputs, &mut |_, row, logits| heard.push((row, logits.to_vec())))
        .unwrap()
        .all()
        .unwrap();
    heard.into_iter().map(|(_, logits)| logits).collect()
}

#[test]
fn chunks_of_a_prompt_are_in_flight_together() {
    let checkpoint = checkpoint();
    let options = one_thread(256, 512);
    let mut alone = Engine::load(&*latent_backends::cpu(), &checkpoint, &options, &mut |_, _| {}).unwrap();
    let expected = prompts(&mut alone);
    for partition in ["pipeline=2", "pipeline=3"] {
        let lead = |engine: &mut Engine| {
            let found = prompts(engine);
            assert_eq!(engine.kv_cache().available(), 512, "every block is given back");
            found
        };
        let (led, _) =
            on_ranks(partition, &latent_backends::cpu, &checkpoint, &|_| one_thread(256, 512), lead);
        assert!(led.unwrap() == expected, "{partition}");
    }
}

#[test]
fn jobs_over_ranks_have_the_text_that_they_have_alone() {
    let (mut engine, tokenizer) = engine(448, 448);
    // as many that some are preempted with steps in flight, prompts in several chunks, seeds, and one prefix for two
    let requests: Vec<Request> =
        [(0, 100, 120), (1, 109, 120), (2, 118, 120), (3, 127, 60), (0, 136, 60), (4, 1, 70)]
            .into_iter()
            .map(|(kind, len, tokens)| {
                let mut request = request(&tokenizer, prompt(kind, len), tokens);
                if kind % 2 == 1 {
                    (request.sampling.temperature, request.sampling.seed) = (0.9, u64::from(kind));
                }
                request
            })
            .collect();
    let answers: Vec<_> = requests.iter().map(|request| alone(&mut engine, &tokenizer, request)).collect();
    drop(engine);
    let checkpoint = checkpoint();
    for (partition, prefix_cache) in [("pipeline=2", true), ("pipeline=3", false)] {
        let lead = |engine: Engine| {
            let options = SchedulerOptions { prefix_cache, ..SchedulerOptions::default() };
            let mut scheduler = Scheduler::new(engine, Arc::clone(&tokenizer), options);
            let mut heard = HeardEvents::default();
            let (mut ids, mut cancelled) = (Vec::new(), Vec::new());
            for (n, request) in requests.iter().enumerate() {
                let job = || Job { request: request.clone(), ..Job::default() };
                ids.push(scheduler.submit(job()).unwrap());
                // another one, cancelled after 1 + n steps, wherever its tokens are then
                let other = scheduler.submit(job()).unwrap();
                heard.steps(&mut scheduler, 1 + n);
                scheduler.cancel(other);
                cancelled.push(other);
            }
            heard.run(&mut scheduler);
            ids.iter().zip(&answers).for_each(|(id, answer)| heard.is_answer(*id, answer));
            assert!(cancelled.iter().all(|id| heard.is_over(*id)));
            assert!(scheduler.is_idle());
            nothing_is_left(&mut scheduler)
        };
        let own = |rank: LocalRank| -> Arc<dyn Communicator> { Arc::new(rank) };
        let cpu = latent_backends::cpu;
        let (led, followed) =
            on_ranks_over(&own, partition, &cpu, &checkpoint, &|_| one_thread(448, 448), lead);
        let stats = led.unwrap();
        assert!(stats.preemptions > 0 && stats.finished >= 6, "{partition}: {stats:?}");
        followed.into_iter().for_each(|result| result.unwrap());
    }
}

/// A rank that fails at its n-th command.
fn failing(rank: LocalRank, command: usize) -> Arc<dyn Communicator> {
    let (commanded, left) = (rank.rank() == 1, Mutex::new(command));
    TappedRank::received(rank, move |_, channel| {
        let mut left = left.lock().unwrap();
        *left -= usize::from(commanded && channel == Channel::Commands);
        if *left == 0 { Err(RankError::Setup("no memory for 3 GiB".into())) } else { Ok(()) }
    })
}

#[test]
fn a_rank_that_fails_fails_what_is_in_flight_and_leaves_nothing() {
    let checkpoint = checkpoint();
    let tokenizer = Arc::new(Tokenizer::from_checkpoint(&checkpoint).unwrap());
    // facts and other messages of loading come before the steps
    for command in [12, 13, 20] {
        let failing = |rank| failing(rank, command);
        let lead = |engine: Engine| {
            let mut scheduler = Scheduler::new(engine, Arc::clone(&tokenizer), SchedulerOptions::default());
            let submit = |kind| {
                let request = request(&tokenizer, prompt(kind, 80), 40);
                scheduler.submit(Job { request, ..Job::default() }).unwrap()
            };
            let ids: Vec<_> = (0..5).map(submit).collect();
            let (mut heard, mut failures) = (HeardEvents::default(), Vec::new());
            while !scheduler.is_idle() {
                let stepped = scheduler.step(&mut |id, event: JobEvent| heard.hear(id, event));
                failures.extend(stepped.err().map(|error| error.to_string()));
                assert!(failures.len() < 20, "{failures:?}");
            }
            let told = "rank 1 on host this process failed: no memory for 3 GiB";
            assert!(failures[0].contains(told), "{failures:?}");
            for id in ids {
                assert!(matches!(heard.failed(id), JobError::Engine(text) if text.contains(told)));
            }
            nothing_is_left(&mut scheduler);
        };
        let cpu = latent_backends::cpu;
        let (led, followed) =
            on_ranks_over(&failing, "pipeline=2", &cpu, &checkpoint, &|_| one_thread(256, 1024), lead);
        led.unwrap();
        assert!(followed[0].as_ref().unwrap_err().to_string().contains("no memory for 3 GiB"));
    }
}
