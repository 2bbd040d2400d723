//! Questions formatted by the chat template.

use crate::args::TemplateArgs;
use crate::commands::chat_options::{TemplateOptions, system_message};
use crate::commands::conversation::MessageList;
use crate::commands::prompt::ChatFormatter;
use crate::interrupt;
use anyhow::Result;
use latent_engine::{Listener, TokenEvent};
use latent_formats::Checkpoint;
use latent_graph::ModelConfig;

/// Makes prompts from questions. Each is a separate conversation.
pub(super) struct QuestionPrompter {
    pub(super) formatter: ChatFormatter,
    system: Option<String>,
}

impl QuestionPrompter {
    pub(super) fn open(
        checkpoint: &Checkpoint,
        config: &ModelConfig,
        template: &TemplateArgs,
        context: Option<usize>,
    ) -> Result<QuestionPrompter> {
        let mut formatter = ChatFormatter::open(checkpoint, config, context)?;
        formatter.options = TemplateOptions::new(template, checkpoint)?;
        Ok(QuestionPrompter { formatter, system: system_message(template)? })
    }

    /// Tokens of a question.
    pub(super) fn prompt(&self, question: &str) -> Result<Vec<u32>> {
        self.formatter.chat(self.conversation(question).messages())
    }

    /// Tokens of a question; `None` if it does not fit into the context.
    pub(super) fn prompt_if_fits(&self, question: &str) -> Result<Option<Vec<u32>>> {
        let prompt = self.formatter.chat_if_fits(self.conversation(question).messages())?;
        Ok(prompt.ok().map(|prompt| prompt.tokens().to_vec()))
    }

    fn conversation(&self, question: &str) -> MessageList {
        let mut conversation = MessageList::new(self.system.as_deref());
        conversation.push("user", question);
        conversation
    }
}

/// Stops on a signal.
pub(super) struct SignalListener;

impl Listener for SignalListener {
    fn prompt(&mut self, _done: usize, _total: usize) -> bool {
        !interrupt::asked()
    }

    fn token(&mut self, _event: &TokenEvent<'_>) -> bool {
        !interrupt::asked()
    }
}

/// An error if a signal has cut the answer: a partial answer must not be scored.
pub(super) fn check_interrupt() -> Result<()> {
    if interrupt::asked() { Err(latent_engine::EngineError::Stopped.into()) } else { Ok(()) }
}
