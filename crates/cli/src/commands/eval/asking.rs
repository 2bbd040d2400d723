//! Questions through the chat template.

use crate::args::TemplateArgs;
use crate::commands::chat_options::ChatOptions;
use crate::commands::conversation::Conversation;
use crate::commands::prompt::ChatFormatter;
use crate::interrupt;
use anyhow::Result;
use latent_engine::{Event, Listener};
use latent_formats::Checkpoint;
use latent_graph::ModelConfig;

/// Makes prompts of questions, each a conversation of its own.
pub(super) struct Asker {
    pub(super) formatter: ChatFormatter,
    system: Option<String>,
}

impl Asker {
    pub(super) fn open(
        checkpoint: &Checkpoint,
        config: &ModelConfig,
        template: &TemplateArgs,
        context: Option<usize>,
    ) -> Result<Asker> {
        let mut formatter = ChatFormatter::open(checkpoint, config, context)?;
        formatter.options = ChatOptions::new(template, checkpoint)?;
        Ok(Asker { formatter, system: template.system_prompt.clone() })
    }

    /// The tokens of a question.
    pub(super) fn prompt(&self, question: &str) -> Result<Vec<u32>> {
        self.formatter.chat(self.conversation(question).messages())
    }

    /// The same; none for a question that does not fit into the context.
    pub(super) fn prompt_if_fits(&self, question: &str) -> Result<Option<Vec<u32>>> {
        Ok(self.formatter.chat_if_fits(self.conversation(question).messages())?.ok())
    }

    fn conversation(&self, question: &str) -> Conversation {
        let mut conversation = Conversation::new(self.system.as_deref());
        conversation.push("user", question);
        conversation
    }
}

/// Stops on a signal.
pub(super) struct UntilAsked;

impl Listener for UntilAsked {
    fn prompt(&mut self, _done: usize, _total: usize) -> bool {
        !interrupt::asked()
    }

    fn token(&mut self, _event: &Event<'_>) -> bool {
        !interrupt::asked()
    }
}

/// The error for an answer that a signal has cut short.
pub(super) fn check_interrupt() -> Result<()> {
    if interrupt::asked() { Err(latent_engine::EngineError::Stopped.into()) } else { Ok(()) }
}
