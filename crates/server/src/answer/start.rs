//! From a prepared request to jobs of the engine.

use super::{ChoiceState, Parser, RequestAnswers};
use crate::error::ApiError;
use crate::keys::Tenant;
use crate::memory::RequestCharge;
use crate::model::{PreparedPrompt, ServedModel};
use crate::models::Lease;
use crate::params::{AnswerParams, OutputConstraint};
use crate::spans::{RequestRecord, RequestSpan};
use crate::worker::{SlotText, events};
use latent_engine::scheduler::{Job, JobChoice as FurtherChoice};
use latent_engine::{ContextShift, LogitsProcessor, Request};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

/// A request that is ready for the engine: everything that takes time has been done.
pub(crate) struct PreparedRequest {
    pub(crate) served: Arc<Lease>,
    pub(crate) prompt: PreparedPrompt,
    pub(crate) params: AnswerParams,
    /// A parser for each answer.
    pub(crate) parsers: Vec<Parser>,
    /// What changes the logits of each answer.
    pub(crate) processors: Vec<Vec<Box<dyn LogitsProcessor>>>,
    /// Whether the dialect wants to see tokens.
    pub(crate) show_tokens: bool,
    /// What each answer begins with.
    pub(crate) echo: String,
    /// Bytes of the schemas of its tools.
    pub(crate) tool_bytes: usize,
}

impl PreparedRequest {
    /// A request with one raw answer per choice.
    pub(crate) fn new(
        served: Arc<Lease>,
        prompt: PreparedPrompt,
        mut params: AnswerParams,
    ) -> PreparedRequest {
        let n = params.n;
        // the limit of the command line, whichever dialect has read the request
        params.max_tokens = served.about.defaults.bounded(params.max_tokens);
        PreparedRequest {
            served,
            prompt,
            parsers: (0..n).map(|_| Parser::Raw).collect(),
            processors: (0..n).map(|_| Vec::new()).collect(),
            show_tokens: params.logprobs.is_some(),
            params,
            echo: String::new(),
            tool_bytes: 0,
        }
    }

    /// Bytes that the request holds until it is answered, about.
    pub(crate) fn retained(&self) -> usize {
        // the engine keeps the prompt, and its blocks' hashes; each parser knows the types of all parameters; an echo is in the answer, and
        // written twice
        let of_choice = 16 * self.tool_bytes + 4 * self.echo.len();
        8 * self.prompt.tokens.len() + self.parsers.len() * of_choice
    }
}

/// Gives a request to the engine, and waits until it is taken.
pub(crate) async fn begin(
    tenant: Tenant,
    prepared: PreparedRequest,
    outbound: usize,
    timeout: Option<Duration>,
    (slots, keeps_texts): (usize, bool),
    span: &RequestSpan,
    charge: &Arc<RequestCharge>,
) -> Result<RequestAnswers, ApiError> {
    let PreparedRequest { served, prompt, mut params, parsers, mut processors, show_tokens, echo, .. } =
        prepared;
    span.asked(&RequestRecord {
        model: &served.about.id,
        prompt: prompt.tokens.len(),
        max_tokens: params.max_tokens,
        choices: parsers.len(),
        sampling: Some(&params.sampling),
    });
    let seed = params.sampling.seed;
    let mut own = processors.drain(..);
    let first = own.next().unwrap_or_default();
    let further = own.enumerate();
    let choices = further
        .map(|(i, processors)| FurtherChoice { seed: seed.wrapping_add(i as u64 + 1), processors })
        .collect();
    let length = prompt.tokens.len();
    let shift = served.about.defaults.context_shift.then(|| shift(&served, &prompt.tokens, params.shift));
    let text = keeps_texts.then(|| SlotText { salt: tenant.salt, tokens: prompt.tokens.clone() });
    params.shape = OutputConstraint::default();
    let shown = Arc::new(params.clone());
    let request = Request {
        prompt: prompt.tokens,
        sampling: params.sampling,
        max_tokens: params.max_tokens,
        stop: params.stop.clone(),
        ignore_eos: params.ignore_eos,
        stop_tokens: params.stop_tokens,
        min_tokens: params.min_tokens,
        bad_words: params.bad_words,
        min_indent: params.min_indent,
        no_drafts: params.no_drafts,
        max_time: params.max_time,
        max_prompt_time: params.max_prompt_time,
        logprobs: params.logprobs,
        sampled_logprobs: params.post_sampling_probs,
        shift,
        adapter_scales: params.adapter_scales.or_else(|| served.adapters.current()),
        ..Request::default()
    };
    let job = Job {
        request,
        processors: first,
        salt: tenant.salt,
        key: tenant.key,
        priority: params.priority,
        uncached: params.uncached,
        deadline: timeout.and_then(|timeout| Instant::now().checked_add(timeout)),
        ..Job::default()
    };
    let (sender, listening) = events(outbound);
    let submitted = SystemTime::now();
    served.worker_handle().submit(job, choices, sender)?;
    let open = parsers.len();
    let choice = |parser| ChoiceState {
        parser,
        tokens: Vec::new(),
        cached: 0,
        slot: None,
        reasoning_tokens: 0,
        called: None,
        echo: echo.clone(),
    };
    let mut answer = RequestAnswers {
        listening,
        served,
        choices: parsers.into_iter().map(choice).collect(),
        queue: VecDeque::new(),
        open,
        show_tokens,
        sampled: params.post_sampling_probs,
        stop: params.stop,
        prompt: length,
        params: shown,
        slots,
        text,
        span: span.clone(),
        charge: Arc::clone(charge),
        submitted,
    };
    answer.accepted().await?;
    Ok(answer)
}

/// Tokens of the context that a shift never keeps, as in llama.cpp.
const NEVER_KEPT: usize = 4;

/// What a full context keeps of a prompt: also the token that begins a text.
fn shift(served: &ServedModel, prompt: &[u32], asked: ContextShift) -> ContextShift {
    let begins = prompt.first().is_some_and(|first| served.tokenizer.bos() == Some(*first));
    let keep = asked.keep.saturating_add(usize::from(begins)).min(prompt.len());
    ContextShift { keep: keep.min(served.context.saturating_sub(NEVER_KEPT)), ..asked }
}
