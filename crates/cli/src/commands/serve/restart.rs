//! `latent serve --restart`: starts the ranks of a model, and starts them again when one dies.
//!
//! MPI ends a job with any of its ranks, so what starts them again is outside of it. The ranks end when this process does: rank 0 serves until its
//! standard input ends (`--stop-at-eof`), which is a pipe from here.

use crate::args::ServeArgs;
use crate::exit::{self, UsageError};
use crate::{interrupt, job, output};
use anyhow::Result;
use std::ffi::OsString;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// How often is looked whether something has happened.
const LOOK: Duration = Duration::from_millis(50);

/// A job that ends sooner than this has probably not come to serve.
const SOON: Duration = Duration::from_secs(30);

/// Milliseconds before a job that follows on one which did not end soon, on a first one that did, on a second; after that many it is given up.
const PAUSES: [u64; 7] = [200, 200, 500, 1000, 2000, 5000, 10_000];

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
        if let Some(code) = code.filter(|code| exit::is_final(*code)) {
            return Err(exit::ReportedExit(code).into());
        }
        soon = if began.elapsed() < SOON { soon + 1 } else { 0 };
        let Some(pause) = PAUSES.get(soon) else {
            let problem = format!(
                "the ranks ended {soon} times soon after their start ({status}): see what they said above"
            );
            return Err(exit::ReportedProblems(problem).into());
        };
        output::note(&format!("the ranks have ended ({status}): restarting them"));
        let until = Instant::now() + Duration::from_millis(*pause);
        while Instant::now() < until && !interrupt::asked() {
            std::thread::sleep(LOOK);
        }
        if interrupt::asked() {
            return Ok(());
        }
    }
}

/// The command that starts all ranks.
fn launch(args: &ServeArgs) -> Result<Vec<OsString>> {
    if job::launched() {
        let problem = "--restart starts mpirun itself: give it to `latent serve`, and how to start the ranks as --launch \"mpirun …\"";
        return Err(UsageError(problem.into()).into());
    }
    let mut command: Vec<OsString> = match (&args.server.launch, &args.engine.partition) {
        (Some(launch), _) => launch.split_whitespace().map(Into::into).collect(),
        (None, Some(partition)) => {
            ["mpirun", "-n", &partition.ranks().to_string(), "--bind-to", "none"].map(Into::into).into()
        }
        (None, None) => {
            let problem = "--restart is for ranks: give --partition, or --launch with how to start them";
            return Err(UsageError(problem.into()).into());
        }
    };
    if command.is_empty() {
        return Err(UsageError("--launch: no command is given".into()).into());
    }
    if !cfg!(feature = "mpi") {
        return Err(UsageError(format!("--restart: {}", job::WITHOUT_MPI)).into());
    }
    command.push(std::env::current_exe()?.into_os_string());
    command.extend(of_ranks(std::env::args_os().skip(1)));
    command.push("--stop-at-eof".into());
    Ok(command)
}

/// What of this process's arguments the ranks get.
fn of_ranks(args: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut kept = Vec::new();
    let mut args = args.peekable();
    while let Some(arg) = args.next() {
        match arg.to_str() {
            Some("--restart") => {}
            Some("--launch") => {
                args.next();
            }
            Some(other) if other.starts_with("--launch=") => {}
            _ => kept.push(arg),
        }
    }
    kept
}

fn start(launch: &[OsString]) -> Result<Child> {
    let mut command = Command::new(&launch[0]);
    command.args(&launch[1..]).stdin(Stdio::piped());
    // Ctrl-C is for this process, which lets rank 0 end its requests
    #[cfg(unix)]
    std::os::unix::process::CommandExt::process_group(&mut command, 0);
    let wrong = |error| UsageError(format!("--launch: {} cannot be started: {error}", launch[0].display()));
    Ok(command.spawn().map_err(wrong)?)
}

/// Waits for the ranks to end, and ends them when this process is asked to end.
fn watch(mut ranks: Child) -> Result<ExitStatus> {
    let kept = interrupt::keep(&ranks);
    let mut input = ranks.stdin.take();
    loop {
        if let Some(status) = ranks.try_wait()? {
            drop(kept);
            return Ok(status);
        }
        if interrupt::asked() {
            // rank 0 says what it does then
            drop(input.take());
        }
        std::thread::sleep(LOOK);
    }
}

#[cfg(test)]
mod tests {
    use super::of_ranks;

    #[test]
    fn ranks_get_all_arguments_but_how_to_start_them() {
        let given = "serve --restart -m a.gguf --launch mpirun --launch=x --port 1";
        let kept: Vec<String> = of_ranks(given.split(' ').map(Into::into))
            .into_iter()
            .map(|arg| arg.into_string().unwrap())
            .collect();
        assert_eq!(kept.join(" "), "serve -m a.gguf --port 1");
    }
}
