//! Flags of the settings named in messages of the libraries.

use latent_server::flag_of;
use latent_types::Setting;
use std::borrow::Cow;

/// Replaces the placeholder of each setting by its flag.
pub(crate) fn in_flags(text: &str) -> Cow<'_, str> {
    Setting::rename(text, |setting| Some(flag_of(setting)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Cli;
    use clap::CommandFactory;

    #[test]
    fn every_setting_has_a_flag_of_a_command() {
        let mut commands = vec![Cli::command()];
        let mut flags = Vec::new();
        while let Some(command) = commands.pop() {
            flags.extend(command.get_arguments().filter_map(|arg| arg.get_long()).map(str::to_owned));
            commands.extend(command.get_subcommands().cloned());
        }
        for setting in Setting::ALL {
            let name = flag_of(*setting).trim_start_matches('-');
            assert!(flags.iter().any(|flag| flag == name), "--{name}");
        }
    }

    #[test]
    fn a_text_names_flags_with_their_values() {
        let text = format!("try {}, or {}", Setting::Context.to(128), Setting::Force);
        assert_eq!(in_flags(&text), "try --ctx-size 128, or --force");
    }
}
