//! Settings of answers whose requests do not set them: templates, their variables, and what texts must be.

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

/// Largest file of a chat template, in bytes.
const MAX_TEMPLATE: u64 = 1 << 20;

/// The template of ChatML, which llama.cpp has by this name.
const CHATML: &str = "{%- for message in messages -%}
{{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|im_start|>assistant\n' -}}
{%- endif -%}";

/// Settings of answers whose requests do not set them.
#[derive(Clone, Debug, Default)]
pub(super) struct AnswerDefaults {
    /// The chat template in place of the model's.
    pub(super) template: Option<String>,
    pub(super) defaults: RequestDefaults,
    constraint: Option<ConstraintArgs>,
}

impl AnswerDefaults {
    /// Reads what the flags name.
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

    /// Compiles the schema or grammar of all answers, so that a fault in it is told at the start.
    pub(super) fn check(&self, tokenizer: &Arc<Tokenizer>) -> Result<(), UsageError> {
        if let Some(args) = &self.constraint {
            AnswerConstraint::new(args, tokenizer, None).map_err(|error| UsageError(format!("{error:#}")))?;
        }
        Ok(())
    }
}

/// The source of a chat template: a file with it, or itself.
fn template(given: &str) -> Result<String> {
    let source = match given {
        "chatml" => CHATML.to_owned(),
        given if given.contains('{') => given.to_owned(),
        path => input_file::read_text(Path::new(path), MAX_TEMPLATE).map_err(|error| {
            UsageError(format!(
                "--chat-template: {error}; of llama.cpp's built-in templates only chatml is known by its name: give a file with the template"
            ))
        })?,
    };
    ChatTemplate::new(&source).map_err(|error| UsageError(format!("--chat-template: {error}")))?;
    Ok(source)
}

/// The limit on reasoning; -1 is none.
fn reasoning_limit(args: &AnswerArgs) -> Option<ReasoningLimit> {
    let tokens = args.reasoning_budget.and_then(|tokens| usize::try_from(tokens).ok())?;
    Some(ReasoningLimit { tokens, message: args.reasoning_budget_message.clone().unwrap_or_default() })
}

/// Variables of the chat template. Templates have three names for the switch; a variable that a template does not read does nothing.
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
    for name in ["enable_thinking", "thinking"] {
        variables.extend(thinks.map(|thinks| (name.to_owned(), thinks.into())));
    }
    let Some(text) = &args.chat_template_kwargs else { return Ok(variables) };
    match json::parse(text) {
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
