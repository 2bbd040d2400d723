//! Dynamo's request as a job of the scheduler.

use crate::error::invalid;
use crate::guided::{self, Guide};
use crate::limits::{self, Stops};
use crate::load::Served;
use crate::sampling;
use dynamo_backend_common::{DynamoError, PreprocessedRequest};
use latent_engine::Request;
use latent_engine::cache::CacheSalt;
use latent_engine::scheduler::Job;

/// Most alternatives of whose probability a client is told.
const MAX_LOGPROBS: u32 = 20;

/// Priorities beyond this count as this.
const MAX_PRIORITY: i32 = 1000;

/// A job, and what the scheduler does not know of it.
pub(crate) struct Prepared {
    pub(crate) job: Job,
    pub(crate) stops: Stops,
    /// Whose cached prefixes it shares; none: everybody's who names none.
    pub(crate) namespace: Option<String>,
    /// Alternatives with log-probabilities.
    pub(crate) logprobs: Option<usize>,
}

/// Reads a request. Compiling a grammar takes its time: for a thread that may wait.
pub(crate) fn prepare(
    request: PreprocessedRequest,
    served: &Served,
    guide: &Guide,
) -> Result<Prepared, DynamoError> {
    supported(&request)?;
    let PreprocessedRequest { token_ids, stop_conditions, sampling_options, output_options, routing, .. } =
        request;
    let routing = routing.unwrap_or_default();
    if let Some(adapter) = routing.lora_name {
        return Err(invalid(format!("unknown adapter {adapter:?}: this worker does not load LoRA adapters")));
    }
    if routing.dp_rank.is_some_and(|rank| rank != 0) {
        let rank = routing.dp_rank.unwrap_or_default();
        return Err(invalid(format!("unknown data-parallel rank {rank}: this worker only has rank 0")));
    }
    limits::check(&stop_conditions)?;
    let stops = Stops::new(&stop_conditions);
    let mut sampling = sampling::params(&sampling_options, &served.recommended)?;
    let mut processors = Vec::new();
    let source = sampling_options.guided_decoding.as_ref().map(guided::source).transpose()?.flatten();
    if let Some(source) = &source {
        processors.push(guide.constraint(source, &served.tokenizer)?);
    } else if stop_conditions.ignore_eos == Some(true) {
        // a constraint needs its end
        let ends = served.tokenizer.end_of_generation();
        sampling.logit_bias.extend(ends.iter().map(|id| (*id, f32::NEG_INFINITY)));
    }
    processors.extend(stops.processor(&served.tokenizer, token_ids.len()));
    let logprobs = output_options.logprobs.map(|count| {
        if count <= MAX_LOGPROBS {
            return Ok(count as usize);
        }
        Err(invalid(format!("logprobs is {count}: at most {MAX_LOGPROBS} alternatives are told")))
    });
    let logprobs = logprobs.transpose()?;
    let namespace = routing.cache_namespace.filter(|name| !name.is_empty());
    let job = Job {
        request: Request {
            prompt: std::sync::Arc::unwrap_or_clone(token_ids),
            sampling,
            max_tokens: stop_conditions.max_tokens.map(|count| count as usize),
            stop: stop_conditions
                .stop
                .unwrap_or_default()
                .into_iter()
                .filter(|text| !text.is_empty())
                .collect(),
            logprobs,
            ..Request::default()
        },
        processors,
        salt: namespace.as_ref().map_or(CacheSalt::SHARED, |name| CacheSalt::of(name.as_bytes())),
        priority: routing.priority.unwrap_or(0).clamp(-MAX_PRIORITY, MAX_PRIORITY),
        ..Job::default()
    };
    Ok(Prepared { job, stops, namespace, logprobs })
}

/// What this worker has no part in.
fn supported(request: &PreprocessedRequest) -> Result<(), DynamoError> {
    let media = request.multi_modal_data.as_ref().is_some_and(|data| !data.is_empty());
    let refused = [
        (media, "images, sounds and films are not understood: this worker runs the text part of models"),
        (request.prompt_embeds.is_some(), "prompt_embeds is not supported: send tokens"),
        (
            request.output_options.prompt_logprobs.is_some(),
            "prompt_logprobs is not supported: logprobs is, for the answer",
        ),
        (request.prefill_result.is_some(), "this worker takes no prompts from others: run it as aggregated"),
    ];
    match refused.into_iter().find(|(found, _)| *found) {
        Some((_, problem)) => Err(invalid(problem)),
        None => Ok(()),
    }
}
