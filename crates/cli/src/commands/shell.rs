//! Shell completions and man pages.

use crate::args::command;
use crate::target;
use anyhow::Result;
use latent_formats::{CompleteFile, OutputFile, OutputFolder};
use std::io::Write;
use std::path::Path;

pub(super) fn completions(shell: clap_complete::Shell) -> Result<()> {
    // `clap_complete` panics if its writer fails. Through memory, a closed pipe (`latent
    // completions bash | head`) is an ordinary error.
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command(), "latent", &mut script);
    crate::output::multiline(&String::from_utf8_lossy(&script))
}

pub(super) fn man(folder: &Path, replace: bool) -> Result<()> {
    let made = OutputFolder::create(folder)?;
    // `latent help` has a subcommand for each command, whose pages would repeat the others.
    let mut command = command().disable_help_subcommand(true);
    command.build();
    let files: Vec<_> = pages(&command)?.into_iter().map(|(name, page)| (folder.join(name), page)).collect();
    files.iter().try_for_each(|(path, _)| target::check(path, replace))?;
    let write = |(path, page): &(std::path::PathBuf, Vec<u8>)| {
        let mut file = OutputFile::create(path)?;
        file.write_all(page).map_err(|error| file.failed(error))?;
        Ok::<_, anyhow::Error>(file.complete()?)
    };
    CompleteFile::publish_all(files.iter().map(write).collect::<Result<_>>()?)?;
    made.keep();
    Ok(())
}

/// Name and text of the pages of a command and its subcommands.
fn pages(command: &clap::Command) -> Result<Vec<(String, Vec<u8>)>> {
    let mut all = Vec::new();
    for command in command.get_subcommands().filter(|command| !command.is_hide_set()) {
        all.extend(pages(command)?);
    }
    let page = clap_mangen::Man::new(command.clone());
    let mut text = Vec::new();
    page.render(&mut text)?;
    all.push((page.get_filename(), text));
    Ok(all)
}
