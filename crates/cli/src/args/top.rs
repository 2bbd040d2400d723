//! `latent top`.

use super::limits::seconds;
use clap::Args;
use std::path::PathBuf;

/// The end of `latent help top`.
pub(crate) const TOP_HELP: &str = "Keys:
  q, Ctrl-C     exit

If standard output is not a terminal, one snapshot is printed. It takes a
second, because rates are differences of two readings.

Examples:
  latent top
  latent top --url http://10.0.0.2:8080 --api-key-file key
  latent top --json";

#[derive(Args, Debug)]
pub(crate) struct TopArgs {
    /// Address of the server
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8080")]
    pub(crate) url: String,

    /// A file whose first line is the API key of the server [default: the variable LATENT_API_KEY]
    #[arg(long, value_name = "FILE")]
    pub(crate) api_key_file: Option<PathBuf>,

    /// Seconds between two updates
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0, value_parser = interval)]
    pub(crate) interval: f64,

    /// Seconds after which an update fails
    #[arg(long, value_name = "SECONDS", default_value_t = 10.0, value_parser = seconds)]
    pub(crate) timeout: f64,

    /// Print one snapshot and exit
    #[arg(long)]
    pub(crate) once: bool,

    /// Print one snapshot as JSON and exit
    #[arg(long)]
    pub(crate) json: bool,
}

fn interval(word: &str) -> Result<f64, String> {
    let seconds: f64 = word.parse().map_err(|_| "expected seconds")?;
    if (0.1..=3600.0).contains(&seconds) { Ok(seconds) } else { Err("expected 0.1 to 3600 seconds".into()) }
}
