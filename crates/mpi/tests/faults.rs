//! Ranks that are killed, stopped, hang, panic or run out of memory at phase boundaries of a short
//! run. In each case all ranks end within 5 s, with an error that names the rank, and no process is
//! left behind. `LATENT_ALL_FAULTS` in the environment doubles the number of cases. Built with the
//! feature `mpi`; skipped with a message if mpirun is not installed.
#![cfg(feature = "mpi")]
#![allow(missing_docs, clippy::print_stdout, clippy::print_stderr, reason = "tests")]

#[path = "support/faulty.rs"]
mod faulty;
#[path = "support/job.rs"]
mod job;
#[path = "support/stalls.rs"]
mod stalls;

use faulty::{FaultKind, FaultyRank, RankFault};
use job::{FAULT, MpiJob, MpiJobResult, PARTITION, PATIENCE, STRUCK};
use latent_backend::{Channel, Communicator};
use latent_engine::cache::Sequence;
use latent_engine::{Engine, EngineOptions, Hosts, LogitsRequest, Rank};
use latent_formats::Checkpoint;
use latent_mpi::MpiRank;
use stalls::StallWatch;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Time in which a fault must end every rank, plus the time for which the machine stalls.
const WITHIN: Duration = Duration::from_secs(5);

/// Startup limit of ranks. They need less, even on a loaded machine.
const COMES_UP: Duration = Duration::from_secs(30);

/// Startup limit of jobs with a rank that never joins: the test waits for all of it.
const NEVER_UP: Duration = Duration::from_secs(3);

/// After a stall of this length, a job that succeeds in spite of a stopped rank is run again.
const STOOD_STILL: Duration = Duration::from_secs(1);

/// Time after which a rank that computes nothing counts as hung.
const HUNG_AFTER: Duration = Duration::from_secs(2);

/// Bytes of a message during which the sender is stopped, and the time after which it is.
const LARGE: usize = 1 << 27;
const UNDER_WAY: Duration = Duration::from_millis(5);

/// A rank of the jobs below. Run alone, it does nothing.
#[test]
#[ignore = "is run by the other test, under mpirun"]
fn rank() {
    let Ok(partition) = std::env::var(PARTITION) else { return };
    let struck: PathBuf = std::env::var_os(STRUCK).unwrap().into();
    let patience = Duration::from_secs(std::env::var(PATIENCE).unwrap().parse().unwrap());
    let fault: Option<RankFault> = std::env::var(FAULT).ok().map(|text| text.parse().unwrap());
    let before = |fault: &RankFault| fault.message.is_none() && fault.is_for(&faulty::launched_rank());
    if let Some(fault) = fault.filter(before) {
        fault.strike(&struck);
    }
    let rank = match latent_mpi::start(patience) {
        Ok(rank) => Arc::new(rank),
        Err(error) => {
            eprintln!("error: {error}");
            std::process::exit(1)
        }
    };
    let faulty = Arc::new(FaultyRank::new(rank.clone(), fault, struck.clone()));
    let result = match fault {
        Some(fault) if fault.kind == FaultKind::Cut => exchange(&rank, fault, &struck),
        // Other faults run without hang detection, since a busy machine could trigger it.
        Some(fault) if fault.kind == FaultKind::Hang => run(&partition, faulty.clone(), Some(HUNG_AFTER)),
        _ => run(&partition, faulty.clone(), None),
    };
    if let Err(error) = &result {
        rank.fail(error);
    } else {
        println!("\nboundaries of rank {}: {}: {}", rank.rank(), faulty.of_loading(), faulty.boundaries());
    }
    if let Err(error) = result.and_then(|()| rank.finish().map_err(|error| error.to_string())) {
        eprintln!("error: {error}");
        rank.abort(1);
    }
    std::process::exit(0)
}

/// Two ranks send each other a long message, during which one of them is stopped.
fn exchange(rank: &MpiRank, fault: RankFault, struck: &Path) -> Result<(), String> {
    let (other, mut message) = (1 - rank.rank(), vec![1; LARGE]);
    rank.send(other, Channel::Values, &message).map_err(|error| error.to_string())?;
    if rank.rank() == fault.rank {
        std::thread::sleep(UNDER_WAY);
        fault.strike(struck);
    }
    rank.receive(other, Channel::Values, &mut message).map_err(|error| error.to_string())?;
    Ok(())
}

/// A short run: a prompt in two chunks, two tokens, and a cache that is saved and restored.
fn run(partition: &str, communicator: Arc<FaultyRank>, hung_after: Option<Duration>) -> Result<(), String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../engine/tests/fixtures/v3");
    let file = Arc::new(Checkpoint::open(&folder).map_err(|error| error.to_string())?);
    let options = EngineOptions {
        hosts: Some(Hosts {
            partition: partition.parse().map_err(|e| format!("{e}"))?,
            communicator: communicator.clone(),
        }),
        context: Some(64),
        cache_tokens: Some(256),
        threads: Some(1),
        hung_after,
        ..EngineOptions::default()
    };
    let loaded = Engine::load_rank(&*latent_backends::cpu(), &file, &options, &mut |_, _| {});
    let loaded = loaded.map_err(|error| error.to_string())?;
    communicator.loaded();
    match loaded {
        Rank::Leads(mut engine) => lead(&mut engine).map_err(|error| error.to_string()),
        Rank::Follows(follower) => follower.run().map_err(|error| error.to_string()),
    }
}

fn lead(engine: &mut Engine) -> Result<(), Box<dyn std::error::Error>> {
    let (tokens, folder) = ([1, 5, 9, 2, 7, 3, 8], tempfile::tempdir()?);
    let mut sequence = Sequence::default();
    engine.prefill(&mut sequence, &tokens[..5], 3, LogitsRequest::Last, &mut |_, _| {}, &mut |_| true)?;
    for token in &tokens[5..] {
        engine.prefill(&mut sequence, &[*token], 1, LogitsRequest::Last, &mut |_, _| {}, &mut |_| true)?;
    }
    let path = folder.path().join("saved");
    engine.save(&sequence, &path)?;
    let (restored, _) = engine.restore(&path)?;
    engine.release(restored);
    engine.release(sequence);
    Ok(())
}

/// A message of a new kind, before which a fault can strike.
#[derive(Debug)]
struct FaultBoundary {
    rank: usize,
    message: usize,
    /// Whether the rank has loaded by then.
    loaded: bool,
}

/// The first message of each kind on each rank. With all faults, also the second one.
fn boundaries(partition: &'static str, stalls: &StallWatch) -> Option<Vec<FaultBoundary>> {
    let ended = MpiJob { partition, fault: None, tcp: false }.run(COMES_UP, stalls)?;
    assert!(ended.status.success(), "{}{}", ended.out, ended.errors);
    let alike = usize::from(std::env::var_os("LATENT_ALL_FAULTS").is_some());
    let mut found = Vec::new();
    for line in ended.out.lines().filter_map(|line| line.strip_prefix("boundaries of rank ")) {
        let (rank, messages) = line.split_once(": ").unwrap();
        let rank = rank.parse().unwrap();
        let (loading, messages) = messages.split_once(": ").unwrap();
        let loading: usize = loading.parse().unwrap();
        let messages = messages.split(' ').map(|message| message.split_once('/').unwrap());
        let chosen = messages.filter(|(_, before)| before.parse::<usize>().unwrap() <= alike);
        found.extend(chosen.map(|(at, _)| {
            let message = at.parse().unwrap();
            FaultBoundary { rank, message, loaded: message >= loading }
        }));
    }
    Some(found)
}

/// The result of a job.
enum JobFinding {
    AsItShould {
        after: Duration,
    },
    /// A failure that a stalled or loaded machine may have caused.
    Perhaps(String),
    Wrong(String),
}

fn check(job: MpiJob, ended: &MpiJobResult) -> JobFinding {
    let MpiJob { partition, fault: Some(fault), tcp } = job else {
        return JobFinding::Wrong("no fault".into());
    };
    let told = |what: &str| {
        let MpiJobResult { status, errors, after, stalled, .. } = ended;
        let over = if tcp { " over TCP" } else { "" };
        format!(
            "{partition}{over}, {fault}: {what} (after {after:?}, stalls of {stalled:?}, {status}):\n{errors}"
        )
    };
    let Some(after) = ended.after else { return JobFinding::Wrong(told("has not struck")) };
    if ended.status.success() {
        // The memory that the process had already may have been enough.
        return match fault.kind {
            FaultKind::Starve => JobFinding::AsItShould { after: Duration::ZERO },
            FaultKind::Stop | FaultKind::Cut | FaultKind::Hang if ended.stalled > STOOD_STILL => {
                JobFinding::Perhaps(told("went on"))
            }
            _ => JobFinding::Wrong(told("went on")),
        };
    }
    let rank = fault.rank;
    let said =
        |cause: &str| ended.errors.contains(&format!("rank {rank} on host ")) && ended.errors.contains(cause);
    let named = match (fault.message, fault.kind) {
        (_, FaultKind::Hang) => said("failed: it is in a step but has computed nothing for 2 s"),
        (_, FaultKind::Panic) => said("failed: it panicked: on purpose"),
        (_, FaultKind::Misdirect) => said("failed: its MPI thread panicked: "),
        // Other ranks or mpirun name the rank.
        (Some(_), _) => [format!("rank {rank} on host "), format!("process rank {rank} with PID ")]
            .iter()
            .any(|name| ended.errors.contains(name)),
        (None, FaultKind::Stop) => ended.errors.contains("because a rank is missing"),
        // mpirun does not name the rank of a process that has not joined yet.
        (None, _) => ended.errors.contains("non-zero exit code") || ended.errors.contains("exited on signal"),
    };
    if !named {
        let problem = told("does not name the rank");
        // If mpirun ends all ranks before they notice the loss, only mpirun can name the killed
        // one. Under load it sometimes does not.
        return if fault.kind == FaultKind::Kill {
            JobFinding::Perhaps(problem)
        } else {
            JobFinding::Wrong(problem)
        };
    }
    if after > WITHIN + ended.stalled {
        return JobFinding::Perhaps(told("ended late"));
    }
    JobFinding::AsItShould { after }
}

/// Runs a job with a fault.
fn show(job: MpiJob, stalls: &StallWatch) -> JobFinding {
    let up = job.fault.is_none_or(|fault| fault.message.is_some());
    job.run(if up { COMES_UP } else { NEVER_UP }, stalls)
        .map_or_else(|| JobFinding::Wrong("no mpirun".into()), |ended| check(job, &ended))
}

/// The jobs of the test.
fn faults(stalls: &StallWatch) -> Option<Vec<MpiJob>> {
    let all = [FaultKind::Kill, FaultKind::Stop, FaultKind::Starve];
    let mut jobs = Vec::new();
    for partition in ["pipeline=3", "experts=2"] {
        let found = boundaries(partition, stalls)?;
        assert!(found.len() >= 20, "{partition}: {found:?}");
        for (i, FaultBoundary { rank, message, loaded }) in found.into_iter().enumerate() {
            // The pipeline has each fault at every boundary. The other partition has one of them at
            // each.
            let (everywhere, at) = (partition == "pipeline=3", i % all.len());
            let mut kinds = if everywhere { all.to_vec() } else { vec![all[at]] };
            // Hang detection covers steps, hence only loaded ranks. Only followers report their
            // panic.
            if loaded && (everywhere || at == 0) {
                kinds.push(FaultKind::Hang);
            }
            if loaded && everywhere {
                kinds.push(if i % 2 == 0 && rank > 0 { FaultKind::Panic } else { FaultKind::Misdirect });
            }
            let fault = |kind| Some(RankFault { rank, message: Some(message), kind });
            jobs.extend(kinds.into_iter().map(|kind| MpiJob { partition, fault: fault(kind), tcp: false }));
        }
    }
    let mut of_two = |rank, message, kind, tcp| {
        jobs.push(MpiJob { partition: "experts=2", fault: Some(RankFault { rank, message, kind }), tcp });
    };
    of_two(1, None, FaultKind::Kill, false);
    of_two(1, None, FaultKind::Stop, false);
    for rank in 0..2 {
        of_two(rank, Some(0), FaultKind::Cut, false);
        of_two(rank, Some(0), FaultKind::Cut, true);
    }
    Some(jobs)
}

#[test]
fn a_fault_at_any_phase_boundary_ends_every_rank() {
    let stalls = StallWatch::watch();
    let Some(jobs) = faults(&stalls) else {
        eprintln!("SKIPPED: no mpirun");
        return;
    };
    let (count, left, shown) = (jobs.len(), Mutex::new(jobs), Mutex::new(Vec::new()));
    // A job mostly waits until a silent rank counts as lost, so more jobs than cores can run.
    let at_once = std::thread::available_parallelism().map_or(4, |cores| 4 * cores.get()).clamp(4, 8);
    std::thread::scope(|scope| {
        for _ in 0..at_once {
            scope.spawn(|| {
                loop {
                    let Some(job) = left.lock().unwrap().pop() else { break };
                    let found = show(job, &stalls);
                    shown.lock().unwrap().push((job, found));
                }
            });
        }
    });
    let (mut longest, mut wrong, mut struck) = (Duration::ZERO, Vec::new(), 0);
    for (job, mut found) in shown.into_inner().unwrap() {
        // Failures that other jobs or programs have caused do not occur in two more runs alone.
        for _ in 0..2 {
            if let JobFinding::Perhaps(problem) = &found {
                eprintln!("again: {problem}");
                found = show(job, &stalls);
            }
        }
        match found {
            JobFinding::AsItShould { after } => {
                longest = longest.max(after);
                struck += usize::from(!after.is_zero());
            }
            JobFinding::Perhaps(problem) | JobFinding::Wrong(problem) => wrong.push(problem),
        }
    }
    assert!(wrong.is_empty(), "{} of {count}:\n{}", wrong.len(), wrong.join("\n"));
    // Only a few starved ranks survive.
    assert!(struck > count * 9 / 10, "{struck} of {count} faults had an effect");
    eprintln!("{count} faults, all ranks gone {:.2} s later at most", longest.as_secs_f64());
    job::wait_until_none_is_left(WITHIN).unwrap();
}
