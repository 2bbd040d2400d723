//! Moves positional arguments into the fields that commands read.

use super::arrange::is_absent;
use super::model::TunedFile;
use super::words::ModelFlag;
use super::{Cli, Command, EvalCommand};
use clap::ArgMatches;
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use std::ffi::OsString;
use std::mem::take;
use std::path::PathBuf;

impl Cli {
    /// Moves positional arguments into the fields of models, prompts and files.
    pub(super) fn settle(
        &mut self,
        command: &clap::Command,
        matches: &ArgMatches,
    ) -> Result<(), clap::Error> {
        let (mut used, mut matches, mut path) = (command, matches, Vec::new());
        // Down to the innermost subcommand, such as `eval kl`.
        while let Some((name, inner)) = matches.subcommand() {
            let Some(found) = used.find_subcommand(name) else { break };
            path.push(name);
            (used, matches) = (found, inner);
        }
        let path = path.join(" ");
        // Only the command line counts: a variable such as LATENT_MODEL is a default for every
        // command.
        let on_line = |id: &str| matches.value_source(id) == Some(ValueSource::CommandLine);
        // Clap knows shared groups as a whole. A flag that the command omits is an error only here,
        // so that it is never silently ignored.
        let absent = used.get_arguments().find(|arg| {
            let id = arg.get_id().as_str();
            is_absent(&path, id) && on_line(id)
        });
        if let Some(flag) = absent.and_then(clap::Arg::get_long) {
            let problem = format!("--{flag} has no effect on `latent {path}`: omit it");
            return Err(used.clone().error(ErrorKind::UnknownArgument, problem));
        }
        if let Ok(Some(TunedFile(Err(problem)))) = matches.try_get_one("tuned") {
            let problem = format!("--tuned: {problem}");
            return Err(used.clone().error(ErrorKind::ValueValidation, problem));
        }
        // `value_source` panics for an ID that the command does not have.
        let has = |id: &str| used.get_arguments().any(|arg| arg.get_id() == id);
        let given = ["model", "models"].into_iter().any(|id| has(id) && on_line(id));
        self.command.settle(given).map_err(|problem| used.clone().error(ErrorKind::ArgumentConflict, problem))
    }
}

/// Takes the prompt from its flag or from a positional argument.
fn one_text(flag: &mut Option<String>, word: Option<String>, others: bool) -> Result<(), String> {
    let Some(word) = word else { return Ok(()) };
    if flag.is_some() || others {
        return Err(format!(
            "the text {word:?} cannot be used with --prompt, --file or --tokens; if it is meant as a model: \
             no such file or short name (`latent ls --short-names` lists the names)"
        ));
    }
    *flag = Some(word);
    Ok(())
}

/// A required file.
fn needed(path: Option<PathBuf>, name: &str) -> Result<PathBuf, String> {
    path.ok_or_else(|| format!("{name} is missing"))
}

/// Checks that a model is not given twice.
fn once(path: &Option<PathBuf>, model: &Option<PathBuf>, given: bool) -> Result<(), String> {
    match (path, model) {
        (Some(path), Some(model)) if given => {
            Err(format!("the model is given twice: -m {} and {}", model.display(), path.display()))
        }
        _ => Ok(()),
    }
}

impl Command {
    /// `given`: whether `-m` is on the command line.
    fn settle(&mut self, given: bool) -> Result<(), String> {
        fn flag(model: &mut Option<PathBuf>, given: bool) -> ModelFlag<'_> {
            ModelFlag { model, given }
        }
        let alone = |words: &mut Vec<OsString>, model| flag(model, given).alone(take(words));
        match self {
            Command::Run(args) => {
                let word = flag(&mut args.model.model, given).with_text(take(&mut args.words), "run")?;
                one_text(
                    &mut args.prompt,
                    word,
                    args.messages.is_some() || !args.files.is_empty() || !args.tokens.is_empty(),
                )
            }
            Command::Chat(args) => {
                let word = flag(&mut args.model.model, given).with_text(take(&mut args.words), "chat")?;
                one_text(&mut args.prompt, word, false)
            }
            Command::Tokenize(args) => {
                let word = flag(&mut args.model, given).with_text(take(&mut args.words), "tokenize")?;
                one_text(&mut args.prompt, word, args.file.is_some())
            }
            Command::Serve(args) => args.settle(given),
            Command::Logits(args) => alone(&mut args.words, &mut args.model.model),
            Command::Bench(args) => alone(&mut args.words, &mut args.model.model),
            Command::Profile(args) => alone(&mut args.words, &mut args.model.model),
            Command::Diff(args) => match args.words.as_slice() {
                [first, second] if args.model_b.is_none() && !given => Err(format!(
                    "two models: give the second one with --model-b: latent diff {} --model-b {}",
                    first.display(),
                    second.display()
                )),
                _ => alone(&mut args.words, &mut args.model.model),
            },
            Command::Imatrix(args) => alone(&mut args.words, &mut args.model.model),
            Command::Pack(args) => alone(&mut args.words, &mut args.model),
            Command::Dump(args) => {
                let words = take(&mut args.words);
                args.out = needed(flag(&mut args.model.model, given).with_path(words, "OUT")?, "OUT")?;
                Ok(())
            }
            Command::PlanHosts(args) => {
                let words = take(&mut args.words);
                args.hosts = needed(flag(&mut args.model.model, given).with_path(words, "HOSTS")?, "HOSTS")?;
                Ok(())
            }
            Command::Inspect(args) => once(&args.path, &args.model.model, given),
            Command::Check(args) => once(&args.path, &args.model.model, given),
            Command::Verify(args) => once(&args.path, &args.model.model, given),
            Command::Convert(args) => once(&args.path, &args.model, given),
            Command::Eval(args) => args.command.settle(given),
            _ => Ok(()),
        }
    }
}

impl EvalCommand {
    fn settle(&mut self, given: bool) -> Result<(), String> {
        let path =
            |words: &mut Vec<OsString>, model, name| ModelFlag { model, given }.with_path(take(words), name);
        match self {
            EvalCommand::Perplexity(args) => {
                args.text = needed(path(&mut args.words, &mut args.model.model, "TEXT")?, "TEXT")?;
            }
            EvalCommand::Routing(args) => {
                args.text = needed(path(&mut args.words, &mut args.model.model, "TEXT")?, "TEXT")?;
            }
            EvalCommand::Choice(args) => {
                args.file = needed(path(&mut args.words, &mut args.model.model, "FILE")?, "FILE")?;
            }
            EvalCommand::Questions(args) => {
                args.file = needed(path(&mut args.words, &mut args.model.model, "FILE")?, "FILE")?;
            }
            EvalCommand::Kl(args) if args.kl_divergence_base.is_some() => {
                ModelFlag { model: &mut args.model.model, given }.alone(take(&mut args.words))?;
            }
            EvalCommand::Kl(args) => {
                let text = path(&mut args.words, &mut args.model.model, "TEXT")?;
                args.text = Some(needed(text, "TEXT (or --kl-divergence-base FILE)")?);
            }
            EvalCommand::Retrieval(args) => {
                ModelFlag { model: &mut args.model.model, given }.alone(take(&mut args.words))?;
            }
            EvalCommand::Weights(args) => {
                ModelFlag { model: &mut args.model, given }.alone(take(&mut args.words))?;
            }
            EvalCommand::Report(_) => {}
        }
        Ok(())
    }
}
