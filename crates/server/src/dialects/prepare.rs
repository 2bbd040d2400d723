//! Preparation of requests for all dialects: prompts, parsers, grammars and reasoning limits.

use super::content::content_text;
use crate::answer::{Parser, PreparedRequest, ReasoningBudget};
use crate::error::{ApiError, ErrorKind};
use crate::ids;
use crate::items::{Conversation, ReasoningLimitChoice, Tool, ToolChoice};
use crate::json::{ObjectFields, kind};
use crate::limits::Limits;
use crate::model::{PreparedPrompt, ServedModel};
use crate::models::Lease;
use crate::params::AnswerParams;
use latent_grammar::{
    CallableTool as GrammarTool, GrammarError, GrammarSource, Reasoning, ToolCalls,
    ToolRequirement as GrammarChoice,
};
use latent_text::{EncodeOptions, ParserOptions, RenderedText, ResponseFormat, ResponseParser};
use serde_json::Value;
use std::sync::Arc;

/// A parsed chat request. `about` has the dialect's settings of the response.
pub(super) struct ChatRequest<About> {
    pub(super) conversation: Conversation,
    pub(super) params: AnswerParams,
    pub(super) about: About,
}

impl<About> ChatRequest<About> {
    /// Prepares the request for the engine.
    pub(super) fn prepare(
        self,
        served: &Arc<Lease>,
        limits: &Limits,
    ) -> Result<(PreparedRequest, About), ApiError> {
        Ok((conversation(served, &self.conversation, self.params, limits)?, self.about))
    }
}

/// Prepares a conversation for the engine.
pub(super) fn conversation(
    served: &Arc<Lease>,
    conversation: &Conversation,
    params: AnswerParams,
    limits: &Limits,
) -> Result<PreparedRequest, ApiError> {
    let prompt = served.chat_prompt(conversation)?;
    let offered = !conversation.offered().is_empty();
    let format = if offered { &served.tool_format } else { &served.format };
    let tools: Value = conversation.offered().iter().map(Tool::for_template).collect();
    let mut prepared = PreparedRequest::new(Arc::clone(served), prompt, params);
    prepared.tool_bytes = conversation.offered().iter().map(|tool| tool.schema_bytes).sum();
    let rendered = prepared.prompt.rendered.take().unwrap_or_default();
    let response_parser = |parse_reasoning: bool| {
        let options = ParserOptions {
            parse_reasoning,
            parse_tools: offered,
            control_tokens: served.control_tokens.clone(),
            // IDs of tool calls derive from it. They must differ between the answers of a
            // conversation.
            id_seed: ids::seed(),
            ..ParserOptions::default()
        };
        let mut response = ResponseParser::new(format, &tools, &options);
        // The prompt may end inside of reasoning, which the template has opened.
        response.continue_prompt(&rendered);
        response
    };
    let raw = conversation.raw_reasoning.unwrap_or(served.about.defaults.raw_reasoning);
    for parser in &mut prepared.parsers {
        *parser = Parser::chat(response_parser(!raw));
    }
    // The server's default grammar must not make tool calls impossible.
    let default = || served.about.defaults.constraint.clone().filter(|_| !offered);
    let source = prepared.params.shape.source().or_else(default);
    let reasoning = reasoning(served, format, &rendered, source.as_ref());
    match source {
        Some(source) => constrain(&mut prepared, &source, reasoning.as_ref(), limits, "response_format")?,
        None if offered => constrain_tools(&mut prepared, conversation, format, reasoning.as_ref(), limits)?,
        None => {}
    }
    let limit = match &conversation.reasoning_limit {
        ReasoningLimitChoice::Server => served.about.defaults.reasoning_limit.as_ref(),
        ReasoningLimitChoice::Unlimited => None,
        ReasoningLimitChoice::Limited(limit) => Some(limit),
    };
    if let (Some(limit), Some((_, end))) = (limit, format.reasoning_markers()) {
        // The last processor: its forced tokens override the grammar, which does not know the
        // limit. The parser detects reasoning even if it is shown as content.
        for processors in &mut prepared.processors {
            let budget = ReasoningBudget::new(&served.tokenizer, response_parser(true), end, limit);
            processors.push(Box::new(budget.map_err(|error| served.text_error(error))?));
        }
    }
    Ok(prepared)
}

/// The unconstrained reasoning that may precede a constrained answer. It is allowed if the prompt
/// has opened it, or if the chat template contains its marker.
fn reasoning(
    served: &ServedModel,
    format: &ResponseFormat,
    prompt: &RenderedText,
    source: Option<&GrammarSource>,
) -> Option<Reasoning> {
    let (begin, end) = format.reasoning_markers()?;
    let open = format.opens_reasoning(prompt);
    let template = served.about.chat_template.as_deref().unwrap_or_default();
    // A grammar or regex of the client describes the whole output. A schema describes only the
    // answer.
    let own =
        matches!(source, Some(GrammarSource::Gbnf(_) | GrammarSource::Lark(_) | GrammarSource::Regex(_)));
    let thinks = template.contains(begin) && !own;
    (open || thinks).then(|| Reasoning { begin: begin.to_owned(), end: end.to_owned(), open })
}

/// Prepares plain prompts for the engine.
pub(super) fn texts(
    served: &Arc<Lease>,
    prompts: Vec<PreparedPrompt>,
    mut params: AnswerParams,
    limits: &Limits,
) -> Result<Vec<PreparedRequest>, ApiError> {
    // A parsed schema takes many times the memory of its text, so all prompts share one.
    let own = std::mem::take(&mut params.shape).source();
    let source = own.or_else(|| served.about.defaults.constraint.clone());
    let one = |prompt| {
        let mut prepared = PreparedRequest::new(Arc::clone(served), prompt, params.clone());
        if let Some(source) = &source {
            constrain(&mut prepared, source, None, limits, "grammar")?;
        }
        Ok(prepared)
    };
    prompts.into_iter().map(one).collect()
}

/// Adds a grammar to each answer.
fn constrain(
    prepared: &mut PreparedRequest,
    source: &GrammarSource,
    reasoning: Option<&Reasoning>,
    limits: &Limits,
    param: &str,
) -> Result<(), ApiError> {
    let grammars = prepared.served.grammars(limits)?;
    let grammar = grammars.compile(source, reasoning).map_err(|error| grammar_error(param, &error))?;
    for processors in &mut prepared.processors {
        processors.push(Box::new(grammar.constraint()));
    }
    Ok(())
}

fn grammar_error(param: &str, error: &GrammarError) -> ApiError {
    match error {
        GrammarError::Busy(_) => {
            ApiError::new(ErrorKind::Busy, error.to_string()).retry(std::time::Duration::from_secs(1))
        }
        error if error.is_of_request() => ApiError::field(param, error),
        error => ApiError::internal(error.to_string()),
    }
}

/// Constrains tool calls to the model's format, and enforces required calls.
fn constrain_tools(
    prepared: &mut PreparedRequest,
    conversation: &Conversation,
    format: &ResponseFormat,
    reasoning: Option<&Reasoning>,
    limits: &Limits,
) -> Result<(), ApiError> {
    let choice = match &conversation.tool_choice {
        ToolChoice::None => return Ok(()),
        ToolChoice::Auto => GrammarChoice::Auto,
        ToolChoice::Required => GrammarChoice::Required,
        ToolChoice::Named(name) => GrammarChoice::Named(name.clone()),
    };
    let Some(own) = format.tool_grammar() else {
        // The format comes from the checkpoint's `response_template`, which can parse calls but
        // does not define a grammar.
        if choice == GrammarChoice::Auto && conversation.allowed.is_none() {
            return Ok(());
        }
        return Err(ApiError::field(
            "tool_choice",
            "forcing or restricting tool calls is not supported for this model's tool call format",
        ));
    };
    let tool = |tool: &Tool| GrammarTool {
        name: tool.name.clone(),
        parameters: tool.parameters.clone(),
        strict: tool.strict,
    };
    let calls = ToolCalls {
        format: own.clone(),
        free_markers: format.free_markers(&prepared.served.control_tokens),
        tools: conversation.callable().map(tool).collect(),
        choice,
        parallel: conversation.parallel,
    };
    constrain(prepared, &GrammarSource::Tools(Box::new(calls)), reasoning, limits, "tools")
}

/// How a prompt is tokenized.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PromptInput {
    /// With control tokens by name: the client has applied the chat template itself.
    Raw,
    /// Names of control tokens are text.
    Plain,
    /// As `Plain`, inside of a prompt, so without BOS.
    Part,
}

impl PromptInput {
    fn encode(self) -> EncodeOptions {
        EncodeOptions { add_special: self != PromptInput::Part, parse_special: self == PromptInput::Raw }
    }
}

/// The prompts of a field: a text, a list of token IDs, or a list of either.
pub(super) fn prompts(
    served: &ServedModel,
    fields: &ObjectFields<'_>,
    name: &str,
    limits: &Limits,
    input: PromptInput,
) -> Result<Vec<PreparedPrompt>, ApiError> {
    for media in ["multimodal_data", "image_data"] {
        if fields.get(media).is_some_and(is_given) {
            return Err(fields.error(media, no_multimodal()));
        }
    }
    let value = fields.get(name).ok_or_else(|| fields.missing(name))?;
    let path = fields.path(name);
    let one = |path: &str, value: &Value| one_prompt(served, path, value, input);
    let prompts = match value {
        Value::Array(list)
            if list.iter().any(|value| value.is_string() || value.is_array() || value.is_object()) =>
        {
            // OpenAI: a list of numbers is one prompt, a list of strings or lists is several.
            // llama.cpp: a list of strings and numbers is one prompt.
            let mixed = list.iter().any(Value::is_number);
            if mixed {
                return Ok(vec![mixed_prompt(served, &path, list, input)?]);
            }
            limits.check(&path, "inputs", list.len(), limits.inputs)?;
            let number = |(i, value): (usize, &Value)| one(&format!("{path}[{i}]"), value);
            list.iter().enumerate().map(number).collect::<Result<_, _>>()?
        }
        value => vec![one(&path, value)?],
    };
    Ok(prompts)
}

/// The error for requests with images or audio.
fn no_multimodal() -> String {
    "this model does not support multimodal requests: send text alone".into()
}

/// Whether a field is neither null nor an empty list: `image_data: []` is harmless.
fn is_given(value: &Value) -> bool {
    !(value.is_null() || value.as_array().is_some_and(Vec::is_empty))
}

/// The prompt of a text.
fn plain_prompt(served: &ServedModel, text: &str, input: PromptInput) -> Result<PreparedPrompt, ApiError> {
    let mut prompt = served.text_prompt(text, input.encode())?;
    // A client that has applied the chat template sends BOS as text. The tokenizer adds another
    // one, and answers degrade with two.
    let bos = served.tokenizer.bos();
    let own = input == PromptInput::Raw && served.tokenizer.adds_bos();
    if own && bos.is_some() && prompt.tokens.first().copied() == bos && prompt.tokens.get(1).copied() == bos {
        prompt.tokens.remove(0);
    }
    Ok(prompt)
}

fn one_prompt(
    served: &ServedModel,
    path: &str,
    value: &Value,
    input: PromptInput,
) -> Result<PreparedPrompt, ApiError> {
    let prompt = match value {
        Value::String(text) => plain_prompt(served, text, input)?,
        Value::Array(list) => mixed_prompt(served, path, list, input)?,
        // llama.cpp's format of a prompt with media.
        Value::Object(map) if map.get("multimodal_data").is_some_and(is_given) => {
            return Err(ApiError::field(format!("{path}.multimodal_data"), no_multimodal()));
        }
        Value::Object(map) => match map.get("prompt_string").and_then(Value::as_str) {
            Some(text) => plain_prompt(served, text, input)?,
            None => plain_prompt(served, &parts_text(path, value)?, input)?,
        },
        other => {
            return Err(ApiError::field(
                path,
                format!("expected a string or token ids, found {}", kind(other)),
            ));
        }
    };
    if prompt.tokens.is_empty() {
        return Err(ApiError::field(path, "the prompt has no tokens"));
    }
    served.check_length(&prompt).map_err(|error| ApiError { param: Some(path.to_owned()), ..error })?;
    Ok(prompt)
}

/// The text of `{"content": [parts]}`, llama.cpp's format of an embedding input with media.
fn parts_text(path: &str, value: &Value) -> Result<String, ApiError> {
    let fields = ObjectFields::of(value, path)?;
    if fields.array("content")?.is_none_or(Vec::is_empty) {
        let problem =
            "expected a string, token ids, or an object with `prompt_string` or a list of parts in `content`";
        return Err(ApiError::field(path, problem));
    }
    Ok(content_text(&fields, "content")?.concatenated())
}

/// llama.cpp's mixed prompts: a list of texts and token IDs.
pub(super) fn mixed_prompt(
    served: &ServedModel,
    path: &str,
    list: &[Value],
    input: PromptInput,
) -> Result<PreparedPrompt, ApiError> {
    let mut tokens = Vec::new();
    for (i, value) in list.iter().enumerate() {
        match value {
            Value::String(text) => {
                // Only a text at the beginning gets BOS.
                let text = match i {
                    0 => plain_prompt(served, text, input)?,
                    _ => served.text_prompt(text, EncodeOptions { add_special: false, ..input.encode() })?,
                };
                tokens.extend(text.tokens);
            }
            value => tokens.push(token(path, i, value)?),
        }
    }
    served.token_prompt(path, tokens)
}

fn token(path: &str, i: usize, value: &Value) -> Result<u32, ApiError> {
    let id = value.as_u64().and_then(|id| u32::try_from(id).ok());
    id.ok_or_else(|| ApiError::field(format!("{path}[{i}]"), format!("expected a token id, found {value}")))
}
