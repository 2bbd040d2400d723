//! Command-line arguments: one file per group of commands.
//!
//! Flags have llama.cpp's spelling if it has the flag, else vLLM's. Every released spelling stays
//! valid as a hidden alias; the tests walk a table of them.

mod answer;
mod arrange;
mod compat;
mod config_file;
mod describe;
mod eval;
mod hub;
mod limits;
mod measure;
mod metadata;
mod model;
mod plan_hosts;
mod quantize;
mod row_counts;
mod sampling;
mod sampling_numbers;
mod serve;
mod settle;
mod simulated_machine;
mod suggest;
#[cfg(test)]
mod tests;
mod top;
mod values;
mod words;
mod write;

pub(crate) use answer::{CHAT_HELP, ChatArgs, ConstraintArgs, RunArgs, TemplateArgs};
pub(crate) use arrange::is_absent;
#[doc(hidden)]
pub use compat::{CompatRow, rows as compat_rows};
pub(crate) use compat::{Preset, PresetOption, preset_sections};
pub(crate) use config_file::{ConfigFile, ConfigModel};
pub(crate) use describe::{CheckArgs, GraphArgs, GraphFormat, InspectArgs, TokenizeArgs, VerifyArgs};
pub(crate) use eval::{
    ChoiceArgs, EvalArgs, EvalCommand, KlArgs, PerplexityArgs, QuestionsArgs, ReportArgs, ResultArgs,
    RetrievalArgs, RoutingArgs, WeightsArgs,
};
pub(crate) use hub::{DevicesArgs, LsArgs, PULL_HELP, PullArgs, RmArgs, SelfTestArgs};
pub(crate) use limits::{MAX_STEP_ROWS, MAX_VERIFY_ROWS, step_tokens, threads, tokens};
pub(crate) use measure::{
    BenchArgs, BenchFormat, KernelsArgs, KernelsCommand, KernelsCountArgs, KernelsPerfArgs,
    KernelsSupportArgs, KernelsTestArgs, ProfileArgs,
};
pub(crate) use model::{EngineArgs, LoraFile, ModelArgs, isa};
pub(crate) use plan_hosts::PlanHostsArgs;
pub(crate) use quantize::{IMATRIX_HELP, ImatrixArgs, QUANTIZE_HELP, QuantizeArgs, QuantizeMethod, TypeArgs};
pub(crate) use row_counts::RowCounts;
pub(crate) use sampling::SamplingArgs;
pub(crate) use serve::{AnswerArgs, ReasoningPlace, ReasoningSwitch, SERVE_HELP, ServeArgs, ServerArgs};
pub(crate) use simulated_machine::SimulatedMachine;
pub(crate) use top::{TOP_HELP, TopArgs};
pub(crate) use values::{DiffArgs, DumpArgs, LogitsArgs};
pub(crate) use words::hub_model;
pub(crate) use write::{ConvertArgs, MakeModelArgs, PackArgs};

use clap::builder::styling::{AnsiColor, Styles};
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{ArgMatches, CommandFactory, FromArgMatches, Parser, Subcommand};
use compat::Environment;
use latent_types::printable;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;

const STYLES: Styles = Styles::styled()
    .header(AnsiColor::Green.on_default().bold())
    .usage(AnsiColor::Green.on_default().bold())
    .literal(AnsiColor::Cyan.on_default().bold())
    .placeholder(AnsiColor::Cyan.on_default());

/// Run language models with Multi-head Latent Attention and Mixture of Experts from GGUF and
/// safetensors files.
#[derive(Debug, Parser)]
// Examples and tables in help are laid out for 80 columns.
#[command(name = "latent", version, styles = STYLES, max_term_width = 80, arg_required_else_help = true)]
#[command(after_help = "Examples:
  latent run \"Tell me a story.\"                 the built-in demo model
  latent run model.gguf \"Why is the sky blue?\"  a model file
  latent run model.gguf                          chat with it
  latent run glm-4.7-flash                       download a model, chat with it
  latent serve model.gguf                        http://127.0.0.1:8080
  latent check model.gguf                        is it supported?
  latent inspect model.gguf                      metadata, tensors, memory
  latent graph model.gguf plan --rows 1          what a step computes
  latent convert folder --type Q4_K_M            writes folder-Q4_K_M.gguf
  latent quantize -m model-BF16.gguf Q4_K_M      writes model-Q4_K_M.gguf
  latent bench model.gguf -p 512 -n 128          its speed
  latent eval perplexity model.gguf text.txt     its quality

Exit codes: 0 success, 1 error, 2 model not supported, 64 wrong usage, 128 + N
after signal N (130 Ctrl-C, 143 SIGTERM, 129 SIGHUP).")]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// llama.cpp's flags of several letters after one dash, and Latent's spelling.
// Clap has no such flags: it would read `-ngl` as `-n gl`.
const ONE_DASH: [(&str, &str); 5] = [
    ("-ngl", "--n-gpu-layers"),
    ("-np", "--parallel"),
    ("-sys", "--system-prompt"),
    ("-ub", "--batch-size"),
    ("-ctk", "--cache-type"),
];

/// The command tree.
pub(crate) fn command() -> clap::Command {
    arrange::tree(<Cli as CommandFactory>::command())
}

/// The command tree for a command line: only what the line names has the form of [`command`].
fn command_of(words: &[OsString]) -> clap::Command {
    arrange::tree_of_words(<Cli as CommandFactory>::command(), words)
}

impl Cli {
    /// Reads a command line that begins with the program's name.
    pub(crate) fn read(words: impl IntoIterator<Item = OsString>) -> Result<Cli, clap::Error> {
        Cli::read_with(words, &|name| std::env::var_os(name))
    }

    /// Reads a command line. `variable` looks up environment variables of other servers.
    fn read_with(
        words: impl IntoIterator<Item = OsString>,
        variable: &dyn Fn(&str) -> Option<OsString>,
    ) -> Result<Cli, clap::Error> {
        let mut flags = true;
        let words = words.into_iter().map(|word| {
            // Words after `--` are positional arguments, whatever they look like.
            flags &= word != "--";
            let long = ONE_DASH.iter().find(|(short, _)| flags && word == *short);
            long.map_or(word, |(_, long)| OsString::from(long))
        });
        let words: Vec<OsString> = words.collect();
        Cli::read_words(&words, variable).map_err(|error| {
            // Clap's messages repeat arguments, which may contain escape sequences (a file name
            // from a script). The escaped arguments give the same message.
            let escaped = words.iter().map(|word| printable(&word.to_string_lossy()).into_owned().into());
            Cli::read_words(&escaped.collect::<Vec<_>>(), variable).err().unwrap_or(error)
        })
    }

    fn read_words(
        words: &[OsString],
        variable: &dyn Fn(&str) -> Option<OsString>,
    ) -> Result<Cli, clap::Error> {
        let mut command = command_of(words);
        // Only `latent serve` replaces another server. Elsewhere `suggest` explains llama.cpp's
        // flags.
        if words.get(1).is_some_and(|word| word == "serve") {
            return Cli::read_serve(words, variable, &mut command);
        }
        let matches = parsed(words, &mut command)?;
        Cli::settled(&matches, &mut command)
    }

    /// Reads a command line of `latent serve`, which accepts flags and variables of other servers.
    fn read_serve(
        words: &[OsString],
        variable: &dyn Fn(&str) -> Option<OsString>,
        command: &mut clap::Command,
    ) -> Result<Cli, clap::Error> {
        let refused = |problem: String| of_serve().error(ErrorKind::UnknownArgument, problem);
        let own = compat::translate(words).map_err(refused)?;
        let mut matches = parsed(&own.words, command)?;
        let serve = of_serve();
        let is_set = |flag: &str| is_set(&matches, flag, &serve);
        let environment = Environment { variable, is_set: &is_set };
        let (all, from) = compat::with_environment(&own, &environment).map_err(refused)?;
        // Variables that were translated to flags need a second parse. Its errors name the
        // variable, because the user has not typed the flag.
        if !from.is_empty() {
            matches = parsed(&all.words, command).map_err(|error| suggest::of_variable(error, &from))?;
        }
        let mut cli = Cli::settled(&matches, command)?;
        if let Command::Serve(args) = &mut cli.command {
            args.without_effect = all.notes;
            args.line = serve::CommandLine(all.words);
        }
        Ok(cli)
    }

    fn settled(matches: &ArgMatches, command: &mut clap::Command) -> Result<Cli, clap::Error> {
        // `from_arg_matches` does not know the command: `format` adds its usage and styles to the
        // error.
        let mut cli = Cli::from_arg_matches(matches).map_err(|error| error.format(command))?;
        cli.settle(command, matches)?;
        Ok(cli)
    }
}

impl ServeArgs {
    /// The arguments with the settings of a file. The command line and the environment take
    /// precedence.
    pub(crate) fn with_config(&self, file: ConfigFile) -> Result<ServeArgs, String> {
        let args = ServeArgs { file: Arc::new(file), ..self.clone() }.with_preset(&[])?;
        Ok(ServeArgs { without_effect: self.without_effect.clone(), ..args })
    }

    /// The arguments of one model. The command line and the environment take precedence over
    /// `options` of its preset, and these over the config file.
    pub(crate) fn with_preset(&self, options: &[PresetOption]) -> Result<ServeArgs, String> {
        let (mut command, serve) = (command_of(&self.line.0), of_serve());
        let all = PresetOption::layered(&self.file.options, options);
        let mut read = |options: &[&PresetOption]| {
            let line = &self.line.0;
            let (begin, rest) = line.split_at(line.len().min(2));
            // The words go before those of the command line: with `args_override_self` the last
            // value of a flag counts.
            let words = options.iter().flat_map(|option| &option.words);
            let all: Vec<OsString> = begin.iter().chain(words).chain(rest).cloned().collect();
            let matches = parsed(&all, &mut command)?;
            let cli = Cli::settled(&matches, &mut command)?;
            Ok::<_, clap::Error>((matches, cli))
        };
        let problem = |error: clap::Error| {
            // Only the first paragraph of clap's message: usage and tips are about the command
            // line, not about a file.
            let text = error.render().to_string();
            let text = text.strip_prefix("error: ").unwrap_or(&text);
            text.split("\n\n").next().unwrap_or_default().split_whitespace().collect::<Vec<_>>().join(" ")
        };
        // The command line alone first: options of the file count only for flags that it does not
        // set.
        let (matches, _) = read(&[]).map_err(problem)?;
        let counts =
            |option: &&PresetOption| !option.words.is_empty() && !is_set(&matches, &option.flag, &serve);
        let options: Vec<&PresetOption> = all.into_iter().filter(counts).collect();
        let error = match read(&options) {
            Ok((_, Cli { command: Command::Serve(args) })) => {
                return Ok(ServeArgs { line: self.line.clone(), file: Arc::clone(&self.file), ..*args });
            }
            Ok(_) => return Err("the command is another one".into()),
            Err(error) => problem(error),
        };
        // The error of all options together does not tell the line. Each option is read alone to
        // find the wrong one.
        let wrong = options.iter().find_map(|option| Some((option, read(&[option]).err()?)));
        Err(wrong.map_or(error, |(option, error)| {
            format!("line {}: `{}`: {}", option.line, option.key, problem(error))
        }))
    }
}

fn parsed(words: &[OsString], command: &mut clap::Command) -> Result<ArgMatches, clap::Error> {
    let matches = command.try_get_matches_from_mut(words);
    matches.map_err(|error| suggest::improved(error, words, &self::command()))
}

/// Reads a command line with variables of other servers, for tests: the arguments as text, and
/// notes about flags without effect.
#[doc(hidden)]
pub fn read_line(words: &[&str], variables: &[(&str, &str)]) -> Result<(String, Vec<String>), String> {
    let variable =
        |name: &str| variables.iter().find(|(own, _)| *own == name).map(|(_, value)| OsString::from(value));
    let read = Cli::read_with(words.iter().map(Into::into), &variable);
    let mut cli = read.map_err(|error| error.render().to_string())?;
    let notes = match &mut cli.command {
        Command::Serve(args) => std::mem::take(&mut args.without_effect),
        _ => Vec::new(),
    };
    Ok((format!("{cli:?}"), notes))
}

/// The command `latent serve`.
pub(crate) fn of_serve() -> clap::Command {
    let mut command = command_of(&["serve".into()]);
    command.build();
    command.find_subcommand("serve").cloned().unwrap_or(command)
}

/// Arguments that name a model. If one is given, variables of other servers do not name another.
const MODEL: [&str; 4] = ["models", "words", "hf_repo", "hf_file"];

/// Whether an argument or one of Latent's own variables sets a flag of `latent serve`.
fn is_set(matches: &ArgMatches, flag: &str, serve: &clap::Command) -> bool {
    let Some(("serve", matches)) = matches.subcommand() else { return false };
    let long = flag.trim_start_matches('-');
    let names = |arg: &clap::Arg| {
        arg.get_long() == Some(long) || arg.get_all_aliases().is_some_and(|all| all.contains(&long))
    };
    let Some(id) = serve.get_arguments().find(|arg| names(arg)).map(|arg| arg.get_id().as_str()) else {
        return false;
    };
    let given = |id: &str| {
        matches!(matches.value_source(id), Some(ValueSource::CommandLine | ValueSource::EnvVariable))
    };
    match id {
        // --hf-file selects a file of --hf-repo, so the variable LLAMA_ARG_HF_FILE may complete the
        // flag --hf-repo.
        "hf_file" => MODEL.into_iter().filter(|id| *id != "hf_repo").any(given),
        id if MODEL.contains(&id) => MODEL.into_iter().any(given),
        id => given(id),
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Answer one prompt
    Run(RunArgs),
    /// Chat with a model in the terminal
    #[command(after_help = CHAT_HELP)]
    Chat(ChatArgs),
    /// Serve models: a chat page, and the APIs of OpenAI, Anthropic, llama.cpp and Ollama
    #[command(after_help = SERVE_HELP, args_override_self = true)]
    Serve(Box<ServeArgs>),
    /// Print the logits after given tokens
    Logits(LogitsArgs),
    /// Show a model's metadata, tensors and memory needs
    Inspect(InspectArgs),
    /// Check whether a model is supported, which kernels run it, and what is missing
    #[command(
        after_help = "Examples:\n  latent check model.gguf\n  latent check config.json --json\n\nExit codes: 0 supported, 1 error, 2 not supported."
    )]
    Check(CheckArgs),
    /// Print or draw the circuit, the IR or the plan of a model
    #[command(
        after_help = "Examples:\n  latent graph -m model.gguf plan --rows 1\n  latent graph model.gguf --html plan.html\n  latent graph config.json --html plan.html --against model.gguf"
    )]
    Graph(GraphArgs),
    /// Check a model's circuit, plans and tensors against the audit rules
    #[command(
        // The name until 2026-11.
        alias = "audit",
        after_help = "Examples:\n  latent verify -m model.gguf\n  latent verify -m model.gguf --weights --json\n  latent verify --rules\n\nExit codes: 0 nothing found, 1 findings or an error, 2 model not supported."
    )]
    Verify(VerifyArgs),
    /// Show how a text is split into tokens
    Tokenize(TokenizeArgs),
    /// Write a model with random weights, for tests and measurements
    MakeModel(MakeModelArgs),
    /// Write a packed file, which loads in less than a second
    #[command(
        after_help = "Examples:\n  latent pack -m model.gguf                 writes model.latent\n  latent run -m model.latent \"Hello\"       model.gguf is not needed"
    )]
    Pack(PackArgs),
    /// Convert safetensors to GGUF, or GGUF to safetensors
    #[command(after_help = write::CONVERT_HELP)]
    Convert(ConvertArgs),
    /// Quantize a GGUF model
    #[command(after_help = QUANTIZE_HELP)]
    Quantize(QuantizeArgs),
    /// Compute an importance matrix from a text, for `latent quantize --imatrix`
    #[command(after_help = IMATRIX_HELP)]
    Imatrix(ImatrixArgs),
    /// Download or update a model from the Hugging Face Hub
    #[command(after_help = PULL_HELP)]
    Pull(PullArgs),
    /// List downloaded models
    #[command(visible_alias = "list")]
    Ls(LsArgs),
    /// Remove downloaded models
    #[command(
        after_help = "Examples:\n  latent rm hf:bartowski/DeepSeek-V2-Lite-Chat-GGUF:Q4_K_M\n  latent rm DeepSeek-V2-Lite-Chat-GGUF"
    )]
    Rm(RmArgs),
    /// Monitor a server
    #[command(after_help = TOP_HELP)]
    Top(TopArgs),
    /// Measure the speed of prompts and generation
    Bench(BenchArgs),
    /// Evaluate a model: perplexity, KL divergence, multiple choice, questions, retrieval, routing,
    /// weight errors
    Eval(Box<EvalArgs>),
    /// Measure each phase of a step, next to the machine's limit
    #[command(
        after_help = "Examples:\n  latent profile -m model.gguf\n  latent profile -m model.gguf -p 0 -n 32 -d 4096\n  latent profile -m model.gguf --simulate cores=64,nodes=2,gbs=400"
    )]
    Profile(ProfileArgs),
    /// Test and measure single kernels, without a model
    // The name until 2026-11.
    #[command(alias = "ops")]
    Kernels(KernelsArgs),
    /// Find where two runs diverge: two settings, two files, or a dump of another program
    #[command(after_help = values::DIFF_HELP)]
    Diff(DiffArgs),
    /// Write the activations of a run to a safetensors file
    #[command(
        after_help = "Example:\n  latent dump -m model.gguf --precision exact --tokens 1,2,3 ours.safetensors"
    )]
    Dump(DumpArgs),
    /// Propose how to split a model across hosts, and predict its speed
    #[command(after_help = plan_hosts::PLAN_HOSTS_HELP)]
    PlanHosts(PlanHostsArgs),
    /// List the devices for `--device`: the CPU, and GPUs with their features
    Devices(DevicesArgs),
    /// Check that this machine computes correctly, and measure its speed limits
    #[command(
        after_help = "Describes CPU, memory and GPUs, measures bandwidth and arithmetic, and runs\nthe demo model on every device and instruction set against the reference\nbackend. Takes about ten seconds. Paste the output into bug reports.\n\nExit codes: 0 all checks passed, 1 a check failed, or an error."
    )]
    SelfTest(SelfTestArgs),
    /// Print the licenses of the program and its dependencies
    Licenses,
    /// Print the version
    #[command(hide = true)]
    Version,
    /// Print a completion script for a shell
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Write man pages to a folder
    Man {
        /// The folder
        folder: PathBuf,

        /// Replace existing files
        #[arg(long)]
        force: bool,
    },
}
