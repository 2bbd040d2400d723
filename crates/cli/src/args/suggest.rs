//! Usage errors with a tip: the call that the user probably meant.

use super::compat::VariableFlag;
use super::words::{is_model, quoted};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, Error};
use std::ffi::OsString;

/// Names of commands in llama.cpp, ollama and other programs, and Latent's name.
const OTHER_NAMES: [(&str, &str); 23] = [
    ("generate", "run"),
    ("complete", "run"),
    ("completion", "run"),
    ("prompt", "run"),
    ("ask", "run"),
    ("cli", "chat"),
    ("interactive", "chat"),
    ("server", "serve"),
    ("start", "serve"),
    ("download", "pull"),
    ("delete", "rm"),
    ("remove", "rm"),
    ("models", "ls"),
    ("ps", "top"),
    ("show", "inspect"),
    ("info", "inspect"),
    ("validate", "check"),
    ("tokens", "tokenize"),
    ("detokenize", "tokenize"),
    ("perplexity", "eval perplexity"),
    ("benchmark", "bench"),
    ("ppl", "eval perplexity"),
    ("compare", "diff"),
];

/// llama.cpp's flags without a counterpart, or with one of another form.
const OTHER_FLAGS: [(&[&str], &str); 7] = [
    (&["--hf-repo", "-hf", "--hf"], "models of the hub are written as -m hf:OWNER/NAME[:QUANT]"),
    (&["--flash-attn", "-fa"], "attention is always fused: omit the flag"),
    (&["--mlock", "--no-mmap", "--mmap"], "memory use is chosen automatically: omit the flag"),
    (&["--jinja", "--chat-template"], "the model's own chat template is used: omit the flag, or use --raw"),
    (
        &["--conversation", "-cnv", "--interactive", "--interactive-first"],
        "`latent chat` holds a conversation",
    ),
    (&["--no-conversation", "-no-cnv"], "`latent run` answers one prompt: omit the flag"),
    (&["--cache-type-v", "-ctv"], "keys and values share one cache: --cache-type sets its type"),
];

/// Adds a tip to an error, if its likely meaning is known.
pub(super) fn improved(mut error: Error, words: &[OsString], command: &Command) -> Error {
    match error.kind() {
        ErrorKind::InvalidSubcommand => {
            let Some(ContextValue::String(word)) = error.get(ContextKind::InvalidSubcommand) else {
                return error;
            };
            let word = word.clone();
            let first = words.get(1).is_some_and(|first| *first == *word);
            // A wrong word further behind belongs to a subcommand (`eval foo`), where clap's own
            // suggestion fits.
            if !first && words.get(1).is_none_or(|first| *first != *"help") {
                return error;
            }
            error.remove(ContextKind::SuggestedSubcommand);
            if let Some(name) = closest(&word, command) {
                error.insert(ContextKind::SuggestedSubcommand, ContextValue::Strings(vec![name]));
            } else if first {
                tip(&mut error, &run_instead(words));
            }
        }
        ErrorKind::UnknownArgument => {
            let Some(ContextValue::String(flag)) = error.get(ContextKind::InvalidArg) else { return error };
            let flag = flag.split(['=', ' ']).next().unwrap_or_default().to_owned();
            let known = OTHER_FLAGS.iter().find(|(flags, _)| flags.contains(&flag.as_str()));
            let own = |word: &OsString| command.find_subcommand(word).is_some();
            if let Some((_, advice)) = known {
                // Clap suggests the nearest spelling, which may be an unrelated flag.
                error.remove(ContextKind::SuggestedArg);
                tip(&mut error, advice);
            // `latent -m model.gguf "Hello"`: the command is missing.
            } else if words.get(1).is_some_and(|first| *first == *flag) && !words.iter().any(own) {
                tip(&mut error, &run_instead(words));
            }
        }
        _ => {}
    }
    error
}

/// Names the variable whose flag caused the error.
pub(super) fn of_variable(mut error: Error, from: &[VariableFlag]) -> Error {
    // Clap names only the flag, which the user has not typed.
    let shown = error.render().to_string();
    if let Some(one) = from.iter().find(|one| shown.contains(&one.flag)) {
        tip(&mut error, &format!("the variable {} has set {}", one.variable, one.flag));
    }
    error
}

fn tip(error: &mut Error, advice: &str) {
    error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![advice.to_owned().into()]));
}

/// `latent run` in front of the words of a call without a command.
fn run_instead(words: &[OsString]) -> String {
    let rest = &words[1..];
    let prompt = rest.iter().all(|word| !word.to_string_lossy().starts_with('-') && !is_model(word));
    let shown = if prompt {
        let words: Vec<_> = rest.iter().map(|word| word.to_string_lossy()).collect();
        quoted(words.join(" ").as_ref())
    } else {
        let word = |word: &OsString| {
            if word.to_string_lossy().contains(' ') {
                quoted(word)
            } else {
                word.to_string_lossy().into_owned()
            }
        };
        rest.iter().map(word).collect::<Vec<_>>().join(" ")
    };
    format!("a command is missing: latent run {shown}")
}

/// The command that the user probably meant.
fn closest(word: &str, command: &Command) -> Option<String> {
    let lower = word.to_lowercase();
    if let Some((_, name)) = OTHER_NAMES.iter().find(|(other, _)| *other == lower) {
        return Some((*name).to_owned());
    }
    let names = command.get_subcommands().flat_map(|command| command.get_name_and_visible_aliases());
    let near = names.map(|name| (strsim::damerau_levenshtein(&lower, name), name));
    // A third of the letters may be wrong, at most three.
    let near = near.filter(|(distance, name)| *distance <= name.len().max(lower.len()).div_ceil(3).min(3));
    near.min_by_key(|(distance, _)| *distance).map(|(_, name)| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::closest;
    use crate::args::command;

    #[test]
    fn misspelled_commands_are_recognized() {
        for (word, name) in [
            ("rnu", "run"),
            ("rum", "run"),
            ("RUN", "run"),
            ("quantise", "quantize"),
            ("tokenise", "tokenize"),
            ("sevre", "serve"),
            ("server", "serve"),
            ("benhc", "bench"),
            ("benchmark", "bench"),
            ("chekc", "check"),
            ("lss", "ls"),
            ("perplexity", "eval perplexity"),
        ] {
            assert_eq!(closest(word, &command()).as_deref(), Some(name), "{word}");
        }
        for word in ["", "hello", "model.gguf", "why", "x"] {
            assert_eq!(closest(word, &command()), None, "{word}");
        }
    }
}
