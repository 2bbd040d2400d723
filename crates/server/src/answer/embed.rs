//! Embedding jobs.

use super::{failed, refused};
use crate::error::ApiError;
use crate::keys::Tenant;
use crate::models::Lease;
use crate::spans::{AnswerRecord, RequestRecord, RequestSpan};
use crate::worker::{JobNotice, events};
use latent_engine::Request;
use latent_engine::scheduler::{Job, JobEvent, JobUsage};
use std::future::poll_fn;
use std::time::{Duration, Instant, SystemTime};

/// Computes the embedding of a prompt. Returns the normalized vectors of the model's hidden size,
/// and the norm that they were divided by.
pub(crate) async fn embed(
    model: &Lease,
    tenant: Tenant,
    prompt: Vec<u32>,
    timeout: Option<Duration>,
    span: &RequestSpan,
) -> Result<(Vec<f32>, f32, JobUsage), ApiError> {
    let name = &model.about.id;
    span.asked(&RequestRecord {
        model: name,
        prompt: prompt.len(),
        max_tokens: None,
        choices: 1,
        sampling: None,
    });
    let submitted = SystemTime::now();
    let job = Job {
        request: Request {
            prompt,
            max_tokens: Some(0),
            adapter_scales: model.adapters.current(),
            ..Request::default()
        },
        salt: tenant.salt,
        key: tenant.key,
        deadline: timeout.and_then(|timeout| Instant::now().checked_add(timeout)),
        embed: true,
        pooling: model.about.defaults.pooling,
        ..Job::default()
    };
    // A single event follows, so no limit on unread bytes is needed. Half of the range, since
    // `send` adds to the counter before it compares.
    let (sender, mut listening) = events(usize::MAX / 2);
    model.worker_handle().submit(job, Vec::new(), sender)?;
    loop {
        match poll_fn(|context| listening.poll(context)).await {
            None => return Err(ApiError::internal("the engine has stopped")),
            Some(JobNotice::Refused(refusal)) => return Err(refused(&refusal)),
            Some(JobNotice::Event { event: JobEvent::Embedded { values, length, usage }, .. }) => {
                span.ended(&AnswerRecord { submitted, choice: 0, usage, reasoning: 0, reason: None });
                return Ok((values, length, usage));
            }
            Some(JobNotice::Event { event: JobEvent::Failed(error), .. }) => return Err(failed(&error)),
            Some(JobNotice::Event { event: JobEvent::Finished { .. }, .. }) => {
                return Err(ApiError::internal("an answer in place of an embedding"));
            }
            Some(_) => {}
        }
    }
}
