//! From a user's words to the tokens of a prompt: chat template or raw text.

use crate::args::SamplingArgs;
use crate::exit::Usage;
use anyhow::{Context, Result};
use engine::sampling::SamplingParams;
use formats::{Checkpoint, Source};
use serde_json::{Value, json};
use text::{ChatInput, ChatTemplate, Encode, Tokenizer};

/// The tokenizer of a model and, where it has one, its chat template.
pub(super) struct Speech {
    pub(super) tokenizer: Tokenizer,
    template: Option<ChatTemplate>,
    /// Whether names of control tokens in a user's words become those tokens.
    allow_special: bool,
}

impl Speech {
    pub(super) fn open(checkpoint: &Checkpoint, allow_special: bool) -> Result<Speech> {
        let tokenizer = Tokenizer::from_checkpoint(checkpoint).context(checkpoint.display_name())?;
        let source = match checkpoint.source() {
            Source::Gguf(g) => g.metadata.str("tokenizer.chat_template")?.map(str::to_owned),
            Source::HuggingFace(hf) => hf.chat_template.clone(),
        };
        let template = source.map(|source| ChatTemplate::new(&source)).transpose()?;
        Ok(Speech { tokenizer, template, allow_special })
    }

    /// Tokens of a text as it is.
    pub(super) fn raw(&self, text: &str) -> Result<Vec<u32>> {
        Ok(self.tokenizer.encode(text, Encode { add_special: true, parse_special: self.allow_special })?)
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
        Ok(self.tokenizer.encode_rendered(&template.render(&input)?, self.allow_special)?)
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
