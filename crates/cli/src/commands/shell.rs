//! Completions and man pages.

use crate::args::Cli;
use anyhow::Result;
use clap::CommandFactory;
use latent_formats::{OutputFolder, output_file};
use std::path::Path;

pub(super) fn completions(shell: clap_complete::Shell) -> Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "latent", &mut script);
    crate::output::now(&String::from_utf8_lossy(&script))
}

pub(super) fn man(folder: &Path) -> Result<()> {
    let made = OutputFolder::create(folder)?;
    let mut command = Cli::command().disable_help_subcommand(true);
    command.build();
    pages(&command, folder)?;
    made.keep();
    Ok(())
}

/// Writes a page for a command and each of its subcommands.
fn pages(command: &clap::Command, folder: &Path) -> Result<()> {
    command.get_subcommands().filter(|command| !command.is_hide_set()).try_for_each(|c| pages(c, folder))?;
    let page = clap_mangen::Man::new(command.clone());
    let mut text = Vec::new();
    page.render(&mut text)?;
    Ok(output_file::write(&folder.join(page.get_filename()), &text)?)
}
