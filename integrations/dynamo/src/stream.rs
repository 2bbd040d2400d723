//! One answer as Dynamo hears it.

use crate::error::{of_job, refused, shut_down};
use crate::handle::Entry;
use crate::limits::Stops;
use crate::worker::Notice;
use dynamo_backend_common::{
    AsyncEngineContext, DynamoError, FinishReason, LLMEngineOutput, LLMEngineOutputExt, PromptTokensDetails,
    TopLogprob, usage,
};
use futures::stream::BoxStream;
use latent_engine::sampling::LogProbability;
use latent_engine::scheduler::{JobError, JobEvent};
use latent_engine::{ChosenToken, StopReason};
use latent_text::Tokenizer;
use std::sync::Arc;
use tokio::sync::mpsc::UnboundedReceiver;

/// What an answer needs to know while it is written.
pub(crate) struct Answer {
    pub(crate) entry: Entry,
    pub(crate) notices: UnboundedReceiver<Notice>,
    pub(crate) tokenizer: Arc<Tokenizer>,
    pub(crate) stops: Stops,
    pub(crate) prompt: usize,
    /// Alternatives that are told.
    pub(crate) logprobs: Option<usize>,
    pub(crate) cached: usize,
    pub(crate) completion: usize,
}

type Item = Result<LLMEngineOutput, DynamoError>;

/// What follows from a notice.
enum Next {
    Silent,
    Part(LLMEngineOutput),
    Last(Item),
}

/// The answer, which ends with exactly one item that says why.
pub(crate) fn stream(mut answer: Answer, context: Arc<dyn AsyncEngineContext>) -> BoxStream<'static, Item> {
    Box::pin(async_stream::stream! {
        let stopped = async { tokio::select! { () = context.stopped() => {}, () = context.killed() => {} } };
        tokio::pin!(stopped);
        loop {
            let notice = tokio::select! {
                biased;
                () = &mut stopped => {
                    answer.entry.handle().cancel();
                    yield Ok(answer.end(FinishReason::Cancelled));
                    return;
                }
                notice = answer.notices.recv() => notice,
            };
            match answer.next(notice) {
                Next::Silent => {}
                Next::Part(output) => yield Ok(output),
                Next::Last(item) => {
                    // a stop token ends an answer that the scheduler would go on with
                    answer.entry.handle().cancel();
                    yield item;
                    return;
                }
            }
        }
    })
}

impl Answer {
    fn next(&mut self, notice: Option<Notice>) -> Next {
        let event = match notice {
            None => return Next::Last(Err(shut_down("this worker's engine has ended"))),
            Some(Notice::Refused(refusal)) => return Next::Last(Err(refused(&refusal))),
            Some(Notice::Event(event)) => event,
        };
        match event {
            JobEvent::Started { cached_tokens, .. } => {
                self.cached = cached_tokens;
                Next::Silent
            }
            JobEvent::Token(chosen) => {
                self.completion += 1;
                let output = self.part(&chosen);
                if self.stops.end(chosen.token, self.completion) {
                    return Next::Last(Ok(self.last(output, FinishReason::Stop)));
                }
                Next::Part(output)
            }
            JobEvent::Finished { reason, .. } => Next::Last(Ok(self.end(finish(reason)))),
            // another worker can answer
            JobEvent::Failed(JobError::Engine(problem)) => Next::Last(Err(shut_down(problem))),
            JobEvent::Failed(error) => Next::Last(Err(of_job(&error))),
            // a prompt's progress; embeddings are not asked for
            _ => Next::Silent,
        }
    }

    fn part(&self, chosen: &ChosenToken) -> LLMEngineOutput {
        let mut output = LLMEngineOutput { token_ids: vec![chosen.token], ..LLMEngineOutput::default() };
        if let (Some((own, others)), Some(count)) = (&chosen.logprob, self.logprobs) {
            let own = LogProbability { id: chosen.token, logprob: *own };
            output.log_probs = Some(vec![own.logprob.into()]);
            let top = others.iter().take(count).enumerate();
            let mut top: Vec<TopLogprob> =
                top.map(|(rank, other)| self.alternative(rank + 1, other)).collect();
            if top.iter().all(|other| other.token_id != own.id) {
                // the chosen token is always among them, as other engines have it
                top.push(self.alternative(others.len() + 1, &own));
            }
            output.top_logprobs = Some(vec![top]);
        }
        output
    }

    fn alternative(&self, rank: usize, of: &LogProbability) -> TopLogprob {
        let piece = self.tokenizer.piece(of.id).unwrap_or_default();
        TopLogprob {
            rank: u32::try_from(rank).unwrap_or(u32::MAX),
            token_id: of.id,
            token: Some(String::from_utf8_lossy(piece).into_owned()),
            logprob: of.logprob.into(),
            bytes: Some(piece.to_vec()),
        }
    }

    fn end(&self, reason: FinishReason) -> LLMEngineOutput {
        self.last(LLMEngineOutput::default(), reason)
    }

    fn last(&self, output: LLMEngineOutput, reason: FinishReason) -> LLMEngineOutput {
        let count = |tokens: usize| u32::try_from(tokens).unwrap_or(u32::MAX);
        let mut taken = usage(count(self.prompt), count(self.completion));
        let cached_tokens = Some(count(self.cached));
        taken.prompt_tokens_details =
            Some(PromptTokensDetails { cached_tokens, ..PromptTokensDetails::default() });
        LLMEngineOutput { finish_reason: Some(reason), ..output }.with_usage(taken)
    }
}

fn finish(reason: StopReason) -> FinishReason {
    match reason {
        StopReason::End => FinishReason::EoS,
        StopReason::StopString => FinishReason::Stop,
        StopReason::Length | StopReason::Context => FinishReason::Length,
        StopReason::Interrupted => FinishReason::Cancelled,
    }
}
