//! Several steps in flight over the ranks of a pipeline: the steps overlap, their bits are those of
//! one step at a time, and steps that are cancelled or fail free their blocks.

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

/// The commands of rank 0 to rank 1, and the results of rank 1.
#[derive(Default)]
struct MessageCounts {
    /// Number of results of rank 1 that are held back until the next step was submitted.
    held: usize,
    commands: usize,
    results: usize,
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
            // Commands of loading the model are not counted: `held` is still 0 then.
            (0, 1, Channel::Commands) => counts.commands += usize::from(counts.held > 0),
            (1, 0, Channel::Values) if counts.results < counts.held => {
                counts.results += 1;
                let mine = counts.results;
                let waits = |counts: &mut MessageCounts| counts.commands <= mine;
                // A timeout fails the test: without it, an engine without overlap would hang.
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

/// Decodes fixed tokens of several sequences in turn, with the maximum number of steps in flight.
/// Gives the logits of each sequence.
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

/// The logits of `in_turn` with one step at a time.
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
            // No step follows the last one, so that its result must not be held back.
            watch.counts().held = steps - 1;
            in_turn(&mut engine, 2, 6)
        },
    );
    let shared = led.unwrap();
    followed.into_iter().for_each(|result| result.unwrap());
    let counts = watch.counts();
    // The last command ends rank 1.
    assert_eq!((counts.commands, counts.results), (steps + 1, steps - 1));
    drop(counts);
    let options = one_thread(256, 256);
    let mut alone = Engine::load(&*latent_backends::cpu(), &checkpoint, &options, &mut |_, _| {}).unwrap();
    assert!(shared == one_by_one(&mut alone, 2, 6), "not the bits of one host");
}

#[test]
fn a_scheduler_keeps_every_rank_busy() {
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
            // The prompts are short enough for a single step.
            let mut heard = HeardEvents::default();
            heard.steps(&mut scheduler, 2);
            // The jobs are divided into two steps for each token. The last results are not held
            // back, since no step follows them.
            watch.counts().held = 16;
            heard.run(&mut scheduler);
            let stats = nothing_is_left(&mut scheduler);
            assert_eq!(stats.finished, 4);
        },
    );
    led.unwrap();
    assert_eq!(watch.counts().results, 16);
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
                    // Ranks with experts sum in another order than one host, so that their bits are
                    // compared only with one step at a time on the same ranks.
                    assert!(logits == one_by_one(engine, 4, tokens), "{partition}");
                    logits
                });
            assert!(partition.contains("experts") || led.unwrap() == expected, "{partition}");
            followed.into_iter().for_each(|result| result.unwrap());
        }
    }
}

#[test]
fn steps_beyond_the_maximum_in_flight_are_refused() {
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
    assert!(refused(&mut alone).contains("a model with at least two stretches of layers"));
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
            assert!(refused(engine).contains("2 steps are in flight, which is the maximum"));
            // The refusal does not affect the steps in flight. Once one is collected, another fits.
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

/// Runs prompts in chunks, one of them stopped and continued, and drops a ticket uncollected.
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
    // A stopped prompt can be continued.
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
fn jobs_over_ranks_generate_the_same_text_as_alone() {
    let (mut engine, tokenizer) = engine(448, 448);
    // Enough jobs that some are preempted with steps in flight, prompts of several chunks, random
    // sampling, and two jobs with a common prefix.
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
                // A second job with the same request is cancelled after 1 + n steps, in whatever
                // phase it is then.
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

/// A rank 1 that fails at its `command`th command.
fn failing(rank: LocalRank, command: usize) -> Arc<dyn Communicator> {
    let (commanded, left) = (rank.rank() == 1, Mutex::new(command));
    TappedRank::received(rank, move |_, channel| {
        let mut left = left.lock().unwrap();
        *left -= usize::from(commanded && channel == Channel::Commands);
        if *left == 0 { Err(RankError::Setup("no memory for 3 GiB".into())) } else { Ok(()) }
    })
}

#[test]
fn a_failed_rank_fails_the_steps_in_flight_and_leaks_no_block() {
    let checkpoint = checkpoint();
    let tokenizer = Arc::new(Tokenizer::from_checkpoint(&checkpoint).unwrap());
    // The first commands belong to loading the model; steps follow them.
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
