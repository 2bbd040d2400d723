//! From a user's words to the tokens of a prompt: chat template or raw text.

use super::chat_options::ChatOptions;
use crate::exit::Usage;
use anyhow::{Context, Result};
use formats::{Checkpoint, Source};
use serde_json::{Value, json};
use text::{ChatInput, ChatTemplate, Encode, Tokenizer};

/// The tokenizer of a model and, where it has one, its chat template.
pub(super) struct Speech {
    pub(super) tokenizer: Tokenizer,
    template: Option<ChatTemplate>,
    /// What the template is given beside the messages.
    pub(super) options: ChatOptions,
}

impl Speech {
    pub(super) fn open(checkpoint: &Checkpoint) -> Result<Speech> {
        let tokenizer = Tokenizer::from_checkpoint(checkpoint).context(checkpoint.display_name())?;
        let template = template_of(checkpoint)?.map(ChatTemplate::new).transpose()?;
        Ok(Speech { tokenizer, template, options: ChatOptions::default() })
    }

    /// Tokens of a text as it is.
    pub(super) fn raw(&self, text: &str) -> Result<Vec<u32>> {
        Ok(self.tokenizer.encode(text, Encode { add_special: true, parse_special: false })?)
    }

    /// Tokens of a conversation, up to where the model answers.
    pub(super) fn chat(&self, messages: &[Value]) -> Result<Vec<u32>> {
        let Some(template) = &self.template else {
            let problem = "the model has no chat template; give --raw to feed the prompt as it is";
            return Err(Usage(problem.into()).into());
        };
        let name =
            |id: Option<u32>| id.and_then(|id| self.tokenizer.token_text(id)).unwrap_or_default().to_owned();
        let mut input = ChatInput::new(Value::Array(messages.to_vec()));
        input.bos_token = name(self.tokenizer.bos());
        input.eos_token = name(self.tokenizer.eos());
        self.options.apply(&mut input);
        let text = template.render(&input)?;
        // the template writes the beginning itself, where it writes it at all
        let begins = !input.bos_token.is_empty() && text.starts_with(&input.bos_token);
        Ok(self.tokenizer.encode(&text, Encode { add_special: !begins, parse_special: true })?)
    }
}

/// A message of a conversation.
pub(super) fn message(role: &str, content: &str) -> Value {
    json!({"role": role, "content": content})
}

/// The source of a model's chat template.
pub(super) fn template_of(checkpoint: &Checkpoint) -> Result<Option<&str>> {
    Ok(match checkpoint.source() {
        Source::Gguf(g) => g.metadata.str("tokenizer.chat_template")?,
        Source::HuggingFace(hf) => hf.chat_template.as_deref(),
    })
}
