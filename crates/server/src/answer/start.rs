//! Submission of prepared requests to the engine.

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

/// A request that is ready for the engine: rendered, tokenized, and with compiled grammars.
pub(crate) struct PreparedRequest {
    pub(crate) served: Arc<Lease>,
    pub(crate) prompt: PreparedPrompt,
    pub(crate) params: AnswerParams,
    /// A parser for each answer.
    pub(crate) parsers: Vec<Parser>,
    /// The logits processors of each answer.
    pub(crate) processors: Vec<Vec<Box<dyn LogitsProcessor>>>,
    /// Whether the dialect wants updates per token.
    pub(crate) show_tokens: bool,
    /// Text that each answer begins with.
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
        // `-n` is an upper limit for all dialects, so it is applied here and not in each of them.
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

    /// Estimated bytes that the request holds until it is answered.
    pub(crate) fn retained(&self) -> usize {
        // The engine keeps the tokens and the hashes of their blocks. Each parser has the types of
        // all tool parameters. An echo is stored in the answer and written in the response.
        let of_choice = 16 * self.tool_bytes + 4 * self.echo.len();
        8 * self.prompt.tokens.len() + self.parsers.len() * of_choice
    }
}

/// Submits a request to the engine and waits until the scheduler accepts it.
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
        // Each answer needs a seed of its own, or all `n` answers would be equal. Any 64-bit seed
        // is allowed.
        .map(|(i, processors)| FurtherChoice { seed: seed.wrapping_add(i as u64 + 1), processors })
        .collect();
    let length = prompt.tokens.len();
    let shift = served.about.defaults.context_shift.then(|| shift(&served, &prompt.tokens, params.shift));
    let text = keeps_texts.then(|| SlotText { salt: tenant.salt, tokens: prompt.tokens.clone() });
    // `/slots` shows the parameters while the request runs. A grammar, which may have 64 KiB and
    // has been compiled, is not kept for that.
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
        max_drafts: params.max_drafts,
        max_time: params.max_time,
        max_prompt_time: params.max_prompt_time,
        logprobs: params.logprobs,
        sampled_logprobs: params.post_sampling_probs,
        shift,
        // Fixed here: a later POST /lora-adapters must not change a running answer.
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
        // `None`, and so without limit, if the timeout exceeds the range of `Instant`.
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

/// Tokens of the context that a shift never keeps, as in llama.cpp (`n_ctx - 4`).
const NEVER_KEPT: usize = 4;

/// The tokens of a prompt that a context shift keeps.
fn shift(served: &ServedModel, prompt: &[u32], asked: ContextShift) -> ContextShift {
    // As in llama.cpp, BOS is kept in addition to `n_keep`: models attend to the first token
    // strongly, and answers degrade without it.
    let begins = prompt.first().is_some_and(|first| served.tokenizer.bos() == Some(*first));
    let keep = asked.keep.saturating_add(usize::from(begins)).min(prompt.len());
    ContextShift { keep: keep.min(served.context.saturating_sub(NEVER_KEPT)), ..asked }
}
