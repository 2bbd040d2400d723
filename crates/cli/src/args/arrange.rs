//! Arranges the command tree: order and headings of help, and flags that commands omit.

use super::limits::{DEVELOPER, HOSTS, PERFORMANCE};
use clap::builder::Resettable;
use clap::{Arg, Command};
use std::ffi::OsString;

/// Headings in the order of help. Flags without a heading come first.
const HEADINGS: [&str; 7] = [
    "Prompt, context and output",
    "Sampling",
    "Defaults of requests",
    "Server",
    PERFORMANCE,
    HOSTS,
    DEVELOPER,
];

/// Arguments of a command itself, which have no heading in help.
// Clap would put them under the heading of the group flattened before them.
const COMMAND_ARGS: &str = "words prompt file files messages tokens json html quiet plain no_history";

/// Flags under a heading that `-h` shows, too: those that most users need.
const ESSENTIAL: &str = "parallel system_prompt prompt_cache context_shift json_schema n_predict temp seed url host port api_key_file";

/// Commands, and flags of shared groups that have no effect on them. The flags are hidden and
/// refused there. `eval` stands for all of its subcommands.
const ABSENT: [(&str, &str); 16] = [
    // These commands show the file as it is, or compare two files.
    (
        "inspect check graph verify diff plan-hosts",
        "override_kv rope_scaling rope_scale rope_freq_base rope_freq_scale yarn_orig_ctx yarn_attn_factor yarn_beta_fast yarn_beta_slow yarn_ext_factor",
    ),
    // Only the weights of the file.
    ("inspect check verify diff plan-hosts imatrix", "lora"),
    ("inspect check graph verify dump diff plan-hosts imatrix", "pack_cache"),
    // They affect only speed and plans.
    ("chat serve logits inspect check verify dump diff imatrix plan-hosts eval", "without"),
    ("inspect check verify dump diff imatrix plan-hosts", "tuned"),
    // These commands run nothing.
    ("inspect check graph verify", "hosts_file wire hung_after pin verbose n_gpu_layers"),
    ("inspect check verify", "force"),
    ("check graph verify", "ctx_size state_cache"),
    ("check", "threads batch_size draft"),
    // Every form is audited.
    ("verify", "mla precision expanded_cache"),
    // One process runs the model.
    ("diff dump imatrix", "wire hung_after"),
    // Nothing is predicted.
    ("chat serve logits profile diff dump imatrix plan-hosts eval", "hosts_file"),
    // Nothing is generated.
    ("logits imatrix eval-perplexity eval-kl eval-choice eval-routing", "draft"),
    ("diff dump plan-hosts", "verbose"),
    // A chat has no place to show them.
    ("chat", "logprobs"),
    // The command chooses them.
    ("imatrix", "ctx_size mla"),
];

/// Whether a list contains a word.
fn has_word(list: &str, word: &str) -> bool {
    list.split(' ').any(|other| other == word)
}

/// Arranges every subcommand.
pub(super) fn tree(command: Command) -> Command {
    tree_with(command, |_| true)
}

/// The command tree with those subcommands arranged that words of a command line name.
// Arranging all of them takes 6 ms, which every start of the program would take longer.
pub(super) fn tree_of_words(command: Command, words: &[OsString]) -> Command {
    tree_with(command, |inner| {
        let mut names = std::iter::once(inner.get_name()).chain(inner.get_all_aliases());
        names.any(|name| words.iter().any(|word| word == name))
    })
}

fn tree_with(command: Command, wanted: impl Fn(&Command) -> bool) -> Command {
    let wanted = command.get_subcommands().filter(|inner| wanted(inner));
    let names: Vec<String> = wanted.map(|inner| inner.get_name().to_owned()).collect();
    names.iter().fold(command, |command, name| command.mut_subcommand(name, |inner| arranged(inner, name)))
}

fn arranged(mut command: Command, path: &str) -> Command {
    let names: Vec<String> = command.get_subcommands().map(|command| command.get_name().to_owned()).collect();
    for name in names {
        let path = format!("{path} {name}");
        command = command.mut_subcommand(name, |inner| arranged(inner, &path));
    }
    let rank = |arg: &Arg| match arg.get_help_heading() {
        Some(heading) if !has_word(COMMAND_ARGS, arg.get_id().as_str()) => {
            1 + HEADINGS.iter().position(|own| *own == heading).unwrap_or(HEADINGS.len())
        }
        _ => 0,
    };
    let mut ids: Vec<(usize, String)> =
        command.get_arguments().map(|arg| (rank(arg), arg.get_id().as_str().to_owned())).collect();
    ids.sort_by_key(|(rank, _)| *rank);
    let absent = absent_lists(path);
    let mut hidden = false;
    for (order, (rank, id)) in ids.iter().enumerate() {
        // `mut_arg` moves the argument to the end. Changing all of them in order sorts them.
        command = command.mut_arg(id, |arg| {
            let short = *rank == 0 || has_word(ESSENTIAL, id);
            hidden |= !short;
            let arg = if *rank == 0 { arg.help_heading(Resettable::Reset) } else { arg };
            let arg = if arg.is_positional() { arg } else { arg.display_order(order) };
            let arg = if absent.iter().any(|ids| has_word(ids, id)) { arg.hide(true) } else { arg };
            if short { arg } else { arg.hide_short_help(true) }
        });
    }
    // `-h` and `--help` are the same, so no hint is needed.
    if !hidden {
        return command;
    }
    let more = format!("`latent help {path}` lists all flags.");
    let examples = command.get_after_help().cloned();
    let command = command.after_help(more);
    // `-h` shows the hint in place of the examples, `--help` the examples.
    match examples {
        Some(examples) => command.after_long_help(examples),
        None => command,
    }
}

/// Rows of [`ABSENT`] for a command: the flags of shared groups that it omits.
fn absent_lists(path: &str) -> Vec<&'static str> {
    let (group, name) = (path.split(' ').next(), path.replace(' ', "-"));
    let omits = |commands| has_word(commands, &name) || group.is_some_and(|group| has_word(commands, group));
    ABSENT.iter().filter(|(commands, _)| omits(commands)).map(|(_, ids)| *ids).collect()
}

/// Whether a command omits a flag of a shared group.
pub(crate) fn is_absent(path: &str, id: &str) -> bool {
    absent_lists(path).iter().any(|ids| has_word(ids, id))
}
