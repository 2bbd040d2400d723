//! Requests: what is answered, and how.

use crate::answer::{AnswerStream, GeneratedAnswer};
use crate::codec::ChatPrompt;
use crate::conversation::Chat;
use crate::error::Error;
use crate::message::MessageParser;
use crate::model::Model;
use latent_engine::cache::CacheSalt;
use latent_engine::sampling::SamplingParams;
use latent_engine::scheduler::{FairnessKey, Job};
use latent_engine::{AdapterScales, ContextShift, LogitsProcessor, Request};
#[cfg(feature = "grammar")]
use latent_grammar::GrammarSource;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What a model answers.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Prompt {
    /// A text to continue. Names of control tokens in it are plain text.
    Text(String),
    /// Tokens to continue.
    Tokens(Vec<u32>),
    /// A conversation.
    Chat(Chat),
    /// A conversation that was rendered already.
    Rendered(ChatPrompt),
}

impl From<&str> for Prompt {
    fn from(text: &str) -> Prompt {
        Prompt::Text(text.to_owned())
    }
}

impl From<String> for Prompt {
    fn from(text: String) -> Prompt {
        Prompt::Text(text)
    }
}

impl From<Vec<u32>> for Prompt {
    fn from(tokens: Vec<u32>) -> Prompt {
        Prompt::Tokens(tokens)
    }
}

impl From<&[u32]> for Prompt {
    fn from(tokens: &[u32]) -> Prompt {
        Prompt::Tokens(tokens.to_owned())
    }
}

impl From<Chat> for Prompt {
    fn from(chat: Chat) -> Prompt {
        Prompt::Chat(chat)
    }
}

impl From<ChatPrompt> for Prompt {
    fn from(prompt: ChatPrompt) -> Prompt {
        Prompt::Rendered(prompt)
    }
}

/// A request for an answer. What is not set is what the model recommends, else Latent's default; the seed is random.
#[must_use = "a request does nothing before `start`"]
pub struct AnswerRequest {
    model: Model,
    prompt: Prompt,
    request: Request,
    processors: Vec<Box<dyn LogitsProcessor>>,
    #[cfg(feature = "grammar")]
    grammar: Option<GrammarSource>,
    deadline: Option<Duration>,
    priority: i32,
    key: FairnessKey,
    salt: CacheSalt,
}

impl Model {
    /// A request for the answer to a conversation.
    pub fn chat(&self, chat: Chat) -> AnswerRequest {
        self.complete(chat)
    }

    /// A request for the continuation of a text or of tokens.
    pub fn complete(&self, prompt: impl Into<Prompt>) -> AnswerRequest {
        let sampling = SamplingParams { seed: fresh_seed(), ..self.inner.sampling.clone() };
        AnswerRequest {
            model: self.clone(),
            prompt: prompt.into(),
            request: Request { sampling, ..Request::default() },
            processors: Vec::new(),
            #[cfg(feature = "grammar")]
            grammar: None,
            deadline: None,
            priority: 0,
            key: FairnessKey::default(),
            salt: CacheSalt::default(),
        }
    }
}

impl AnswerRequest {
    fn with(mut self, set: impl FnOnce(&mut Request)) -> AnswerRequest {
        set(&mut self.request);
        self
    }

    fn sampled(self, set: impl FnOnce(&mut SamplingParams)) -> AnswerRequest {
        self.with(|request| set(&mut request.sampling))
    }

    /// Sets the maximum number of tokens. Default: until the model ends or the context is full.
    pub fn max_tokens(self, tokens: usize) -> AnswerRequest {
        self.with(|request| request.max_tokens = Some(tokens))
    }

    /// Sets the minimum number of tokens.
    pub fn min_tokens(self, tokens: usize) -> AnswerRequest {
        self.with(|request| request.min_tokens = tokens)
    }

    /// Divides the logits; 0 always samples the likeliest token.
    pub fn temperature(self, temperature: f32) -> AnswerRequest {
        self.sampled(|sampling| sampling.temperature = temperature)
    }

    /// Keeps this many of the likeliest tokens; 0 keeps all.
    pub fn top_k(self, tokens: usize) -> AnswerRequest {
        self.sampled(|sampling| sampling.top_k = tokens)
    }

    /// Keeps the likeliest tokens that together reach this probability; 1 keeps all.
    pub fn top_p(self, probability: f32) -> AnswerRequest {
        self.sampled(|sampling| sampling.top_p = probability)
    }

    /// Keeps tokens that are at least this likely, relative to the likeliest; 0 keeps all.
    pub fn min_p(self, probability: f32) -> AnswerRequest {
        self.sampled(|sampling| sampling.min_p = probability)
    }

    /// Keeps tokens near the expected information until this probability is reached; 1 keeps all.
    pub fn typical_p(self, probability: f32) -> AnswerRequest {
        self.sampled(|sampling| sampling.typical_p = probability)
    }

    /// Divides positive and multiplies negative logits of recent tokens; 1 changes none.
    pub fn repeat_penalty(self, penalty: f32) -> AnswerRequest {
        self.sampled(|sampling| sampling.repeat_penalty = penalty)
    }

    /// Sets how many tokens back the penalties look.
    pub fn repeat_last_n(self, tokens: usize) -> AnswerRequest {
        self.sampled(|sampling| sampling.repeat_last_n = tokens)
    }

    /// Is subtracted from the logits of recent tokens.
    pub fn presence_penalty(self, penalty: f32) -> AnswerRequest {
        self.sampled(|sampling| sampling.presence_penalty = penalty)
    }

    /// Is subtracted from the logits of recent tokens for each time that they occurred.
    pub fn frequency_penalty(self, penalty: f32) -> AnswerRequest {
        self.sampled(|sampling| sampling.frequency_penalty = penalty)
    }

    /// Adds to the logit of a token; −∞ bans it. Repeatable.
    pub fn logit_bias(self, token: u32, bias: f32) -> AnswerRequest {
        self.sampled(|sampling| sampling.logit_bias.push((token, bias)))
    }

    /// Sets the seed, so that the same request has the same answer.
    pub fn seed(self, seed: u64) -> AnswerRequest {
        self.sampled(|sampling| sampling.seed = seed)
    }

    /// Sets every sampling parameter, those that the model recommends and the seed included.
    pub fn sampling(self, sampling: SamplingParams) -> AnswerRequest {
        self.with(|request| request.sampling = sampling)
    }

    /// Adds a text before which the answer ends. Repeatable. An empty text has no effect.
    pub fn stop(self, text: impl Into<String>) -> AnswerRequest {
        self.with(|request| request.stop.push(text.into()))
    }

    /// Reports log-probabilities: of each token, and of this many of the likeliest ones.
    pub fn logprobs(self, alternatives: usize) -> AnswerRequest {
        self.with(|request| request.logprobs = Some(alternatives))
    }

    /// Discards old tokens when the context is full, in place of ending the answer.
    pub fn context_shift(self, shift: ContextShift) -> AnswerRequest {
        self.with(|request| request.shift = Some(shift))
    }

    /// Constrains the answer to a JSON text that is an instance of a schema. Of several constraints the last holds.
    #[cfg(feature = "grammar")]
    pub fn json_schema(self, schema: serde_json::Value) -> AnswerRequest {
        self.constrained(GrammarSource::JsonSchema(schema))
    }

    /// Constrains the answer to a grammar in GBNF, or in Lark as llguidance reads it.
    #[cfg(feature = "grammar")]
    pub fn grammar(self, grammar: impl Into<String>) -> AnswerRequest {
        self.constrained(GrammarSource::grammar(grammar))
    }

    /// Constrains the answer.
    #[cfg(feature = "grammar")]
    pub fn constrained(mut self, source: GrammarSource) -> AnswerRequest {
        self.grammar = Some(source);
        self
    }

    /// Adds code that changes the logits before a token is sampled. Repeatable; they run in this order, after a grammar.
    pub fn processor(mut self, processor: impl LogitsProcessor + 'static) -> AnswerRequest {
        self.processors.push(Box::new(processor));
        self
    }

    /// Samples tokens by code of the caller, in place of the sampling parameters.
    pub fn sampler(self, sampler: impl TokenSampler + 'static) -> AnswerRequest {
        self.processor(SamplerProcessor::new(sampler))
    }

    /// Sets the time after which the answer fails with [`ErrorKind::Deadline`](crate::ErrorKind::Deadline), counted from
    /// [`start`](Self::start). What came until then was reported.
    pub fn deadline(mut self, time: Duration) -> AnswerRequest {
        self.deadline = Some(time);
        self
    }

    /// Sets the priority: answers of a larger number go first, and may take the place of running ones of a smaller number. Default: 0.
    pub fn priority(mut self, priority: i32) -> AnswerRequest {
        self.priority = priority;
        self
    }

    /// Sets whose answer it is: steps are shared evenly between keys.
    pub fn fairness_key(mut self, key: u64) -> AnswerRequest {
        self.key = FairnessKey(key);
        self
    }

    /// Sets a scale for each LoRA adapter of the model. Default: those that it was loaded with.
    pub fn adapter_scales(self, scales: &[f32]) -> AnswerRequest {
        self.with(|request| request.adapter_scales = Some(AdapterScales::new(scales)))
    }

    /// Sets who may share cached prefixes with it: answers of the same owner only.
    pub fn cache_owner(mut self, owner: &[u8]) -> AnswerRequest {
        self.salt = CacheSalt::of(owner);
        self
    }

    /// Changes any field of the engine's request but the prompt.
    pub fn request(self, change: impl FnOnce(&mut Request)) -> AnswerRequest {
        self.with(change)
    }

    /// Sets what a plain structure of options says.
    pub fn options(self, options: GenerateOptions) -> AnswerRequest {
        let GenerateOptions { max_tokens, stop, logprobs, sampling, adapter_scales } = options;
        let adapter_scales = adapter_scales.map(|scales| AdapterScales::new(&scales));
        self.with(|request| {
            *request =
                Request { max_tokens, stop, logprobs, sampling, adapter_scales, ..std::mem::take(request) };
        })
    }

    /// Begins the answer. It runs in the background, together with others, and its pieces are read from what this returns.
    ///
    /// It does not wait for the model. A schema or grammar is compiled here, unless it was used before.
    ///
    /// # Errors
    /// A prompt that is empty, does not fit into the context or cannot be rendered; parameters out of their range; a grammar that cannot be used;
    /// an engine that has failed, or is another process's.
    pub fn start(self) -> Result<AnswerStream, Error> {
        #[cfg(feature = "grammar")]
        let grammar = self.grammar;
        let AnswerRequest { model, prompt, mut request, processors, deadline, priority, key, salt, .. } =
            self;
        let deadline = deadline.map(|time| {
            let now = Instant::now();
            // a deadline beyond what can be counted never passes
            now.checked_add(time).unwrap_or_else(|| now + Duration::from_secs(u32::MAX.into()))
        });
        let text = model.text();
        let (tokens, chat, rendered) = match prompt {
            Prompt::Text(prompt) => (text.encode(&prompt, true, false)?, None, None),
            Prompt::Tokens(tokens) => (tokens, None, None),
            Prompt::Chat(chat) => {
                let rendered = text.render(&chat)?;
                (rendered.tokens().to_vec(), Some(chat), Some(rendered))
            }
            Prompt::Rendered(rendered) => (rendered.tokens().to_vec(), None, Some(rendered)),
        };
        request.stop.retain(|text| !text.is_empty());
        request.prompt.clone_from(&tokens);
        #[cfg_attr(not(feature = "grammar"), allow(unused_mut, reason = "a grammar is the first processor"))]
        let mut job = Job { request, processors, salt, key, priority, deadline, ..Job::default() };
        model.check(&job)?;
        #[cfg(feature = "grammar")]
        if let Some(source) = &grammar {
            let constraint = model.inner.grammars.constraint(text, source, rendered.as_ref())?;
            job.processors.insert(0, constraint);
        }
        let parser = rendered.map(|prompt| {
            MessageParser::new(Arc::clone(text.tokenizer()), text.format(), &prompt.tools, &prompt.rendered)
        });
        let events = model.submit(job)?;
        Ok(AnswerStream::new(model, events, tokens, salt).of_chat(chat, parser))
    }

    /// The whole answer: [`start`](Self::start) and [`AnswerStream::finish`].
    ///
    /// # Errors
    /// As for both.
    pub fn finish(self) -> Result<GeneratedAnswer, Error> {
        self.start()?.finish()
    }
}

/// The whole answers to a batch of requests, in their order. They are started together and share steps; one that fails leaves the others.
///
/// ```
/// # let model = latent::Model::demo().context(256).load()?;
/// let requests = ["Once upon", "The fox"].map(|prompt| model.complete(prompt).max_tokens(8));
/// let answers = latent::finish_all(requests);
/// assert!(answers.iter().all(|answer| answer.as_ref().is_ok_and(|answer| answer.tokens.len() == 8)));
/// # Ok::<(), latent::Error>(())
/// ```
pub fn finish_all(requests: impl IntoIterator<Item = AnswerRequest>) -> Vec<Result<GeneratedAnswer, Error>> {
    let running: Vec<_> = requests.into_iter().map(AnswerRequest::start).collect();
    running.into_iter().map(|answer| answer.and_then(AnswerStream::finish)).collect()
}

/// Samples tokens in place of Latent's samplers: see [`AnswerRequest::sampler`](crate::AnswerRequest::sampler). Closures implement it.
pub trait TokenSampler: Send {
    /// The next token. `tokens` are the prompt and what was sampled so far; `logits` has one element per token of the vocabulary, −∞ for those
    /// that a grammar or a processor forbids. The answer fails if the returned token is forbidden or not in the vocabulary.
    fn sample(&mut self, tokens: &[u32], logits: &[f32]) -> u32;
}

impl<F: FnMut(&[u32], &[f32]) -> u32 + Send> TokenSampler for F {
    fn sample(&mut self, tokens: &[u32], logits: &[f32]) -> u32 {
        self(tokens, logits)
    }
}

/// A sampler of the caller as the engine calls it.
pub(crate) struct SamplerProcessor<S>(S);

impl<S: TokenSampler> SamplerProcessor<S> {
    pub(crate) fn new(sampler: S) -> SamplerProcessor<S> {
        SamplerProcessor(sampler)
    }
}

impl<S: TokenSampler> LogitsProcessor for SamplerProcessor<S> {
    fn process(&mut self, _tokens: &[u32], _logits: &mut [f32]) {}

    fn sample(&mut self, tokens: &[u32], logits: &[f32]) -> Option<u32> {
        Some(self.0.sample(tokens, logits))
    }
}

/// How an answer is generated: see [`AnswerRequest::options`](crate::AnswerRequest::options).
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct GenerateOptions {
    /// Most tokens; none: until the model ends or the context is full.
    pub max_tokens: Option<usize>,
    /// Texts before which the answer ends.
    pub stop: Vec<String>,
    /// Report log-probabilities of this many alternatives; none: of none.
    pub logprobs: Option<usize>,
    /// How tokens are sampled.
    pub sampling: SamplingParams,
    /// A scale for each LoRA adapter of the model; none: those that it was loaded with.
    pub adapter_scales: Option<Vec<f32>>,
}

impl Model {
    /// The options of a request that sets nothing: what the model recommends, else Latent's own, with a fresh seed.
    pub fn generate_options(&self) -> GenerateOptions {
        let sampling = SamplingParams { seed: fresh_seed(), ..self.inner.sampling.clone() };
        GenerateOptions { sampling, ..GenerateOptions::default() }
    }
}

/// A seed from the system's randomness.
pub(crate) fn fresh_seed() -> u64 {
    RandomState::new().hash_one(std::time::SystemTime::now())
}
