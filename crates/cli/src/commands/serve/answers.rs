//! Defaults of requests from flags: template, its variables, constraints.

use crate::args::{AnswerArgs, ConstraintArgs, ReasoningPlace, ReasoningSwitch};
use crate::commands::constraint::{self, AnswerConstraint};
use crate::exit::UsageError;
use anyhow::Result;
use latent_formats::{input_file, json};
use latent_server::{ReasoningLimit, RequestDefaults};
use latent_text::{ChatTemplate, Tokenizer};
use serde_json::{Map, Value};
use std::path::Path;
use std::sync::Arc;

/// Maximum bytes of a chat template.
const MAX_TEMPLATE_BYTES: u64 = 1 << 20;

/// The ChatML template. llama.cpp has it built in under the name `chatml`.
const CHATML: &str = "{%- for message in messages -%}
{{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|im_start|>assistant\n' -}}
{%- endif -%}";

/// Defaults of requests.
#[derive(Clone, Debug, Default)]
pub(super) struct AnswerDefaults {
    /// The chat template that replaces the model's.
    pub(super) template: Option<String>,
    pub(super) defaults: RequestDefaults,
    constraint: Option<ConstraintArgs>,
}

impl AnswerDefaults {
    /// Reads the flags and their files.
    pub(super) fn new(args: &AnswerArgs, verbose: bool) -> Result<AnswerDefaults> {
        let constraint = constraint::asked(&args.constraint)?;
        Ok(AnswerDefaults {
            template: args.chat_template.as_deref().map(template).transpose()?,
            defaults: RequestDefaults {
                context_shift: args.context_shift,
                keep: args.keep.unwrap_or(0),
                special: args.special,
                verbose,
                uncached: args.no_cache_prompt,
                no_prefill: args.no_prefill_assistant,
                reasoning_limit: reasoning_limit(args),
                raw_reasoning: matches!(args.reasoning_format, Some(ReasoningPlace::None)),
                pooling: args.pooling.unwrap_or_default(),
                template_kwargs: variables(args)?,
                constraint: constraint.map(|(_, source)| source),
                ..RequestDefaults::default()
            },
            constraint: Some(args.constraint.clone()),
        })
    }

    /// Compiles the schema or grammar of all answers, so that an error in it is reported at the
    /// start.
    pub(super) fn check(&self, tokenizer: &Arc<Tokenizer>) -> Result<(), UsageError> {
        if let Some(args) = &self.constraint {
            AnswerConstraint::new(args, tokenizer, None).map_err(|error| UsageError(format!("{error:#}")))?;
        }
        Ok(())
    }
}

/// The source of a chat template: its text, `chatml`, or a file.
fn template(given: &str) -> Result<String> {
    let source = match given {
        "chatml" => CHATML.to_owned(),
        // Every template has a `{{` or `{%`.
        given if given.contains('{') => given.to_owned(),
        path => input_file::read_text(Path::new(path), MAX_TEMPLATE_BYTES).map_err(|error| {
            UsageError(format!(
                "--chat-template: {error}; of llama.cpp's built-in template names only chatml is supported: \
                 use a file with the template"
            ))
        })?,
    };
    ChatTemplate::new(&source).map_err(|error| UsageError(format!("--chat-template: {error}")))?;
    Ok(source)
}

/// The limit of reasoning.
fn reasoning_limit(args: &AnswerArgs) -> Option<ReasoningLimit> {
    // As in llama-server, -1 means no limit: `try_from` fails.
    let tokens = args.reasoning_budget.and_then(|tokens| usize::try_from(tokens).ok())?;
    Some(ReasoningLimit { tokens, message: args.reasoning_budget_message.clone().unwrap_or_default() })
}

/// Variables of the chat template from the flags.
fn variables(args: &AnswerArgs) -> Result<Map<String, Value>> {
    let mut variables = Map::new();
    let effort = args.reasoning_effort.as_deref().filter(|effort| *effort != "default");
    if let Some(effort) = effort {
        variables.insert("reasoning_effort".into(), effort.into());
    }
    let thinks = match args.reasoning {
        Some(ReasoningSwitch::On) => Some(true),
        Some(ReasoningSwitch::Off) => Some(false),
        Some(ReasoningSwitch::Auto) | None => effort.map(|effort| effort != "none"),
    };
    // Templates know the switch as `enable_thinking` (Qwen, GLM), `thinking` (DeepSeek) or
    // `reasoning_effort` (gpt-oss). A variable that a template does not read has no effect.
    for name in ["enable_thinking", "thinking"] {
        variables.extend(thinks.map(|thinks| (name.to_owned(), thinks.into())));
    }
    let Some(text) = &args.chat_template_kwargs else { return Ok(variables) };
    match json::parse(text) {
        // Last, so that these variables override those of --reasoning and --reasoning-effort.
        Ok(Value::Object(own)) => variables.extend(own),
        Ok(_) => {
            let problem =
                "--chat-template-kwargs: expected a JSON object such as {\"enable_thinking\": false}";
            return Err(UsageError(problem.into()).into());
        }
        Err(problem) => return Err(UsageError(format!("--chat-template-kwargs: {problem}")).into()),
    }
    Ok(variables)
}
