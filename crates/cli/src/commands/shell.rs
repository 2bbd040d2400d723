//! Completions and man pages.

use crate::args::Cli;
use anyhow::{Context, Result};
use clap::CommandFactory;
use std::path::Path;

pub(super) fn completions(shell: clap_complete::Shell) -> Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "latent", &mut script);
    crate::output::now(&String::from_utf8_lossy(&script))
}

pub(super) fn man(folder: &Path) -> Result<()> {
    std::fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    clap_mangen::generate_to(Cli::command(), folder).with_context(|| folder.display().to_string())
}
