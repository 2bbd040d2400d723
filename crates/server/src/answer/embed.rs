//! Embeddings of texts.

use super::{failed, refused};
use crate::error::ApiError;
use crate::keys::Tenant;
use crate::worker::{Engineering, Notice, Submission, events};
use latent_engine::Request;
use latent_engine::scheduler::{Job, JobEvent, Usage};
use std::future::poll_fn;
use std::time::{Duration, Instant};

/// The embedding of a prompt, as many elements as the model's hidden size.
pub(crate) async fn embed(
    engineering: &Engineering,
    tenant: Tenant,
    prompt: Vec<u32>,
    timeout: Option<Duration>,
) -> Result<(Vec<f32>, Usage), ApiError> {
    let job = Job {
        request: Request { prompt, max_tokens: Some(0), ..Request::default() },
        salt: tenant.salt,
        key: tenant.key,
        deadline: timeout.map(|timeout| Instant::now() + timeout),
        embed: true,
        ..Job::default()
    };
    let (sender, mut listening) = events(usize::MAX / 2);
    engineering.submit(Submission { job, choices: Vec::new(), events: sender })?;
    loop {
        match poll_fn(|context| listening.poll(context)).await {
            None => return Err(ApiError::internal("the engine has gone away")),
            Some(Notice::Refused(refusal)) => return Err(refused(&refusal)),
            Some(Notice::Event { event: JobEvent::Embedded { values, usage }, .. }) => {
                return Ok((values, usage));
            }
            Some(Notice::Event { event: JobEvent::Failed(error), .. }) => return Err(failed(&error)),
            Some(Notice::Event { event: JobEvent::Finished { .. }, .. }) => {
                return Err(ApiError::internal("an answer in place of an embedding"));
            }
            Some(_) => {}
        }
    }
}
