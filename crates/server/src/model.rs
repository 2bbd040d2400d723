//! Models: sources and loaders as a program provides them, and the loaded model as requests see it.

use crate::adapters::{ServedAdapters, SetScales};
use crate::error::{ApiError, ContextOverflow};
use crate::ids;
use crate::items::{
    ArgumentForm, ContentForm, Conversation, ConversationItem, MessageText, Role, TemplateForms,
    template_messages,
};
use crate::json::count_values;
use crate::limits::Limits;
use crate::memory::RequestCharge;
use crate::reasoning::ReasoningLimit;
use crate::template_caps::template_caps;
use latent_engine::sampling::SamplingParams;
use latent_engine::{Engine, Pooling};
use latent_grammar::{GrammarError, GrammarLimits, GrammarSource, Grammars};
use latent_text::{
    ChatInput, ChatTemplate, EncodeOptions, ModelHints, RenderedText, ResponseFormat, TextError, Tokenizer,
};
use serde_json::{Map, Value, json};
use std::error::Error;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// A model that a [`Loader`] has loaded.
pub struct LoadedModel {
    pub engine: Engine,
    pub tokenizer: Arc<Tokenizer>,
    /// Facts from the file and the command line.
    pub about: ModelFacts,
}

/// Facts about a model in addition to its engine.
#[derive(Clone, Debug, Default)]
pub struct ModelFacts {
    /// The name in requests and responses.
    pub id: String,
    /// Its file, for display.
    pub path: String,
    /// Source of its chat template, if it has one.
    pub chat_template: Option<String>,
    /// The checkpoint's own `response_template`, if it has one.
    pub response_template: Option<Value>,
    /// Default sampling parameters.
    pub sampling: SamplingParams,
    /// Other defaults of requests.
    pub defaults: RequestDefaults,
    /// Size of its files in bytes.
    pub bytes: u64,
    /// The file type of its weights, such as Q4_K_M.
    pub quantization: Option<String>,
    /// Whether its loader loads it on another device after its device was lost, so that running
    /// requests can continue.
    pub falls_back: bool,
}

/// Defaults of request fields, which llama-server also takes from its command line.
#[derive(Clone, Debug, Default)]
pub struct RequestDefaults {
    /// Seed of the sampler. `None`: random for each request.
    pub seed: Option<u64>,
    /// Maximum number of tokens of an answer. Also an upper bound of the field.
    pub max_tokens: Option<usize>,
    /// Stop strings.
    pub stop: Vec<String>,
    /// Report log-probabilities of this many alternatives, in APIs that have a field for them.
    pub logprobs: Option<usize>,
    /// How hidden states are combined to an embedding.
    pub pooling: Pooling,
    /// Whether end-of-generation tokens are banned.
    pub ignore_eos: bool,
    /// Whether answers to plain prompts contain the names of control tokens.
    pub special: bool,
    /// Variables of the chat template.
    pub template_kwargs: Map<String, Value>,
    /// The constraint of answers to requests that have neither a constraint nor tools.
    pub constraint: Option<GrammarSource>,
    /// Whether an answer continues at a full context by discarding its oldest tokens.
    pub context_shift: bool,
    /// Tokens at the beginning that a context shift keeps; `usize::MAX`: the whole prompt.
    pub keep: usize,
    /// Whether a last message of the assistant is answered instead of continued.
    pub no_prefill: bool,
    /// Limit on reasoning; `None`: no limit.
    pub reasoning_limit: Option<ReasoningLimit>,
    /// Whether reasoning and its markers stay in the content.
    pub raw_reasoning: bool,
    /// Whether the prefix cache is bypassed.
    pub uncached: bool,
    /// Whether chat responses have the rendered prompt in `__verbose`.
    pub verbose: bool,
}

impl RequestDefaults {
    /// The maximum number of tokens of an answer, if the request sets `asked`.
    pub(crate) fn bounded(&self, asked: Option<usize>) -> Option<usize> {
        match (asked, self.max_tokens) {
            (Some(asked), Some(limit)) => Some(asked.min(limit)),
            (asked, limit) => asked.or(limit),
        }
    }
}

/// The error of a load. After [`EngineError::Memory`](latent_engine::EngineError), another model is
/// unloaded and the load is tried again.
pub type LoadError = Box<dyn Error + Send + Sync>;

/// Loads a model. Called again after an unload and after a fault of the engine.
pub type Loader = Box<dyn FnMut(&mut LoadAttempt<'_>) -> Result<LoadedModel, LoadError> + Send>;

/// The arguments of a [`Loader`].
pub struct LoadAttempt<'a> {
    /// Called with the number of bytes read and the total.
    pub progress: &'a mut dyn FnMut(u64, u64),
    /// Whether no other model is loaded that could be unloaded. Then a smaller context is better
    /// than an error.
    pub alone: bool,
    /// The error of the lost device, if the model is loaded again because of it.
    pub lost: Option<&'a str>,
}

/// Creates the HTML page of a model's drawing.
pub type DrawingSource = Arc<dyn Fn() -> Result<String, String> + Send + Sync>;

/// A model of a server, loaded or not.
pub struct ModelSource {
    /// The name in requests. While it is loaded, responses have [`ModelFacts::id`].
    pub name: String,
    /// Further names in requests.
    pub aliases: Vec<String>,
    /// Tags in lists of models.
    pub tags: Vec<String>,
    /// Its file, for display.
    pub path: String,
    /// Size of its files in bytes, 0 if unknown.
    pub bytes: u64,
    pub loader: Loader,
    pub drawing: Option<DrawingSource>,
    /// All settings of the model as text. When the list of models is read again, a model with
    /// another definition is loaded anew.
    pub definition: String,
    /// Settings that differ from the server's.
    pub settings: ModelSettings,
}

/// Settings of a single model.
#[derive(Clone, Debug, Default)]
pub struct ModelSettings {
    /// Maximum number of running requests.
    pub parallel: Option<usize>,
    /// Idle time before it is unloaded; `Some(None)`: never.
    pub unload_idle: Option<Option<Duration>>,
    /// Whether it is loaded when the server starts.
    pub load_on_startup: bool,
    /// Whether lists omit it. Requests can still name it.
    pub hidden: bool,
    /// Whether its files were downloaded, so that requests may delete them.
    pub removable: bool,
}

/// The dimensions of a model that requests depend on.
#[derive(Clone, Debug, Default)]
pub struct ModelFigures {
    /// Context length of a request in tokens.
    pub context: usize,
    pub architecture: String,
    /// Context length of the training in tokens.
    pub trained_context: usize,
    /// Size of the vocabulary.
    pub vocab: usize,
    /// Size of a hidden state.
    pub hidden: usize,
    pub parameters: u64,
    /// Bytes per token in the KV cache.
    pub token_bytes: usize,
    /// Bytes of recurrent state per sequence; 0 for models without.
    pub state_bytes: usize,
}

/// A loaded model as requests see it. The engine itself belongs to the worker's thread.
pub(crate) struct ServedModel {
    pub(crate) about: ModelFacts,
    pub(crate) adapters: ServedAdapters,
    pub(crate) tokenizer: Arc<Tokenizer>,
    pub(crate) template: Option<ChatTemplate>,
    forms: TemplateForms,
    /// The format of reasoning and tool calls.
    pub(crate) format: ResponseFormat,
    /// The format if the request has tools: `format`, or a common one if the model has none for
    /// calls.
    pub(crate) tool_format: ResponseFormat,
    /// Control tokens that occur in markers of these formats.
    pub(crate) control_tokens: Vec<String>,
    grammars: OnceLock<Result<Grammars, GrammarError>>,
    caps: OnceLock<Value>,
    /// Context length of a request in tokens.
    pub(crate) context: usize,
    pub(crate) architecture: String,
    pub(crate) trained_context: usize,
    pub(crate) vocab: usize,
    pub(crate) hidden: usize,
    pub(crate) parameters: u64,
    pub(crate) token_bytes: usize,
    pub(crate) state_bytes: usize,
    pub(crate) created: u64,
}

/// A prompt, ready to run.
#[derive(Clone, Debug, Default)]
pub(crate) struct PreparedPrompt {
    pub(crate) tokens: Vec<u32>,
    /// The rendered conversation. The response parser finds in its tail whether reasoning is open.
    pub(crate) rendered: Option<RenderedText>,
}

impl ServedModel {
    pub(crate) fn new(loaded: &LoadedModel, set: &Arc<SetScales>) -> Result<ServedModel, TextError> {
        let LoadedModel { engine, tokenizer, about } = loaded;
        let config = engine.config();
        let figures = ModelFigures {
            context: engine.context(),
            architecture: config.architecture.clone(),
            trained_context: config.context_length,
            vocab: config.vocab_size,
            hidden: config.hidden_size,
            parameters: engine.summary().parameters,
            token_bytes: engine.summary().token_bytes,
            state_bytes: engine.summary().state_bytes,
        };
        let served = ServedModel::without_engine(tokenizer, about, figures)?;
        Ok(ServedModel { adapters: ServedAdapters::of(engine, set), ..served })
    }

    pub(crate) fn without_engine(
        tokenizer: &Arc<Tokenizer>,
        about: &ModelFacts,
        figures: ModelFigures,
    ) -> Result<ServedModel, TextError> {
        let ModelFigures {
            context,
            architecture,
            trained_context,
            vocab,
            hidden,
            parameters,
            token_bytes,
            state_bytes,
        } = figures;
        let template = about.chat_template.as_deref().map(ChatTemplate::new).transpose()?;
        let forms = template.as_ref().map(template_forms).unwrap_or_default();
        // A warning and not an error: conversations without tool calls work.
        if let Some(problem) = template.as_ref().and_then(|template| changed_value(template, &forms)) {
            tracing::warn!(
                "the chat template of {:?} fails on conversations with tool calls, as in Transformers: {problem}; use a template that does not change its values",
                about.id
            );
        }
        let format = response_format(about, &architecture);
        let tool_format = if format.has_tools() { format.clone() } else { common_tools(&format) };
        let control_tokens = control_tokens(tokenizer, &[&format, &tool_format]);
        Ok(ServedModel {
            format,
            tool_format,
            control_tokens,
            grammars: OnceLock::new(),
            caps: OnceLock::new(),
            about: about.clone(),
            adapters: ServedAdapters::default(),
            tokenizer: Arc::clone(tokenizer),
            template,
            forms,
            context,
            architecture,
            trained_context,
            vocab,
            hidden,
            parameters,
            token_bytes,
            state_bytes,
            created: ids::now(),
        })
    }

    /// The grammar compiler.
    pub(crate) fn grammars(&self, limits: &Limits) -> Result<&Grammars, ApiError> {
        let own = GrammarLimits { source_bytes: limits.grammar_bytes, ..GrammarLimits::default() };
        // Created on first use: it takes as long as loading a tokenizer.
        let made = self.grammars.get_or_init(|| Grammars::new(&self.tokenizer, own));
        made.as_ref().map_err(|error| ApiError::invalid(error.to_string()))
    }

    /// The capabilities of its chat template; null without one.
    pub(crate) fn template_caps(&self) -> &Value {
        self.caps.get_or_init(|| match (&self.template, &self.about.chat_template) {
            (Some(template), Some(source)) => template_caps(template, source),
            _ => Value::Null,
        })
    }

    fn token_name(&self, id: Option<u32>) -> String {
        id.and_then(|id| self.tokenizer.token_text(id)).unwrap_or_default().to_owned()
    }

    /// Renders a conversation up to the position where the model continues.
    pub(crate) fn render(&self, conversation: &Conversation) -> Result<RenderedText, ApiError> {
        let Some(template) = &self.template else {
            let problem = "the model has no chat template: use /v1/completions or /completion with a prompt";
            return Err(ApiError::invalid(problem));
        };
        let (answered, started) = split_prefill(conversation, self.about.defaults.no_prefill);
        if answered.is_empty() {
            return Err(ApiError::field("messages", "at least one message is needed before the assistant's"));
        }
        // A prefill is appended after the template, since most templates cannot end in an open
        // message.
        check_arguments(answered)?;
        let messages = Value::Array(template_messages(answered, &self.forms));
        let mut input = ChatInput::of_tokenizer(messages, &self.tokenizer);
        let tools: Vec<Value> = conversation.offered().iter().map(|tool| tool.for_template()).collect();
        input.tools = (!tools.is_empty()).then(|| tools.into());
        // Variables of the request override those of the command line.
        input.extra = self.about.defaults.template_kwargs.clone();
        input.extra.extend(conversation.kwargs.clone());
        template.define_llama_cpp_variables(&mut input).map_err(template_error)?;
        // The prefill continues the assistant's turn, which the generation prompt opens.
        input.add_generation_prompt = conversation.generation_prompt || !started.is_empty();
        let mut rendered = template.render(&input).map_err(template_error)?;
        let open = self.format.opens_reasoning(&rendered);
        append_prefill(&mut rendered, started, open, self.format.reasoning_markers().unwrap_or(THINK));
        Ok(rendered)
    }

    /// The rendered conversation without BOS, if the tokenizer adds one. So the client can pass the
    /// text to `/completion`.
    pub(crate) fn render_text(&self, conversation: &Conversation) -> Result<String, ApiError> {
        let mut rendered = self.render(conversation)?;
        let bos = self.token_name(self.tokenizer.bos());
        // Only a BOS of the template is removed. At the start of a message's content it would be
        // text.
        let written = rendered.content.first().is_none_or(|range| range.start >= bos.len());
        if self.tokenizer.adds_bos() && !bos.is_empty() && written && rendered.text.starts_with(&bos) {
            rendered.text.drain(..bos.len());
        }
        Ok(rendered.text)
    }

    pub(crate) fn chat_prompt(&self, conversation: &Conversation) -> Result<PreparedPrompt, ApiError> {
        let rendered = self.render(conversation)?;
        let tokens = self.tokenizer.encode_rendered_within(&rendered, false, self.max_counted());
        let tokens = tokens.map_err(|error| self.text_error(error))?;
        let prompt = PreparedPrompt { tokens, rendered: Some(rendered) };
        self.check_length(&prompt)?;
        Ok(prompt)
    }

    /// The number of tokens of a conversation, even if they exceed the context.
    pub(crate) fn count_tokens(
        &self,
        conversation: &Conversation,
        charge: &RequestCharge,
    ) -> Result<usize, ApiError> {
        let rendered = self.render(conversation)?;
        // An upper bound: a token has at least one byte of text, except at the ends of the prompt.
        charge.grow(rendered.text.capacity() + size_of::<u32>() * rendered.text.len())?;
        let tokens = self.tokenizer.encode_rendered(&rendered, false);
        Ok(tokens.map_err(|error| self.text_error(error))?.len())
    }

    /// The number of tokens after which the tokenization of a prompt stops.
    fn max_counted(&self) -> usize {
        // More than the context, since clients shorten a prompt by the reported excess. Beyond that
        // the error has a lower bound, so that a huge prompt does not occupy a thread.
        self.context.saturating_mul(4)
    }

    /// Checks that a prompt leaves room for at least one token of the answer.
    pub(crate) fn check_length(&self, prompt: &PreparedPrompt) -> Result<(), ApiError> {
        let (tokens, context) = (prompt.tokens.len(), self.context);
        if tokens < context {
            return Ok(());
        }
        Err(ApiError::overflow(ContextOverflow { tokens, at_least: false, context, embeds: false }))
    }

    /// The prompt of a plain text.
    pub(crate) fn text_prompt(&self, text: &str, how: EncodeOptions) -> Result<PreparedPrompt, ApiError> {
        let tokens = self.tokenizer.encode_within(text, how, self.max_counted());
        Ok(PreparedPrompt { tokens: tokens.map_err(|error| self.text_error(error))?, rendered: None })
    }

    /// A prompt of token IDs.
    pub(crate) fn token_prompt(&self, param: &str, tokens: Vec<u32>) -> Result<PreparedPrompt, ApiError> {
        if let Some((at, id)) = tokens.iter().enumerate().find(|(_, id)| **id as usize >= self.vocab) {
            let problem =
                format!("token id {id} at {at} is out of range: the vocabulary has {} tokens", self.vocab);
            return Err(ApiError::field(param, problem));
        }
        Ok(PreparedPrompt { tokens, rendered: None })
    }

    pub(crate) fn text_error(&self, error: TextError) -> ApiError {
        match error {
            TextError::TooLong { tokens, .. } => ApiError::overflow(ContextOverflow {
                tokens,
                at_least: true,
                context: self.context,
                embeds: false,
            }),
            TextError::Internal { .. } => ApiError::internal(error.to_string()),
            other => ApiError::invalid(other.to_string()),
        }
    }
}

/// Maximum number of JSON values in the arguments of a conversation's tool calls.
const ARGUMENT_VALUES: usize = 1_000_000;

/// Checks the number of values in arguments.
fn check_arguments(items: &[ConversationItem]) -> Result<(), ApiError> {
    // Arguments are strings in the request, so `json_values` does not count their contents.
    // Templates get them as values.
    let count = |item: &ConversationItem| match item {
        ConversationItem::ToolCall { arguments, .. } => count_values(arguments),
        _ => 0,
    };
    let values: usize = items.iter().map(count).sum();
    if values <= ARGUMENT_VALUES {
        return Ok(());
    }
    let problem = format!(
        "the arguments of tool calls have about {values} values, more than the limit of {ARGUMENT_VALUES}"
    );
    Err(ApiError::field("messages", problem))
}

fn template_error(error: TextError) -> ApiError {
    match error {
        TextError::Template(problem) => {
            ApiError::invalid(format!("the model's chat template rejects these messages: {problem}"))
        }
        other => ApiError::invalid(other.to_string()),
    }
}

/// Splits a conversation into the part that the template renders and the prefill.
fn split_prefill(
    conversation: &Conversation,
    only_if_asked: bool,
) -> (&[ConversationItem], &[ConversationItem]) {
    let items = &conversation.items;
    if !conversation.prefill || (only_if_asked && !conversation.prefill_asked) {
        return (items, &[]);
    }
    let own = |item: &&ConversationItem| {
        matches!(
            item,
            ConversationItem::Message { role: Role::Assistant, .. } | ConversationItem::Reasoning(_)
        )
    };
    // Reasoning and the text after it are one message.
    let count = match items.as_slice() {
        [.., ConversationItem::Reasoning(_), ConversationItem::Message { role: Role::Assistant, .. }] => 2,
        _ => items.iter().rev().take(1).take_while(own).count(),
    };
    items.split_at(items.len() - count)
}

/// The reasoning markers of most models, for formats without their own.
const THINK: (&str, &str) = ("<think>", "</think>");

/// Appends a prefill. Its text is marked as content, in which names of control tokens are text; the
/// reasoning markers are not.
fn append_prefill(
    rendered: &mut RenderedText,
    items: &[ConversationItem],
    open: bool,
    markers: (&str, &str),
) {
    let Some(last) = items.last() else { return };
    let reasoning = items.iter().find_map(|item| match item {
        ConversationItem::Reasoning(text) => Some(text.as_str()),
        _ => None,
    });
    let mut push = |text: &str, content: bool| {
        let start = rendered.text.len();
        rendered.text.push_str(text);
        if content && !text.is_empty() {
            rendered.content.push(start..rendered.text.len());
        }
    };
    if let Some(reasoning) = reasoning {
        if !open {
            push(markers.0, false);
            push("\n", false);
        }
        push(reasoning, true);
    }
    if let ConversationItem::Message { text, .. } = last {
        let text = text.concatenated();
        // Text follows the reasoning, so open reasoning is closed even if the prefill has none.
        if open || reasoning.is_some() {
            push("\n", false);
            push(markers.1, false);
            push("\n\n", false);
        }
        push(&text, true);
    }
}

/// The response format of a model. A malformed `response_template` of the checkpoint is replaced by
/// a built-in format, with a warning.
fn response_format(about: &ModelFacts, architecture: &str) -> ResponseFormat {
    let hints = ModelHints {
        response_template: about.response_template.as_ref(),
        chat_template: about.chat_template.as_deref(),
        architecture: Some(architecture),
    };
    let without = || ResponseFormat::for_model(&ModelHints { response_template: None, ..hints });
    let format = ResponseFormat::for_model(&hints).or_else(|error| {
        tracing::warn!("the model's response_template is ignored: {error}");
        without()
    });
    // Not reached: tests compile all built-in formats.
    format.unwrap_or_else(|error| {
        tracing::error!("no response template can be used: {error}");
        empty_format()
    })
}

/// A format without fields: all output is content.
fn empty_format() -> ResponseFormat {
    let empty = json!({"fields": {}});
    match ResponseFormat::from_template(&empty).or_else(|_| ResponseFormat::named("hermes")) {
        Ok(format) => format,
        Err(error) => unreachable!("a built-in response template is malformed: {error}"),
    }
}

/// The format of tool calls for models without one: Hermes', which most such models have seen.
fn common_tools(format: &ResponseFormat) -> ResponseFormat {
    ResponseFormat::named("hermes").unwrap_or_else(|_| format.clone())
}

fn control_tokens(tokenizer: &Tokenizer, formats: &[&ResponseFormat]) -> Vec<String> {
    let markers: Vec<&str> = formats.iter().flat_map(|format| format.markers()).collect();
    let ids = 0..u32::try_from(tokenizer.vocab_size()).unwrap_or(u32::MAX);
    let names = ids.filter(|id| tokenizer.is_control(*id)).filter_map(|id| tokenizer.token_text(id));
    let named = names.filter(|name| !name.is_empty() && markers.iter().any(|marker| marker.contains(name)));
    named.map(str::to_owned).collect()
}

/// Finds the form in which a template expects messages, by rendering probes.
fn template_forms(template: &ChatTemplate) -> TemplateForms {
    let mut forms = TemplateForms { arguments: argument_form(template), ..TemplateForms::default() };
    type Field = fn(&mut TemplateForms) -> &mut ContentForm;
    let fields: [(&str, Field); 4] = [
        ("system", |forms| &mut forms.system),
        ("user", |forms| &mut forms.user),
        ("assistant", |forms| &mut forms.assistant),
        ("tool", |forms| &mut forms.tool),
    ];
    for (role, field) in fields {
        let accepts = |form: ContentForm| {
            // With the forms found so far, because the probe also has messages of earlier roles.
            let mut tried = forms;
            *field(&mut tried) = form;
            accepts_content(template, role, &tried)
        };
        *field(&mut forms) = match (accepts(ContentForm::Text), accepts(ContentForm::List)) {
            (true, true) => ContentForm::TextOrList,
            (false, true) => ContentForm::List,
            (_, false) => ContentForm::Text,
        };
    }
    forms
}

/// Whether a template accepts the content of a role's messages in this form. It must print all of
/// the text, and not in quotes, as Python or JSON print a list.
fn accepts_content(template: &ChatTemplate, role: &str, forms: &TemplateForms) -> bool {
    // Two parts: a template that prints only `content[0]` does not accept lists.
    const PARTS: [&str; 2] = ["first_probe", "second_probe"];
    let text = |of: &str| match of == role {
        true => MessageText::of_parts(PARTS.map(str::to_owned).into()),
        false => MessageText::from("x"),
    };
    let say = |of: Role| ConversationItem::Message { role: of, name: None, text: text(of.name()) };
    let mut items = Vec::new();
    if role == "system" {
        items.push(say(Role::System));
    }
    items.push(say(Role::User));
    if role == "tool" {
        let (id, name) = ("call00001".to_owned(), "f".to_owned());
        items.push(ConversationItem::ToolCall { id: id.clone(), name, arguments: "{}".into() });
        items.push(ConversationItem::ToolResult { id, name: None, text: text("tool") });
    } else {
        items.push(say(Role::Assistant));
    }
    items.push(ConversationItem::Message { role: Role::User, name: None, text: text("user") });
    let input = ChatInput::new(Value::Array(template_messages(&items, forms)));
    template.render(&input).is_ok_and(|rendered| {
        let text = rendered.text;
        PARTS.iter().all(|part| {
            text.contains(part)
                && !text.contains(&format!("'{part}'"))
                && !text.contains(&format!("\"{part}\""))
        })
    })
}

/// The error of a template that changes a list or dictionary, which Transformers' sandbox and ours
/// forbid.
fn changed_value(template: &ChatTemplate, forms: &TemplateForms) -> Option<String> {
    // Such a template works until the second turn of an agent. Rendering one when the model is
    // loaded shows the fault early.
    let say = |role: Role| ConversationItem::Message { role, name: None, text: "x".into() };
    let call =
        |id: &str| ConversationItem::ToolCall { id: id.into(), name: "f".into(), arguments: "{}".into() };
    let result = |id: &str| ConversationItem::ToolResult { id: id.into(), name: None, text: "x".into() };
    let (first, second) = ("call00001", "call00002");
    let items = [
        say(Role::User),
        call(first),
        call(second),
        result(first),
        result(second),
        say(Role::Assistant),
        say(Role::User),
    ];
    let mut input = ChatInput::new(Value::Array(template_messages(&items, forms)));
    input.tools = Some(
        json!([{"type": "function", "function": {"name": "f", "description": "x", "parameters": {"type": "object", "properties": {}}}}]),
    );
    match template.render(&input) {
        Err(TextError::Template(problem)) if problem.contains("would change") => Some(problem),
        _ => None,
    }
}

/// Finds the form in which a template expects the arguments of tool calls.
fn argument_form(template: &ChatTemplate) -> ArgumentForm {
    // An object that is expected as text is printed as a Python dictionary, with single quotes.
    // Text that is expected as an object is escaped JSON inside of JSON.
    let render = |arguments: ArgumentForm| {
        let forms = TemplateForms { arguments, ..TemplateForms::default() };
        let say = |role: Role| ConversationItem::Message { role, name: None, text: "x".into() };
        let call = ConversationItem::ToolCall {
            id: "call00001".into(),
            name: "f".into(),
            arguments: r#"{"probe_key": 1}"#.into(),
        };
        let result = ConversationItem::ToolResult { id: "call00001".into(), name: None, text: "x".into() };
        let items = [say(Role::User), call, result, say(Role::User)];
        let mut input = ChatInput::new(Value::Array(template_messages(&items, &forms)));
        input.tools = Some(
            json!([{"type": "function", "function": {"name": "f", "description": "x", "parameters": {"type": "object", "properties": {}}}}]),
        );
        template.render(&input).ok().map(|rendered| rendered.text)
    };
    let object = render(ArgumentForm::Object)
        .filter(|text| text.contains("probe_key") && !text.contains("'probe_key'"));
    if object.is_some() {
        return ArgumentForm::Object;
    }
    match render(ArgumentForm::Text).filter(|text| text.contains("\"probe_key\"")) {
        Some(_) => ArgumentForm::Text,
        // Also for templates that print no tool calls.
        None => ArgumentForm::Object,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_template_that_changes_a_list_is_found_when_it_is_loaded() {
        let problem = |source: &str| {
            let template = ChatTemplate::new(source).unwrap();
            changed_value(&template, &template_forms(&template))
        };
        let queue = "{% set queue = namespace(ids=[]) %}{% for m in messages %}{% for call in m.tool_calls or [] %}{% set _ = queue.ids.append(call.id) %}{% endfor %}{{ m.content }}{% endfor %}";
        let found = problem(queue).unwrap();
        assert!(found.contains("append"), "{found}");
        assert_eq!(
            problem(&queue.replace(
                "{% set _ = queue.ids.append(call.id) %}",
                "{% set queue.ids = queue.ids + [call.id] %}"
            )),
            None
        );
        // A template that raises an error on purpose does not have this fault.
        assert_eq!(problem("{{ raise_exception('no tools') }}"), None);
    }
}
