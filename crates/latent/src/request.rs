//! Requests for answers.

use crate::answer::{AnswerStream, GeneratedAnswer, PromptProgress};
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

/// The prompt of a request.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Prompt {
    /// A text to continue. Names of control tokens in it are encoded as plain text.
    Text(String),
    /// Tokens to continue.
    Tokens(Vec<u32>),
    /// A conversation.
    Chat(Chat),
    /// A rendered conversation.
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

/// A request for an answer. Parameters that are not set have the values that the model recommends,
/// or Latent's defaults. The seed is random.
#[must_use = "a request does nothing before `start`"]
pub struct AnswerRequest {
    model: Model,
    prompt: Prompt,
    request: Request,
    processors: Vec<Box<dyn LogitsProcessor>>,
    progress: Option<PromptProgress>,
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
            progress: None,
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

    /// Sets the temperature, which divides the logits. 0 always samples the likeliest token.
    pub fn temperature(self, temperature: f32) -> AnswerRequest {
        self.sampled(|sampling| sampling.temperature = temperature)
    }

    /// Keeps this many of the likeliest tokens. 0 keeps all.
    pub fn top_k(self, tokens: usize) -> AnswerRequest {
        self.sampled(|sampling| sampling.top_k = tokens)
    }

    /// Keeps the likeliest tokens whose probabilities add up to this. 1 keeps all.
    pub fn top_p(self, probability: f32) -> AnswerRequest {
        self.sampled(|sampling| sampling.top_p = probability)
    }

    /// Keeps tokens with at least this probability relative to the likeliest. 0 keeps all.
    pub fn min_p(self, probability: f32) -> AnswerRequest {
        self.sampled(|sampling| sampling.min_p = probability)
    }

    /// Keeps the tokens closest to the expected information until their probabilities add up to
    /// this. 1 keeps all.
    pub fn typical_p(self, probability: f32) -> AnswerRequest {
        self.sampled(|sampling| sampling.typical_p = probability)
    }

    /// Divides positive and multiplies negative logits of recent tokens. 1 has no effect.
    pub fn repeat_penalty(self, penalty: f32) -> AnswerRequest {
        self.sampled(|sampling| sampling.repeat_penalty = penalty)
    }

    /// Sets the number of recent tokens for the penalties.
    pub fn repeat_last_n(self, tokens: usize) -> AnswerRequest {
        self.sampled(|sampling| sampling.repeat_last_n = tokens)
    }

    /// Subtracts this from the logits of recent tokens.
    pub fn presence_penalty(self, penalty: f32) -> AnswerRequest {
        self.sampled(|sampling| sampling.presence_penalty = penalty)
    }

    /// Subtracts this from the logits of recent tokens for each occurrence.
    pub fn frequency_penalty(self, penalty: f32) -> AnswerRequest {
        self.sampled(|sampling| sampling.frequency_penalty = penalty)
    }

    /// Adds `bias` to the logit of a token. −∞ bans it. Repeatable.
    pub fn logit_bias(self, token: u32, bias: f32) -> AnswerRequest {
        self.sampled(|sampling| sampling.logit_bias.push((token, bias)))
    }

    /// Sets the seed, so that the same request has the same answer.
    pub fn seed(self, seed: u64) -> AnswerRequest {
        self.sampled(|sampling| sampling.seed = seed)
    }

    /// Sets every sampling parameter, including recommended ones and the seed.
    pub fn sampling(self, sampling: SamplingParams) -> AnswerRequest {
        self.with(|request| request.sampling = sampling)
    }

    /// Adds a stop string: the answer ends before it. Repeatable. An empty string has no effect.
    pub fn stop(self, text: impl Into<String>) -> AnswerRequest {
        self.with(|request| request.stop.push(text.into()))
    }

    /// Reports the log-probability of each token, and of this many of the likeliest tokens.
    pub fn logprobs(self, alternatives: usize) -> AnswerRequest {
        self.with(|request| request.logprobs = Some(alternatives))
    }

    /// Discards old tokens when the context is full, instead of ending the answer.
    pub fn context_shift(self, shift: ContextShift) -> AnswerRequest {
        self.with(|request| request.shift = Some(shift))
    }

    /// Constrains the answer to JSON that is valid under a schema. Replaces an earlier constraint.
    #[cfg(feature = "grammar")]
    pub fn json_schema(self, schema: serde_json::Value) -> AnswerRequest {
        self.constrained(GrammarSource::JsonSchema(schema))
    }

    /// Constrains the answer to a grammar in GBNF, or in llguidance's Lark. Replaces an earlier
    /// constraint.
    #[cfg(feature = "grammar")]
    pub fn grammar(self, grammar: impl Into<String>) -> AnswerRequest {
        self.constrained(GrammarSource::grammar(grammar))
    }

    /// Constrains the answer. Replaces an earlier constraint.
    #[cfg(feature = "grammar")]
    pub fn constrained(mut self, source: GrammarSource) -> AnswerRequest {
        self.grammar = Some(source);
        self
    }

    /// Adds a logits processor, which is called before each token is sampled. Repeatable.
    /// Processors run in this order, after a grammar.
    pub fn processor(mut self, processor: impl LogitsProcessor + 'static) -> AnswerRequest {
        self.processors.push(Box::new(processor));
        self
    }

    /// Sets the caller's own sampler, which replaces the sampling parameters.
    pub fn sampler(self, sampler: impl TokenSampler + 'static) -> AnswerRequest {
        self.processor(SamplerProcessor::new(sampler))
    }

    /// Sets a callback for the progress of the prompt: the number of its tokens that are in the KV
    /// cache, and of all. It is called while the answer is read, on the reader's thread.
    pub fn prompt_progress(mut self, progress: impl FnMut(usize, usize) + Send + 'static) -> AnswerRequest {
        self.progress = Some(Box::new(progress));
        self
    }

    /// Sets the time after [`start`](Self::start) at which the answer fails with
    /// [`ErrorKind::Deadline`](crate::ErrorKind::Deadline). Pieces until then are returned.
    pub fn deadline(mut self, time: Duration) -> AnswerRequest {
        self.deadline = Some(time);
        self
    }

    /// Sets the priority. Answers with a larger number run first, and may preempt running answers
    /// with a smaller one. Default: 0.
    pub fn priority(mut self, priority: i32) -> AnswerRequest {
        self.priority = priority;
        self
    }

    /// Sets the fairness key, for example of a tenant. Tokens are shared evenly between keys.
    pub fn fairness_key(mut self, key: u64) -> AnswerRequest {
        self.key = FairnessKey(key);
        self
    }

    /// Sets a scale for each LoRA adapter of the model. Default: those that the model was loaded
    /// with.
    pub fn adapter_scales(self, scales: &[f32]) -> AnswerRequest {
        self.with(|request| request.adapter_scales = Some(AdapterScales::new(scales)))
    }

    /// Sets the owner of cached prefixes. Only answers of the same owner share them.
    pub fn cache_owner(mut self, owner: &[u8]) -> AnswerRequest {
        self.salt = CacheSalt::of(owner);
        self
    }

    /// Changes any field of the engine's request except the prompt.
    pub fn request(self, change: impl FnOnce(&mut Request)) -> AnswerRequest {
        self.with(change)
    }

    /// Sets all parameters of [`GenerateOptions`].
    pub fn options(self, options: GenerateOptions) -> AnswerRequest {
        let GenerateOptions { max_tokens, stop, logprobs, sampling, adapter_scales } = options;
        let adapter_scales = adapter_scales.map(|scales| AdapterScales::new(&scales));
        self.with(|request| {
            *request =
                Request { max_tokens, stop, logprobs, sampling, adapter_scales, ..std::mem::take(request) };
        })
    }

    /// Starts the answer. It runs in the background, in one batch with others, and is read from the
    /// returned stream.
    ///
    /// The call does not wait for the model. It compiles the schema or grammar, unless that was
    /// used before.
    ///
    /// # Errors
    /// If the prompt is empty, does not fit into the context or cannot be rendered, a parameter is
    /// out of range, the grammar is not supported, the engine has failed, or this is a forked
    /// child.
    pub fn start(self) -> Result<AnswerStream, Error> {
        #[cfg(feature = "grammar")]
        let grammar = self.grammar;
        let AnswerRequest {
            model,
            prompt,
            mut request,
            processors,
            progress,
            deadline,
            priority,
            key,
            salt,
            ..
        } = self;
        let deadline = deadline.map(|time| {
            let now = Instant::now();
            // A deadline that overflows becomes one that never passes: more than a century from
            // now.
            now.checked_add(time).unwrap_or_else(|| now + Duration::from_secs(u32::MAX.into()))
        });
        let text = model.text();
        let (tokens, chat, rendered) = match prompt {
            // `true`: nothing else adds the tokens that begin a prompt. A chat template writes them
            // itself.
            Prompt::Text(prompt) => (text.encode(&prompt, true, false)?, None, None),
            Prompt::Tokens(tokens) => (tokens, None, None),
            Prompt::Chat(chat) => {
                let rendered = text.render(&chat)?;
                (rendered.tokens().to_vec(), Some(chat), Some(rendered))
            }
            Prompt::Rendered(rendered) => (rendered.tokens().to_vec(), None, Some(rendered)),
        };
        // An empty stop string occurs in every text.
        request.stop.retain(|text| !text.is_empty());
        request.prompt.clone_from(&tokens);
        #[cfg_attr(not(feature = "grammar"), allow(unused_mut, reason = "a grammar is the first processor"))]
        let mut job = Job { request, processors, salt, key, priority, deadline, ..Job::default() };
        // Checked here although the scheduler checks too: `start` can return the error at once.
        // Compiling a grammar comes after the cheap checks.
        model.check(&job)?;
        #[cfg(feature = "grammar")]
        if let Some(source) = &grammar {
            let constraint = model.inner.grammars.constraint(text, source, rendered.as_ref())?;
            // First, so that the caller's processors and sampler see −∞ for the tokens that it
            // forbids.
            job.processors.insert(0, constraint);
        }
        let parser = rendered.map(|prompt| {
            MessageParser::new(Arc::clone(text.tokenizer()), text.format(), &prompt.tools, &prompt.rendered)
        });
        let events = model.submit(job)?;
        Ok(AnswerStream::new(model, events, tokens, salt).of_chat(chat, parser).with_progress(progress))
    }

    /// Waits for the whole answer: [`start`](Self::start) and [`AnswerStream::finish`].
    ///
    /// # Errors
    /// As for both.
    pub fn finish(self) -> Result<GeneratedAnswer, Error> {
        self.start()?.finish()
    }
}

/// The whole answers to a batch of requests, in order. All are started before the first is awaited,
/// so they share steps. If one fails, the others continue.
///
/// ```
/// # let model = latent::Model::demo().context(256).load()?;
/// let requests = ["Once upon", "The fox"].map(|prompt| model.complete(prompt).max_tokens(8));
/// let answers = latent::finish_all(requests);
/// assert!(answers.iter().all(|answer| answer.as_ref().is_ok_and(|answer| answer.tokens.len() == 8)));
/// # Ok::<(), latent::Error>(())
/// ```
pub fn finish_all(requests: impl IntoIterator<Item = AnswerRequest>) -> Vec<Result<GeneratedAnswer, Error>> {
    // Collected before waiting: a lazy iterator would start each request only after its predecessor
    // has finished.
    let running: Vec<_> = requests.into_iter().map(AnswerRequest::start).collect();
    running.into_iter().map(|answer| answer.and_then(AnswerStream::finish)).collect()
}

/// A sampler that replaces Latent's. See [`AnswerRequest::sampler`](crate::AnswerRequest::sampler).
/// Closures implement it.
pub trait TokenSampler: Send {
    /// Returns the next token. `tokens` are the prompt and the tokens sampled so far. `logits` has
    /// one element per token of the vocabulary, and is −∞ for tokens that a grammar or a processor
    /// forbids. The answer fails if the returned token is forbidden or not in the vocabulary.
    fn sample(&mut self, tokens: &[u32], logits: &[f32]) -> u32;
}

impl<F: FnMut(&[u32], &[f32]) -> u32 + Send> TokenSampler for F {
    fn sample(&mut self, tokens: &[u32], logits: &[f32]) -> u32 {
        self(tokens, logits)
    }
}

/// A caller's sampler as a logits processor of the engine.
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

/// Parameters of an answer, for [`AnswerRequest::options`](crate::AnswerRequest::options).
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct GenerateOptions {
    /// Maximum number of tokens. `None`: until the model ends or the context is full.
    pub max_tokens: Option<usize>,
    /// Stop strings. The answer ends before the first of them.
    pub stop: Vec<String>,
    /// Number of alternatives per token to report log-probabilities of. `None`: no
    /// log-probabilities.
    pub logprobs: Option<usize>,
    /// Sampling parameters.
    pub sampling: SamplingParams,
    /// A scale for each LoRA adapter of the model. `None`: those that the model was loaded with.
    pub adapter_scales: Option<Vec<f32>>,
}

impl Model {
    /// The default parameters of a request: those that the model recommends, or Latent's, with a
    /// random seed.
    pub fn generate_options(&self) -> GenerateOptions {
        let sampling = SamplingParams { seed: fresh_seed(), ..self.inner.sampling.clone() };
        GenerateOptions { sampling, ..GenerateOptions::default() }
    }
}

/// A random seed.
pub(crate) fn fresh_seed() -> u64 {
    // `RandomState` has keys from the system's random numbers, which needs no further dependency.
    RandomState::new().hash_one(std::time::SystemTime::now())
}
