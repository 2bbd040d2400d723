//! `latent run` and `latent chat`.

use super::limits::{seconds, tokens_or_all};
use super::model::ModelArgs;
use super::sampling::SamplingArgs;
use clap::Args;
use latent_engine::ContextShift;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// What `latent help chat` says at its end.
pub(crate) const CHAT_HELP: &str = "In the conversation:
  /help             list the commands: /edit, /regen, /undo, /save, /load, …
  //text            a message that begins with a slash (or a blank before it)
  Alt-Enter         a new line in the message; also Ctrl-J, or \\ and Enter
  Tab               complete a command
  Ctrl-C            stop an answer, clear the line, or (twice) leave
  Ctrl-D            leave

The input history is $XDG_STATE_HOME/latent/history (default:
~/.local/state/latent/history); the arrow keys and Ctrl-R search it.

If standard input is not a terminal, each line is one message or command (a line
that ends with \\ continues in the next one). The exit code is 1 if one failed.

Examples:
  latent chat model.gguf --context-shift
  latent chat model.gguf --prompt-cache talk.kv
  latent chat --url http://127.0.0.1:8080 --api-key-file key
  printf '%s\\n' 'Name a colour.' 'Another one.' | latent chat -q -m model.gguf";

/// Input of the chat template besides the messages.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Prompt, context and output")]
pub(crate) struct TemplateArgs {
    /// System message for the chat template
    // `system`: the spelling until 2026-11.
    #[arg(long, alias = "system", value_name = "TEXT")]
    pub(crate) system_prompt: Option<String>,

    /// Read the system message from this file
    #[arg(long, alias = "system-file", value_name = "FILE", conflicts_with = "system_prompt")]
    pub(crate) system_prompt_file: Option<PathBuf>,

    /// Tools that the model may call: a JSON file with a list in OpenAI's format, [{"type":
    /// "function", "function": {"name": …}}]
    #[arg(long, value_name = "FILE")]
    pub(crate) tools: Option<PathBuf>,

    /// Make the model think before it answers, if its chat template has such a switch
    #[arg(long, conflicts_with = "no_think")]
    pub(crate) think: bool,

    /// Make the model answer without thinking, if its chat template has such a switch
    #[arg(long)]
    pub(crate) no_think: bool,

    /// Parse control tokens (<|im_end|>, <think>) in prompts and messages. By default only the chat
    /// template writes them, so that a message cannot end its turn or begin another
    #[arg(long)]
    pub(crate) allow_special: bool,
}

/// A file with the KV cache and the conversation of an earlier run.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Prompt, context and output")]
pub(crate) struct PromptCacheArgs {
    /// Restore the KV cache and the conversation from this file if it exists, and save them at the
    /// end. `run` and `chat` read each other's files
    #[arg(long, value_name = "FILE")]
    pub(crate) prompt_cache: Option<PathBuf>,

    /// Read the file of --prompt-cache, but do not write it
    #[arg(long, requires = "prompt_cache")]
    pub(crate) prompt_cache_ro: bool,

    /// Restore the KV cache and the conversation from this file, which must exist; do not write it
    // The flag until 2026-11. It differs from --prompt-cache: the file must exist.
    #[arg(long, value_name = "FILE", hide = true, conflicts_with = "prompt_cache")]
    pub(crate) restore: Option<PathBuf>,
}

impl PromptCacheArgs {
    /// The file to restore from, if it exists.
    pub(crate) fn read(&self) -> Option<&Path> {
        // The first run with a prompt cache creates the file.
        let existing = self.prompt_cache.as_deref().filter(|path| path.exists());
        self.restore.as_deref().or(existing)
    }

    /// The file to save into at the end.
    pub(crate) fn written(&self) -> Option<&Path> {
        self.prompt_cache.as_deref().filter(|_| !self.prompt_cache_ro)
    }
}

/// What happens when the context is full.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Prompt, context and output")]
pub(crate) struct ShiftArgs {
    /// When the context is full, discard its older half and continue
    #[arg(long)]
    pub(crate) context_shift: bool,

    /// Number of tokens at the beginning that --context-shift keeps (-1: the whole prompt)
    /// [default: everything before the first user message]
    #[arg(long, value_name = "N", requires = "context_shift", value_parser = tokens_or_all(usize::MAX), allow_negative_numbers = true)]
    pub(crate) keep: Option<usize>,
}

impl ShiftArgs {
    /// The context shift, if requested. `usual` tokens of a prompt of `prompt` tokens are kept
    /// unless a flag gives another number.
    pub(crate) fn shift(&self, sampling: &SamplingArgs, usual: usize, prompt: usize) -> Option<ContextShift> {
        let keep = self.keep.map_or(usual, |keep| if keep == usize::MAX { prompt } else { keep });
        (self.context_shift && !sampling.ends_with_context()).then_some(ContextShift { keep, discard: 0 })
    }
}

/// What an answer has to obey.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Prompt, context and output")]
pub(crate) struct ConstraintArgs {
    /// Constrain the answer to JSON that matches this schema: a file, or the schema itself, which
    /// begins with {
    // `json-schema-file`: llama.cpp has one flag for the text and one for the file.
    #[arg(long, value_name = "FILE|TEXT", alias = "json-schema-file", conflicts_with = "grammar")]
    pub(crate) json_schema: Option<String>,

    /// Constrain the answer to this grammar: a file in llama.cpp's GBNF or llguidance's Lark
    /// (recognized by its ending or contents), or a GBNF grammar itself, which contains ::=
    // `grammar-file`: llama.cpp has one flag for the text and one for the file.
    #[arg(long, value_name = "FILE|TEXT", alias = "grammar-file")]
    pub(crate) grammar: Option<OsString>,
}

#[derive(Args, Debug)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) sampling: SamplingArgs,
    #[command(flatten)]
    pub(crate) shift: ShiftArgs,

    /// The model, as with -m, and the prompt. If the first argument is not a model, it is the
    /// prompt for the model of -m or the built-in one. Without a prompt, standard input is read
    /// (without a byte-order mark and the last line end); on a terminal, a chat starts
    #[arg(value_names = ["MODEL", "PROMPT"])]
    pub(crate) words: Vec<OsString>,

    /// The prompt
    #[arg(short, long, value_name = "TEXT", conflicts_with = "files")]
    pub(crate) prompt: Option<String>,

    /// Read the prompt from this file; several files are joined with line ends
    #[arg(short, long = "file", value_name = "FILE", conflicts_with = "tokens")]
    pub(crate) files: Vec<PathBuf>,

    /// Answer a conversation: a JSON file with a list of messages in OpenAI's format, or an object
    /// with the list `messages`
    #[arg(long, value_name = "FILE", conflicts_with_all = ["prompt", "files", "tokens", "raw", "system_prompt", "system_prompt_file"])]
    pub(crate) messages: Option<PathBuf>,

    /// Token ids instead of a prompt: 1,2,3
    #[arg(long, value_delimiter = ',', value_name = "IDS", conflicts_with_all = ["prompt", "files", "system_prompt", "system_prompt_file", "tools", "think", "no_think"])]
    pub(crate) tokens: Vec<u32>,

    #[command(flatten)]
    pub(crate) template: TemplateArgs,

    #[command(flatten)]
    pub(crate) constraint: ConstraintArgs,

    /// Use the prompt as it is, without the chat template
    #[arg(long, conflicts_with_all = ["system_prompt", "system_prompt_file", "tools", "think", "no_think"])]
    pub(crate) raw: bool,

    /// Print one JSON object with text, tokens and timings instead of streaming the text
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) prompt_cache: PromptCacheArgs,

    /// Save the KV cache and the conversation to this file at the end
    // The flag until 2026-11. It writes another file than the one of --restore.
    #[arg(long, value_name = "FILE", hide = true, conflicts_with = "prompt_cache")]
    pub(crate) save: Option<PathBuf>,

    /// Print only the text
    #[arg(short, long)]
    pub(crate) quiet: bool,
}

impl RunArgs {
    /// The arguments of a chat with the same model and settings.
    pub(crate) fn chat(&self) -> ChatArgs {
        ChatArgs {
            words: Vec::new(),
            prompt: None,
            model: self.model.clone(),
            sampling: self.sampling.clone(),
            shift: self.shift.clone(),
            template: self.template.clone(),
            constraint: self.constraint.clone(),
            prompt_cache: self.prompt_cache.clone(),
            server: UrlArgs { url: None, api_key_file: None, timeout: ANSWER_TIMEOUT },
            plain: false,
            no_history: false,
            quiet: self.quiet,
        }
    }

    /// The file to save the KV cache and the conversation into.
    pub(crate) fn saved(&self) -> Option<&Path> {
        self.save.as_deref().or(self.prompt_cache.written())
    }
}

/// Seconds without progress after which a server's answer fails. A prompt of 100k tokens on a CPU
/// takes minutes before its first token.
const ANSWER_TIMEOUT: f64 = 600.0;

/// A server to talk to.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Server")]
pub(crate) struct UrlArgs {
    /// Chat with a model of this server (OpenAI's chat completions), such as http://127.0.0.1:8080;
    /// -m then selects one of the server's models
    #[arg(long, value_name = "URL", conflicts_with_all = LOCAL)]
    pub(crate) url: Option<String>,

    /// A file whose first line is the API key of the server [default: the variable LATENT_API_KEY]
    #[arg(long, value_name = "FILE", requires = "url")]
    pub(crate) api_key_file: Option<PathBuf>,

    /// Seconds without new text after which an answer fails
    #[arg(long, value_name = "SECONDS", default_value_t = ANSWER_TIMEOUT, value_parser = seconds, requires = "url")]
    pub(crate) timeout: f64,
}

/// Flags that apply only to a model in this process.
// `conflicts_with_all` takes IDs of arguments, so a new flag of `EngineArgs` must be added here by
// hand.
const LOCAL: [&str; 25] = [
    "ctx_size",
    "threads",
    "batch_size",
    "cache_type",
    "precision",
    "device",
    "n_gpu_layers",
    "draft",
    "partition",
    "hosts_file",
    "wire",
    "hung_after",
    "force",
    "mla",
    "expanded_cache",
    "isa",
    "pin",
    "circuit",
    "context_shift",
    "prompt_cache",
    "restore",
    "allow_special",
    "no_model_sampling",
    "logprobs",
    "logit_bias",
];

#[derive(Args, Debug)]
pub(crate) struct ChatArgs {
    /// The model, as with -m, and the first message
    #[arg(value_names = ["MODEL", "TEXT"])]
    pub(crate) words: Vec<OsString>,

    /// The first message
    #[arg(short, long, value_name = "TEXT")]
    pub(crate) prompt: Option<String>,

    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) sampling: SamplingArgs,
    #[command(flatten)]
    pub(crate) shift: ShiftArgs,
    #[command(flatten)]
    pub(crate) template: TemplateArgs,
    #[command(flatten)]
    pub(crate) constraint: ConstraintArgs,

    #[command(flatten)]
    pub(crate) prompt_cache: PromptCacheArgs,

    #[command(flatten)]
    pub(crate) server: UrlArgs,

    /// Print answers as plain text, without formatting Markdown
    #[arg(long)]
    pub(crate) plain: bool,

    /// Do not read or write the input history
    #[arg(long)]
    pub(crate) no_history: bool,

    /// Print only answers and errors
    #[arg(short, long)]
    pub(crate) quiet: bool,
}
