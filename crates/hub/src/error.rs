//! Hub errors, each with advice.

use crate::repo::Repo;
use latent_files::OutputError;
use latent_types::{Setting, format_bytes, printable};
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// A model that a user can choose.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelChoice {
    /// Its reference, `hf:OWNER/NAME:QUANT` or `hf:OWNER/NAME/FILE`.
    pub reference: String,
    /// Bytes of its files; `None` if unknown.
    pub bytes: Option<u64>,
}

impl fmt::Display for ModelChoice {
    /// The reference as a shell word, and the size. Users copy the line into a shell.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plain = |c: char| c.is_alphanumeric() || "-._/:@%+".contains(c);
        // File names come from the repository's owner and may contain quotes or control characters.
        let word = printable(&self.reference);
        if self.reference.chars().all(plain) {
            f.write_str(&word)?;
        } else {
            write!(f, "'{}'", word.replace('\'', "'\\''"))?;
        }
        self.bytes.map_or(Ok(()), |bytes| write!(f, "  # {}", format_bytes(bytes)))
    }
}

/// A line with the command for each model.
fn listed(choices: &[ModelChoice], more: usize) -> String {
    let lines = choices.iter().map(|choice| format!("\n  latent pull {choice}"));
    let more = (more > 0).then(|| format!("\n  and {more} more"));
    lines.chain(more).collect()
}

/// An error of a reference, or of finding, downloading, listing or removing a model.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages name the fields")]
pub enum HubError {
    /// A reference that names no model.
    #[error(
        "{text}: {problem}; a model of the hub is a short name, hf:OWNER/NAME, hf:OWNER/NAME:Q4_K_M, hf:OWNER/NAME@REVISION or hf:OWNER/NAME/FILE.gguf"
    )]
    Reference { text: String, problem: String },
    /// A short name of a model that cannot run.
    #[error("{name}: the model is not supported: {reason}")]
    Unsupported { name: String, reason: String },
    /// An invalid environment variable. Its value is not shown, because it may be a secret.
    #[error("{name}: {problem}")]
    Setting { name: String, problem: String },
    /// The network is switched off, and the model is not on this machine.
    #[error(
        "{what} is not on this machine, but HF_HUB_OFFLINE or {} disables downloads: unset it, or run \
         `latent pull` on a machine with network access and copy the cache folder",
        Setting::Offline
    )]
    Offline { what: String },
    /// A host that does not respond or makes no progress, after several attempts.
    #[error(
        "{host}: {problem}; check the network (HTTPS_PROXY names a proxy, HF_ENDPOINT another hub); the same command continues where this one stopped"
    )]
    Unreachable { host: String, problem: String },
    /// The certificate of a host is not accepted.
    #[error(
        "{host}: {problem}; install the system's CA certificates (package ca-certificates), or set \
         SSL_CERT_FILE to a certificate file"
    )]
    Tls { host: String, problem: String },
    /// 401 or 403.
    #[error("{repo}: access denied ({status}{message}); {}", access_advice(.repo, .page, *.token, *.gated))]
    Access {
        repo: Repo,
        page: String,
        /// 401 or 403.
        status: u16,
        /// `: ` and the hub's message, or empty.
        message: String,
        /// Whether a token was sent.
        token: bool,
        /// Whether a licence must be accepted first, according to the hub.
        gated: bool,
    },
    /// No such repository.
    #[error("{repo}: repository not found; check the spelling at {page}")]
    NoRepo { repo: Repo, page: String },
    /// No such branch, tag or commit.
    #[error("{repo}: no revision {revision:?}; omit @{revision} to use the newest one")]
    NoRevision { repo: Repo, revision: String },
    /// No such file.
    #[error("{repo}: no file {file}; {there}")]
    NoFile {
        repo: Repo,
        file: String,
        /// Advice, or empty.
        there: String,
    },
    /// No model of this quant, or several without a preferred one.
    #[error("{repo}: {problem}{}", listed(.choices, *.more))]
    Choose {
        repo: Repo,
        problem: String,
        choices: Box<[ModelChoice]>,
        /// Number of further models.
        more: usize,
    },
    /// A repository without a model in a supported format.
    #[error("{repo}: {problem}")]
    NoModel { repo: Repo, problem: String },
    /// 429 with a wait above the limit.
    #[error("{host} limits the rate of requests{}; try again later{advice}", wait_of(.wait))]
    RateLimited {
        host: String,
        wait: Option<Duration>,
        /// Advice for users without a token.
        advice: &'static str,
    },
    /// An unexpected response.
    #[error("{url}: {problem}")]
    Response {
        /// The address, without its query.
        url: String,
        problem: String,
    },
    /// A path that leads out of the folder, or that some systems cannot store.
    #[error("{path:?}: {problem}; nothing was downloaded: report it to the owner of the repository")]
    UnsafePath { path: String, problem: &'static str },
    /// A file with a wrong checksum.
    #[error(
        "{file}: its checksum is {got}, expected {expected}; the file was removed: run the command again, \
         and report it to the owner of the repository if this repeats"
    )]
    Checksum { file: String, expected: String, got: String },
    /// A file that is longer or shorter than announced.
    #[error(
        "{file}: the server sends {got}, expected {expected} bytes; run the command again, and report it to \
         the owner of the repository if this repeats"
    )]
    Size { file: String, expected: u64, got: String },
    /// Not enough disk space, detected before the download.
    #[error("{}: {} are needed, but {} are free; free some space (see `latent ls` and `latent rm`), or set \
             LATENT_CACHE to another folder", folder.display(), format_bytes(*.needed), format_bytes(*.free))]
    Space { folder: PathBuf, needed: u64, free: u64 },
    /// The disk became full.
    #[error("{}: {error} after {} of {}; the partial file is kept: free some space, then run the same \
             command again to resume", path.display(), format_bytes(*.kept), format_bytes(*.size))]
    DiskFull { path: PathBuf, error: io::Error, kept: u64, size: u64 },
    /// An error of the operating system.
    #[error("{}: {error}", path.display())]
    Io { path: PathBuf, error: io::Error },
    /// A foreign object in the cache folder, such as a link.
    #[error("{}: {problem}", path.display())]
    Cache { path: PathBuf, problem: String },
    /// The caller stopped the download.
    #[error("stopped; {} of {what} are kept; run the same command again to resume", format_bytes(*.kept))]
    Stopped { what: String, kept: u64 },
    /// A model that was not pulled.
    #[error("{what}: not found in {}; `latent ls` lists the downloaded models", cache.display())]
    NotPulled { what: String, cache: PathBuf },
}

impl HubError {
    /// The error for a file in the cache folder that cannot be opened.
    pub(crate) fn refused(error: OutputError) -> HubError {
        match error {
            OutputError::Io { path, error } => HubError::Io { path, error },
            OutputError::Refused { path, problem } => HubError::Cache { path, problem },
        }
    }

    pub(crate) fn io(path: &std::path::Path) -> impl FnOnce(io::Error) -> HubError + '_ {
        move |error| HubError::Io { path: path.to_owned(), error }
    }
}

fn access_advice(repo: &Repo, page: &str, token: bool, gated: bool) -> String {
    let accept = format!("accept its licence at {page}");
    let set = "create a token at https://huggingface.co/settings/tokens and set HF_TOKEN to it";
    // The hub answers 401 both for private repositories and for those that do not exist, so the
    // advice covers both.
    match (gated, token) {
        (true, true) => format!("{accept} with the account of the token in use"),
        (true, false) => format!("{accept}, then {set}"),
        (false, true) => {
            format!(
                "either {repo} does not exist, or the token in use does not grant access to it: see {page}"
            )
        }
        (false, false) => format!(
            "either {repo} does not exist, or it is private or has a licence to accept: see {page}, then {set}"
        ),
    }
}

fn wait_of(wait: &Option<Duration>) -> String {
    wait.map_or_else(String::new, |wait| format!(", for {} seconds", wait.as_secs()))
}
