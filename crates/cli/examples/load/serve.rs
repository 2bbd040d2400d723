//! A server started for the run.

use anyhow::{Context, Result, ensure};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// Exit code after SIGTERM: 128 plus its number.
const ASKED: i32 = 143;

pub struct LoadServer {
    child: Child,
    url: String,
}

impl LoadServer {
    /// Returns once the model is loaded.
    pub fn start(program: &Path, model: Option<&Path>, tls: Option<(&Path, &Path)>) -> Result<Self> {
        let mut command = Command::new(program);
        command.args(["serve", "--port", "0", "--log", "warn"]).stdout(Stdio::piped());
        if let Some(model) = model {
            command.arg("-m").arg(model);
        }
        if let Some((certificate, key)) = tls {
            command.arg("--tls-cert").arg(certificate).arg("--tls-key").arg(key);
        }
        let mut child = command.spawn().with_context(|| program.display().to_string())?;
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().context("no output")?).read_line(&mut line)?;
        // The server prints `NAMES at URL` when it is ready.
        let url = line.trim().rsplit(' ').next().filter(|word| word.starts_with("http"));
        let url = url.with_context(|| format!("no address in {line:?}"))?.to_owned();
        Ok(LoadServer { child, url })
    }

    pub fn url(&self) -> &str {
        &self.url
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Stops the server and waits for its end.
    pub fn stop(mut self) -> Result<()> {
        ask_to_stop(&mut self.child)?;
        let status = self.child.wait()?;
        // A server stopped by a signal exits with its code.
        ensure!(matches!(status.code(), Some(0 | ASKED)) || !cfg!(unix), "the server ended with {status}");
        Ok(())
    }
}

#[cfg(unix)]
fn ask_to_stop(child: &mut Child) -> Result<()> {
    use nix::sys::signal::{Signal, kill};
    use nix::unistd::Pid;
    Ok(kill(Pid::from_raw(i32::try_from(child.id())?), Signal::SIGTERM)?)
}

/// Windows has no SIGTERM, so the server is killed.
#[cfg(not(unix))]
fn ask_to_stop(child: &mut Child) -> Result<()> {
    Ok(child.kill()?)
}

impl Drop for LoadServer {
    fn drop(&mut self) {
        // After an error the server may still run. Killing an ended process fails, which is
        // ignored.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
