//! A loaded model as requests see it: its name, tokenizer, chat template and limits.

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

/// What the caller of the server has loaded.
pub struct LoadedModel {
    pub engine: Engine,
    pub tokenizer: Arc<Tokenizer>,
    /// What the file and the command line say about it.
    pub about: ModelFacts,
}

/// Facts about a model in addition to its engine.
#[derive(Clone, Debug, Default)]
pub struct ModelFacts {
    /// The name that requests use and answers carry.
    pub id: String,
    /// Its file, for people.
    pub path: String,
    /// Source of its chat template, if it has one.
    pub chat_template: Option<String>,
    /// The checkpoint's own `response_template`, if it has one.
    pub response_template: Option<Value>,
    /// Sampling where a request says nothing.
    pub sampling: SamplingParams,
    /// Everything else where a request says nothing.
    pub defaults: RequestDefaults,
    /// Bytes of its files.
    pub bytes: u64,
    /// The file type of its weights, such as Q4_K_M.
    pub quantization: Option<String>,
    /// Whether its loader loads it elsewhere once its device is lost, so that running requests can go on there.
    pub falls_back: bool,
}

/// Settings of an answer for requests that do not set them, as `llama-server` takes them from its command line.
#[derive(Clone, Debug, Default)]
pub struct RequestDefaults {
    /// Seed of the random choice. None: each request draws one.
    pub seed: Option<u64>,
    /// Maximum number of tokens of an answer. Also the upper limit of what a request can ask for.
    pub max_tokens: Option<usize>,
    /// Texts before which an answer stops.
    pub stop: Vec<String>,
    /// Report log-probabilities of this many alternatives, in the dialects that have a field for them.
    pub logprobs: Option<usize>,
    /// Which hidden states make an embedding.
    pub pooling: Pooling,
    /// Whether the tokens that end an answer are banned.
    pub ignore_eos: bool,
    /// Whether answers to plain prompts show control tokens.
    pub special: bool,
    /// Variables of the chat template.
    pub template_kwargs: Map<String, Value>,
    /// What the text of an answer must be, where a request neither says so nor offers tools.
    pub constraint: Option<GrammarSource>,
    /// Whether an answer goes on when the context is full: its oldest tokens are discarded.
    pub context_shift: bool,
    /// Tokens at the beginning that a context shift keeps; `usize::MAX`: the whole prompt.
    pub keep: usize,
    /// Whether an assistant's last message is answered rather than continued.
    pub no_prefill: bool,
    /// How long the model may reason. None: without a limit.
    pub reasoning_limit: Option<ReasoningLimit>,
    /// Whether reasoning and its markers stay in the content.
    pub raw_reasoning: bool,
    /// Whether prompts are computed without the cache.
    pub uncached: bool,
    /// Whether chat answers have the prompt in `__verbose`.
    pub verbose: bool,
}

impl RequestDefaults {
    /// The maximum number of tokens of an answer to a request that asks for `asked`.
    pub(crate) fn bounded(&self, asked: Option<usize>) -> Option<usize> {
        match (asked, self.max_tokens) {
            (Some(asked), Some(limit)) => Some(asked.min(limit)),
            (asked, limit) => asked.or(limit),
        }
    }
}

/// Why a model cannot be loaded. An [`EngineError::Memory`](latent_engine::EngineError) is answered with room: another model is unloaded.
pub type LoadError = Box<dyn Error + Send + Sync>;

/// Loads a model: when it is needed, and again after a fault of the engine.
pub type Loader = Box<dyn FnMut(&mut LoadAttempt<'_>) -> Result<LoadedModel, LoadError> + Send>;

/// What a loader is told.
pub struct LoadAttempt<'a> {
    /// Hears how many bytes of how many have been read.
    pub progress: &'a mut dyn FnMut(u64, u64),
    /// No other model is loaded that could make room: a smaller context is better than an error.
    pub alone: bool,
    /// Why the device is gone that had the model before, where that is why it is loaded again.
    pub lost: Option<&'a str>,
}

/// Makes the page of a model's drawing.
pub type DrawingSource = Arc<dyn Fn() -> Result<String, String> + Send + Sync>;

/// A model that a server has, loaded or not.
pub struct ModelSource {
    /// The name that requests use; while it is loaded, that of [`ModelFacts`] is shown.
    pub name: String,
    /// Further names that requests may use.
    pub aliases: Vec<String>,
    /// Words about it that lists show.
    pub tags: Vec<String>,
    /// Its file, for people.
    pub path: String,
    /// Bytes of its files, if that is known.
    pub bytes: u64,
    /// What loads it.
    pub loader: Loader,
    pub drawing: Option<DrawingSource>,
    /// Everything that it is made from, as text: a model whose definition has changed is loaded anew when the list of models is read again.
    pub definition: String,
    /// What is different from the server's settings.
    pub settings: ModelSettings,
}

/// Settings of one of several models.
#[derive(Clone, Debug, Default)]
pub struct ModelSettings {
    /// Most requests that run at once, if it has its own limit.
    pub parallel: Option<usize>,
    /// Idle time after which it is unloaded, if it has its own; none inside: never.
    pub unload_idle: Option<Option<Duration>>,
    /// Whether it is loaded when the server starts.
    pub load_on_startup: bool,
    /// Whether lists leave it out. Requests can name it all the same.
    pub hidden: bool,
    /// Whether its files were downloaded, and requests may delete them.
    pub removable: bool,
}

/// What requests depend on of a model's configuration.
#[derive(Clone, Debug, Default)]
pub struct ModelFigures {
    /// Tokens of context of one request.
    pub context: usize,
    /// The architecture's name.
    pub architecture: String,
    /// Tokens of context that the model was trained for.
    pub trained_context: usize,
    /// Tokens of the vocabulary.
    pub vocab: usize,
    /// Elements of a hidden state.
    pub hidden: usize,
    pub parameters: u64,
    /// Bytes that a token takes in the KV cache.
    pub token_bytes: usize,
    /// Bytes of the recurrent state of a sequence; 0 of models without.
    pub state_bytes: usize,
}

/// A loaded model.
pub(crate) struct ServedModel {
    pub(crate) about: ModelFacts,
    pub(crate) adapters: ServedAdapters,
    pub(crate) tokenizer: Arc<Tokenizer>,
    pub(crate) template: Option<ChatTemplate>,
    forms: TemplateForms,
    /// How the model writes reasoning and tool calls.
    pub(crate) format: ResponseFormat,
    /// The same with tool calls in the commonest form, where the model has none of its own.
    pub(crate) tool_format: ResponseFormat,
    /// Control tokens that are, or are in, markers of these formats.
    pub(crate) control_tokens: Vec<String>,
    grammars: OnceLock<Result<Grammars, GrammarError>>,
    caps: OnceLock<Value>,
    /// Tokens of context of one request.
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
    /// The rendered template, for the parser, which finds in its tail what is open.
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

    /// What compiles grammars; made when the first is needed, since that takes as long as loading a tokenizer.
    pub(crate) fn grammars(&self, limits: &Limits) -> Result<&Grammars, ApiError> {
        let own = GrammarLimits { source_bytes: limits.grammar_bytes, ..GrammarLimits::default() };
        let made = self.grammars.get_or_init(|| Grammars::new(&self.tokenizer, own));
        made.as_ref().map_err(|error| ApiError::invalid(error.to_string()))
    }

    /// What its chat template makes use of; null without one.
    pub(crate) fn template_caps(&self) -> &Value {
        self.caps.get_or_init(|| match (&self.template, &self.about.chat_template) {
            (Some(template), Some(source)) => template_caps(template, source),
            _ => Value::Null,
        })
    }

    /// The name of a token in the vocabulary.
    fn token_name(&self, id: Option<u32>) -> String {
        id.and_then(|id| self.tokenizer.token_text(id)).unwrap_or_default().to_owned()
    }

    /// Renders a conversation up to where the model goes on.
    pub(crate) fn render(&self, conversation: &Conversation) -> Result<RenderedText, ApiError> {
        let Some(template) = &self.template else {
            let problem = "the model has no chat template: use /v1/completions or /completion with a prompt";
            return Err(ApiError::invalid(problem));
        };
        let (answered, started) = split_prefill(conversation, self.about.defaults.no_prefill);
        if answered.is_empty() {
            return Err(ApiError::field("messages", "at least one message is needed before the assistant's"));
        }
        check_arguments(answered)?;
        let messages = Value::Array(template_messages(answered, &self.forms));
        let mut input = ChatInput::of_tokenizer(messages, &self.tokenizer);
        let tools: Vec<Value> = conversation.offered().iter().map(|tool| tool.for_template()).collect();
        input.tools = (!tools.is_empty()).then(|| tools.into());
        input.extra = self.about.defaults.template_kwargs.clone();
        input.extra.extend(conversation.kwargs.clone());
        template.define_llama_cpp_variables(&mut input).map_err(template_error)?;
        input.add_generation_prompt = conversation.generation_prompt || !started.is_empty();
        let mut rendered = template.render(&input).map_err(template_error)?;
        let open = self.format.opens_reasoning(&rendered);
        append_prefill(&mut rendered, started, open, self.format.reasoning_markers().unwrap_or(THINK));
        Ok(rendered)
    }

    /// The text of a conversation's prompt as [`text_prompt`](Self::text_prompt) is given it: without the token that begins it, where that is
    /// added to every prompt.
    pub(crate) fn render_text(&self, conversation: &Conversation) -> Result<String, ApiError> {
        let mut rendered = self.render(conversation)?;
        let bos = self.token_name(self.tokenizer.bos());
        let written = rendered.content.first().is_none_or(|range| range.start >= bos.len());
        if self.tokenizer.adds_bos() && !bos.is_empty() && written && rendered.text.starts_with(&bos) {
            rendered.text.drain(..bos.len());
        }
        Ok(rendered.text)
    }

    pub(crate) fn chat_prompt(&self, conversation: &Conversation) -> Result<PreparedPrompt, ApiError> {
        let rendered = self.render(conversation)?;
        let tokens = self.tokenizer.encode_rendered_within(&rendered, false, self.counted());
        let tokens = tokens.map_err(|error| self.text_error(error))?;
        let prompt = PreparedPrompt { tokens, rendered: Some(rendered) };
        self.check_length(&prompt)?;
        Ok(prompt)
    }

    /// The number of tokens of a conversation, whether they fit into the context or not.
    pub(crate) fn count_tokens(
        &self,
        conversation: &Conversation,
        charge: &RequestCharge,
    ) -> Result<usize, ApiError> {
        let rendered = self.render(conversation)?;
        // a token has at least one byte of text, apart from the ends of the prompt
        charge.grow(rendered.text.capacity() + size_of::<u32>() * rendered.text.len())?;
        let tokens = self.tokenizer.encode_rendered(&rendered, false);
        Ok(tokens.map_err(|error| self.text_error(error))?.len())
    }

    /// How many tokens of a prompt are counted. Clients that are told by how much a prompt is too long shorten it by as much.
    fn counted(&self) -> usize {
        self.context.saturating_mul(4)
    }

    /// Refuses a prompt that leaves no room for a token of the answer.
    pub(crate) fn check_length(&self, prompt: &PreparedPrompt) -> Result<(), ApiError> {
        let (tokens, context) = (prompt.tokens.len(), self.context);
        if tokens < context {
            return Ok(());
        }
        Err(ApiError::overflow(ContextOverflow { tokens, at_least: false, context, embeds: false }))
    }

    /// The prompt of a plain text.
    pub(crate) fn text_prompt(&self, text: &str, how: EncodeOptions) -> Result<PreparedPrompt, ApiError> {
        let tokens = self.tokenizer.encode_within(text, how, self.counted());
        Ok(PreparedPrompt { tokens: tokens.map_err(|error| self.text_error(error))?, rendered: None })
    }

    /// A prompt of token ids.
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

/// Values in the arguments of a conversation's tool calls.
const ARGUMENT_VALUES: usize = 1_000_000;

/// Refuses arguments with too many values. They are JSON text, which templates read as values.
fn check_arguments(items: &[ConversationItem]) -> Result<(), ApiError> {
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
            ApiError::invalid(format!("the model's chat template refuses these messages: {problem}"))
        }
        other => ApiError::invalid(other.to_string()),
    }
}

/// What is answered, and what the assistant has begun to say.
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
    // one message: what it thought and then said
    let count = match items.as_slice() {
        [.., ConversationItem::Reasoning(_), ConversationItem::Message { role: Role::Assistant, .. }] => 2,
        _ => items.iter().rev().take(1).take_while(own).count(),
    };
    items.split_at(items.len() - count)
}

/// The tags in which most models think.
const THINK: (&str, &str) = ("<think>", "</think>");

/// Appends what the assistant has begun to say. Its text counts as content, tags around its reasoning as the template's.
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
        if open || reasoning.is_some() {
            push("\n", false);
            push(markers.1, false);
            push("\n\n", false);
        }
        push(&text, true);
    }
}

/// The model's format: a template of the checkpoint that cannot be used is told of, and one of ours takes its place.
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
    // ours are compiled in tests
    format.unwrap_or_else(|error| {
        tracing::error!("no response template can be used: {error}");
        empty_format()
    })
}

/// Nothing is taken apart.
fn empty_format() -> ResponseFormat {
    let empty = json!({"fields": {}});
    match ResponseFormat::from_template(&empty).or_else(|_| ResponseFormat::named("hermes")) {
        Ok(format) => format,
        Err(error) => unreachable!("a built-in response template is malformed: {error}"),
    }
}

/// Tool calls as most models without a format of their own have seen them.
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

/// What a template wants messages to be like.
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

/// Whether a template writes the content of a role's message in this form: all of its text, and not as the list is written in Python or JSON.
fn accepts_content(template: &ChatTemplate, role: &str, forms: &TemplateForms) -> bool {
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

/// Why a template fails on the second turn of an agent, if it changes a list or a dictionary there: templates may not, here and in Transformers.
/// Its first turn works, so the fault would show only later.
fn changed_value(template: &ChatTemplate, forms: &TemplateForms) -> Option<String> {
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

/// How a template wants arguments: it is asked with both forms, and the form is right that it does not quote like Python or like JSON in JSON.
fn argument_form(template: &ChatTemplate) -> ArgumentForm {
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
        // a template that raises an error on purpose does not have this fault
        assert_eq!(problem("{{ raise_exception('no tools') }}"), None);
    }
}
