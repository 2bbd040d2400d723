//! `latent serve --restart`: starts the ranks of a model and restarts them when one fails.
//!
//! MPI ends a whole job if one rank fails, so the restart happens outside of it. The ranks end with
//! this process: rank 0 runs with `--stop-at-eof`, and its standard input is a pipe from this
//! process.

use crate::args::ServeArgs;
use crate::exit::{self, UsageError};
use crate::{interrupt, job, output};
use anyhow::Result;
use std::ffi::OsString;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Interval of checks for signals and ended ranks.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// A job that ends sooner than this has probably failed to start.
const MIN_RUN_TIME: Duration = Duration::from_secs(30);

/// Pauses in milliseconds before a restart, by the number of consecutive early ends. After the last
/// one the command fails.
// The first pause follows a job that has run for at least MIN_RUN_TIME.
const PAUSES_MS: [u64; 7] = [200, 200, 500, 1000, 2000, 5000, 10_000];

pub(super) fn run(args: &ServeArgs) -> Result<()> {
    let launch = launch(args)?;
    let mut soon = 0;
    loop {
        let began = Instant::now();
        let status = watch(start(&launch)?)?;
        if interrupt::asked() || status.success() {
            return Ok(());
        }
        let code = status.code().and_then(|code| u8::try_from(code).ok());
        // Wrong usage or an unsupported model fails in the same way each time.
        if let Some(code) = code.filter(|code| exit::is_final(*code)) {
            return Err(exit::ReportedExit(code).into());
        }
        soon = if began.elapsed() < MIN_RUN_TIME { soon + 1 } else { 0 };
        let Some(pause) = PAUSES_MS.get(soon) else {
            let problem = format!(
                "the ranks ended {soon} times soon after their start ({status}): see their output above"
            );
            return Err(exit::ReportedProblems(problem).into());
        };
        output::note(&format!("the ranks have ended ({status}): restarting them"));
        let until = Instant::now() + Duration::from_millis(*pause);
        while Instant::now() < until && !interrupt::asked() {
            std::thread::sleep(POLL_INTERVAL);
        }
        if interrupt::asked() {
            return Ok(());
        }
    }
}

/// The command line that starts all ranks.
fn launch(args: &ServeArgs) -> Result<Vec<OsString>> {
    if job::launched() {
        let problem =
            "--restart starts mpirun itself: run `latent serve` without mpirun, with --launch \"mpirun …\"";
        return Err(UsageError(problem.into()).into());
    }
    let mut command: Vec<OsString> = match (&args.server.launch, &args.engine.partition) {
        (Some(launch), _) => launch.split_whitespace().map(Into::into).collect(),
        (None, Some(partition)) => {
            // Open MPI binds ranks to cores or sockets by default, but Latent places its threads
            // itself.
            ["mpirun", "-n", &partition.ranks().to_string(), "--bind-to", "none"].map(Into::into).into()
        }
        (None, None) => {
            let problem =
                "--restart is for ranks: add --partition, or --launch with the command that starts them";
            return Err(UsageError(problem.into()).into());
        }
    };
    if command.is_empty() {
        return Err(UsageError("--launch: the command is empty".into()).into());
    }
    if !cfg!(feature = "mpi") {
        return Err(UsageError(format!("--restart: {}", job::WITHOUT_MPI)).into());
    }
    command.push(std::env::current_exe()?.into_os_string());
    command.extend(of_ranks(std::env::args_os().skip(1)));
    command.push("--stop-at-eof".into());
    Ok(command)
}

/// The arguments of this process that the ranks get, too.
fn of_ranks(args: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut rank_args = Vec::new();
    let mut args = args.peekable();
    while let Some(arg) = args.next() {
        match arg.to_str() {
            Some("--restart") => {}
            Some("--launch") => {
                args.next();
            }
            Some(other) if other.starts_with("--launch=") => {}
            _ => rank_args.push(arg),
        }
    }
    rank_args
}

fn start(launch: &[OsString]) -> Result<Child> {
    let mut command = Command::new(&launch[0]);
    command.args(&launch[1..]).stdin(Stdio::piped());
    // A process group of its own keeps the terminal's Ctrl-C from mpirun, which would kill the
    // ranks. This process lets rank 0 finish its requests instead.
    #[cfg(unix)]
    std::os::unix::process::CommandExt::process_group(&mut command, 0);
    let wrong = |error| UsageError(format!("--launch: {} cannot be started: {error}", launch[0].display()));
    Ok(command.spawn().map_err(wrong)?)
}

/// Waits for the ranks to end. Ends them after a signal.
fn watch(mut ranks: Child) -> Result<ExitStatus> {
    let guard = interrupt::guard_child(&ranks);
    let mut input = ranks.stdin.take();
    loop {
        if let Some(status) = ranks.try_wait()? {
            // `try_wait` has reaped the child, so the system may give its process ID to another
            // program, which a signal handler must not end.
            drop(guard);
            return Ok(status);
        }
        if interrupt::asked() {
            // Closing the pipe is end-of-file for rank 0, which finishes its requests
            // (`--stop-at-eof`) and reports it.
            drop(input.take());
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

#[cfg(test)]
mod tests {
    use super::of_ranks;

    #[test]
    fn ranks_get_all_arguments_except_restart_and_launch() {
        let given = "serve --restart -m a.gguf --launch mpirun --launch=x --port 1";
        let rank_args: Vec<String> = of_ranks(given.split(' ').map(Into::into))
            .into_iter()
            .map(|arg| arg.into_string().unwrap())
            .collect();
        assert_eq!(rank_args.join(" "), "serve -m a.gguf --port 1");
    }
}
