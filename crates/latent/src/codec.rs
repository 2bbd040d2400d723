//! The text side of a model: tokenizer, chat template and response format.

use crate::conversation::{self, Chat, ChatOptions};
use crate::error::{Error, ErrorKind};
use crate::open;
use latent_formats::Checkpoint;
use latent_graph::ModelConfig;
use latent_text::{
    ChatInput, ChatTemplate, EncodeOptions, ModelHints, RenderedText, ResponseFormat, Tokenizer,
};
use serde_json::Value;
use std::path::Path;
use std::sync::Arc;

/// Tokenizer and chat template of a model. The weights are not loaded.
///
/// ```no_run
/// use latent::{Chat, TextCodec};
/// let codec = TextCodec::open("model.gguf")?;
/// let tokens = codec.encode("Once upon a time", true, false)?;
/// assert_eq!(codec.decode(&tokens, false)?, "Once upon a time");
/// let prompt = codec.render(&Chat::new().user("Hi"))?;
/// println!("{} takes {} tokens", prompt.text(), prompt.tokens().len());
/// # Ok::<(), latent::Error>(())
/// ```
#[derive(Clone)]
pub struct TextCodec {
    tokenizer: Arc<Tokenizer>,
    template: Option<Arc<ChatTemplate>>,
    template_source: Option<String>,
    format: ResponseFormat,
    /// Why the model's own response format is not used.
    warning: Option<String>,
}

/// A rendered conversation: the prompt of a model.
#[derive(Clone, Debug)]
pub struct ChatPrompt {
    pub(crate) rendered: RenderedText,
    pub(crate) tools: Value,
    tokens: Vec<u32>,
}

impl ChatPrompt {
    /// The prompt of a conversation that the caller has rendered and encoded. `tools` is the list
    /// of tools of the conversation, or null: the answer is parsed with them.
    pub fn new(rendered: RenderedText, tools: Value, tokens: Vec<u32>) -> ChatPrompt {
        ChatPrompt { rendered, tools, tokens }
    }

    /// The text.
    pub fn text(&self) -> &str {
        &self.rendered.text
    }

    /// The tokens.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }
}

impl TextCodec {
    /// Opens the tokenizer and the chat template of the model at `path`, of any kind that
    /// [`Model::builder`](crate::Model::builder) loads.
    ///
    /// # Errors
    /// If the file cannot be read or is not supported.
    pub fn open(path: impl AsRef<Path>) -> Result<TextCodec, Error> {
        let checkpoint = open::open(path)?;
        TextCodec::of(&checkpoint, &ModelConfig::from_checkpoint(&checkpoint)?)
    }

    pub(crate) fn of(checkpoint: &Checkpoint, config: &ModelConfig) -> Result<TextCodec, Error> {
        let tokenizer = Tokenizer::from_checkpoint(checkpoint).map_err(|error| named(checkpoint, error))?;
        TextCodec::new(tokenizer, checkpoint, config)
    }

    /// A tokenizer of the caller's own with the chat template of an open model, for
    /// [`ModelBuilder::text`](crate::ModelBuilder::text).
    ///
    /// # Errors
    /// If the chat template is not supported.
    pub fn new(
        tokenizer: Tokenizer,
        checkpoint: &Checkpoint,
        config: &ModelConfig,
    ) -> Result<TextCodec, Error> {
        let template_source = latent_text::chat_template(checkpoint)?.map(str::to_owned);
        let template = template_source.as_deref().map(ChatTemplate::new).transpose()?.map(Arc::new);
        let (format, warning) = response_format(checkpoint, config, template_source.as_deref())?;
        Ok(TextCodec { tokenizer: Arc::new(tokenizer), template, template_source, format, warning })
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> &Arc<Tokenizer> {
        &self.tokenizer
    }

    /// The source of the chat template, if the model has one.
    pub fn chat_template(&self) -> Option<&str> {
        self.template_source.as_deref()
    }

    /// The compiled chat template, if the model has one.
    pub fn template(&self) -> Option<&ChatTemplate> {
        self.template.as_deref()
    }

    /// The format in which the model writes reasoning and tool calls.
    pub fn format(&self) -> &ResponseFormat {
        &self.format
    }

    /// Why the model's own response format is not used, if so.
    pub fn warning(&self) -> Option<&str> {
        self.warning.as_deref()
    }

    /// The tokens of a text. `add_special` adds the tokens that begin (and end) a prompt.
    /// `parse_special` recognizes names of control tokens; do not set it for untrusted text.
    ///
    /// # Errors
    /// If the text cannot be encoded.
    pub fn encode(&self, text: &str, add_special: bool, parse_special: bool) -> Result<Vec<u32>, Error> {
        Ok(self.tokenizer.encode(text, EncodeOptions { add_special, parse_special })?)
    }

    /// The text of tokens, with the names of control tokens if `special`. Invalid UTF-8 becomes
    /// U+FFFD.
    ///
    /// # Errors
    /// If a token is not in the vocabulary.
    pub fn decode(&self, tokens: &[u32], special: bool) -> Result<String, Error> {
        let known = self.tokenizer.vocab_size();
        match tokens.iter().position(|token| *token as usize >= known) {
            None => Ok(self.tokenizer.decode(tokens, special)),
            Some(at) => Err(Error::argument_named(
                "tokens",
                format!("token id {} at {at} is out of range: the tokenizer has {known} tokens", tokens[at]),
            )),
        }
    }

    /// Renders a conversation. Names of control tokens in messages are encoded as plain text.
    ///
    /// # Errors
    /// If a message has no role, the model has no template, or the template refuses the messages.
    pub fn render(&self, chat: &Chat) -> Result<ChatPrompt, Error> {
        let (messages, options) = chat.clone().into_parts();
        self.render_json(messages, &options)
    }

    pub(crate) fn render_json(&self, messages: Value, options: &ChatOptions) -> Result<ChatPrompt, Error> {
        conversation::check(&messages)?;
        let Some(template) = &self.template else {
            let problem = "the model has no chat template: generate from a text";
            return Err(Error::new(ErrorKind::Text, problem));
        };
        let input = ChatInput {
            tools: options.tools.clone(),
            add_generation_prompt: options.add_generation_prompt,
            extra: options.variables.clone(),
            ..ChatInput::of_tokenizer(messages, &self.tokenizer)
        };
        let rendered = template.render(&input)?;
        // `false`: names of control tokens become tokens only if the template itself wrote them.
        let tokens = self.tokenizer.encode_rendered(&rendered, false)?;
        Ok(ChatPrompt { rendered, tools: options.tools.clone().unwrap_or(Value::Null), tokens })
    }
}

/// Adds the name of the file to an error of the tokenizer.
fn named(checkpoint: &Checkpoint, error: latent_text::TextError) -> Error {
    let error = Error::from(error);
    match error.kind() {
        // The message has the path already.
        ErrorKind::NotFound => error,
        _ => error.prefixed(&format!("{}: ", checkpoint.display_name())),
    }
}

/// The response format: that of the model, or a built-in one with a warning if the model's cannot
/// be used.
fn response_format(
    checkpoint: &Checkpoint,
    config: &ModelConfig,
    chat_template: Option<&str>,
) -> Result<(ResponseFormat, Option<String>), Error> {
    let hints = ModelHints {
        response_template: latent_text::response_template(checkpoint),
        chat_template,
        architecture: Some(config.architecture.as_str()),
    };
    let failed = match ResponseFormat::for_model(&hints) {
        Ok(format) => return Ok((format, None)),
        Err(error) => error,
    };
    let without = ModelHints { response_template: None, ..hints };
    // Built-in formats are valid, so an error here is one of Latent.
    let format = ResponseFormat::for_model(&without)
        .map_err(|error| Error::new(ErrorKind::Engine, error.to_string()))?;
    Ok((format, Some(format!("the model's response_template is ignored: {failed}"))))
}
