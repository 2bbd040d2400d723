//! Dynamo's sampling options as Latent's.

use crate::error::invalid;
use dynamo_backend_common::{DynamoError, SamplingOptions};
use latent_engine::sampling::{RecommendedParams, SamplingParams};
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;

/// More tokens than any context has.
const ALL: usize = 1 << 30;

/// What the request says, else what the model recommends, else what leaves the probabilities as they are: as other workers of Dynamo do.
pub(crate) fn params(asked: &SamplingOptions, model: &RecommendedParams) -> Result<SamplingParams, DynamoError> {
    one_answer(asked)?;
    let top_k = match asked.top_k {
        None => model.top_k.unwrap_or(0),
        Some(-1) => 0,
        Some(count) => usize::try_from(count)
            .map_err(|_| invalid(format!("top_k is {count}: expected -1 for all, or a number of tokens")))?,
    };
    Ok(SamplingParams {
        temperature: asked.temperature.or(model.temperature).unwrap_or(1.0),
        top_k,
        top_p: asked.top_p.or(model.top_p).unwrap_or(1.0),
        min_p: asked.min_p.or(model.min_p).unwrap_or(0.0),
        typical: model.typical.unwrap_or(1.0),
        repeat_penalty: asked.repetition_penalty.or(model.repeat_penalty).unwrap_or(1.0),
        presence_penalty: asked.presence_penalty.unwrap_or(0.0),
        frequency_penalty: asked.frequency_penalty.unwrap_or(0.0),
        // penalties look at the whole text, as in the engines that Dynamo's frontend was made for
        penalty_last: ALL,
        xtc_probability: model.xtc_probability.unwrap_or(0.0),
        xtc_threshold: model.xtc_threshold.unwrap_or(0.1),
        seed: asked.seed.map_or_else(drawn_seed, |seed| seed as u64),
        ..SamplingParams::default()
    })
}

/// A worker of Dynamo sends one answer to a request.
fn one_answer(asked: &SamplingOptions) -> Result<(), DynamoError> {
    for (name, count) in [("n", asked.n), ("best_of", asked.best_of)] {
        if count.is_some_and(|count| count != 1) {
            let count = count.unwrap_or_default();
            return Err(invalid(format!(
                "{name} is {count}: one answer is given to a request; ask several times"
            )));
        }
    }
    if asked.use_beam_search == Some(true) {
        return Err(invalid("use_beam_search: beam search is not supported"));
    }
    Ok(())
}

fn drawn_seed() -> u64 {
    // keyed by the system's random numbers
    RandomState::new().hash_one(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_goes_before_the_model_and_the_model_before_what_changes_nothing() {
        let model = RecommendedParams { temperature: Some(0.6), top_k: Some(20), ..RecommendedParams::default() };
        let silent = params(&SamplingOptions::default(), &model).unwrap();
        assert_eq!((silent.temperature, silent.top_k, silent.top_p, silent.min_p), (0.6, 20, 1.0, 0.0));
        let asked = SamplingOptions {
            temperature: Some(0.0),
            top_k: Some(-1),
            repetition_penalty: Some(1.1),
            seed: Some(-3),
            ..SamplingOptions::default()
        };
        let asked = params(&asked, &model).unwrap();
        assert_eq!((asked.temperature, asked.top_k, asked.repeat_penalty), (0.0, 0, 1.1));
        assert_eq!(asked.seed, -3_i64 as u64);
    }

    #[test]
    fn what_cannot_be_done_is_refused_by_name() {
        let refused =
            |options: SamplingOptions| params(&options, &RecommendedParams::default()).unwrap_err().to_string();
        assert!(refused(SamplingOptions { n: Some(3), ..Default::default() }).contains("n is 3"));
        assert!(refused(SamplingOptions { top_k: Some(-2), ..Default::default() }).contains("top_k is -2"));
        assert!(
            refused(SamplingOptions { use_beam_search: Some(true), ..Default::default() }).contains("beam")
        );
        assert!(
            params(&SamplingOptions { n: Some(1), ..Default::default() }, &RecommendedParams::default()).is_ok()
        );
    }
}
