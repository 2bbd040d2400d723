//! From a user's words to the tokens of a prompt: chat template or raw text.

use crate::args::SamplingArgs;
use crate::exit::Usage;
use anyhow::{Context, Result};
use engine::sampling::SamplingParams;
use formats::{Checkpoint, Source};
use graph::Contract;
use serde_json::{Value, json};
use text::{ChatInput, ChatTemplate, Encode, TextError, Tokenizer};

/// The tokenizer of a model and, where it has one, its chat template.
pub(super) struct Speech {
    pub(super) tokenizer: Tokenizer,
    template: Option<ChatTemplate>,
    room: Room,
}

/// The tokens that a prompt may have, as far as that is known before the model is loaded.
struct Room {
    /// The context that was asked for, or all that the model was made for.
    context: usize,
    /// The largest context that can be asked for.
    largest: usize,
}

impl Speech {
    /// `context` is the context asked for, where one is.
    pub(super) fn open(
        checkpoint: &Checkpoint,
        contract: &Contract,
        context: Option<usize>,
    ) -> Result<Speech> {
        let largest = contract.context_length;
        let room = Room { context: context.unwrap_or(largest).min(largest), largest };
        let tokenizer = Tokenizer::from_checkpoint(checkpoint).context(checkpoint.display_name())?;
        let source = match checkpoint.source() {
            Source::Gguf(g) => g.metadata.str("tokenizer.chat_template")?.map(str::to_owned),
            Source::HuggingFace(hf) => hf.chat_template.clone(),
        };
        let template = source.map(|source| ChatTemplate::new(&source)).transpose()?;
        Ok(Speech { tokenizer, template, room })
    }

    /// Tokens of a text as it is.
    pub(super) fn raw(&self, text: &str) -> Result<Vec<u32>> {
        self.encode(text, Encode { add_special: true, parse_special: false })
    }

    /// The most bytes that a prompt can have and fit into the context; None where the tokenizer's rules set no bound.
    pub(super) fn longest(&self) -> Option<usize> {
        self.tokenizer.longest_text(self.room.tokens())
    }

    /// Refuses a text that cannot fit into the context, by its length alone.
    pub(super) fn check_length(&self, bytes: usize) -> Result<()> {
        match self.longest() {
            Some(longest) if bytes > longest => Err(self.room.too_long(bytes)),
            _ => Ok(()),
        }
    }

    /// Tokens of a text that must fit into the context with room for one token more.
    fn encode(&self, text: &str, how: Encode) -> Result<Vec<u32>> {
        match self.tokenizer.encode_within(text, how, self.room.tokens()) {
            Err(TextError::TooLong { bytes, .. }) => Err(self.room.too_long(bytes)),
            other => Ok(other?),
        }
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
        let text = template.render(&input)?;
        // the template writes the beginning itself, where it writes it at all
        let begins = !input.bos_token.is_empty() && text.starts_with(&input.bos_token);
        self.encode(&text, Encode { add_special: !begins, parse_special: true })
    }
}

impl Room {
    /// Tokens of the longest prompt: the answer needs one.
    fn tokens(&self) -> usize {
        self.context.saturating_sub(1)
    }

    fn too_long(&self, bytes: usize) -> anyhow::Error {
        let Room { context, largest } = self;
        let more = if context < largest { format!(", or give --ctx up to {largest}") } else { String::new() };
        Usage(format!(
            "the prompt has {bytes} bytes, which make more than {} tokens; the context holds {context} with the answer: shorten the prompt{more}",
            self.tokens()
        ))
        .into()
    }
}

/// A message of a conversation.
pub(super) fn message(role: &str, content: &str) -> Value {
    json!({"role": role, "content": content})
}

/// Sampling parameters from the command line. Without a seed each run draws its own.
pub(super) fn sampling(args: &SamplingArgs) -> Result<SamplingParams> {
    let time = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let drawn = time.map_or(0, |t| t.as_nanos() as u64);
    Ok(SamplingParams {
        temperature: args.temperature,
        top_k: args.top_k,
        top_p: args.top_p,
        min_p: args.min_p,
        typical: args.typical,
        repeat_penalty: args.repeat_penalty,
        presence_penalty: args.presence_penalty,
        frequency_penalty: args.frequency_penalty,
        penalty_last: args.penalty_last,
        dry_multiplier: args.dry_multiplier,
        dry_base: args.dry_base,
        dry_allowed: args.dry_allowed,
        dry_last: 0,
        xtc_probability: args.xtc_probability,
        xtc_threshold: args.xtc_threshold,
        logit_bias: args.logit_bias.iter().map(|word| bias(word)).collect::<Result<_>>()?,
        seed: args.seed.unwrap_or(drawn),
    })
}

/// `ID=BIAS`.
fn bias(word: &str) -> Result<(u32, f32)> {
    let parsed = word
        .split_once('=')
        .and_then(|(id, bias)| Some((id.trim().parse().ok()?, bias.trim().parse().ok()?)));
    parsed.ok_or_else(|| {
        Usage(format!("--logit-bias {word}: expected ID=BIAS, such as 42=-1.5 or 42=-inf")).into()
    })
}
