//! Dynamo's sampling options as Latent's.

use crate::error::invalid;
use dynamo_backend_common::{DynamoError, SamplingOptions};
use latent_engine::sampling::{RecommendedParams, SamplingField, SamplingParams};
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;

/// More tokens than any context has.
const ALL: usize = 1 << 30;

/// What the request says, else what the model recommends, else what leaves the probabilities as
/// they are: as other workers of Dynamo do.
pub(crate) fn params(asked: &SamplingOptions, model: &RecommendedParams) -> Result<SamplingParams, DynamoError> {
    one_answer(asked)?;
    let mut params =
        SamplingParams { temperature: 1.0, top_k: 0, top_p: 1.0, min_p: 0.0, ..SamplingParams::default() };
    model.apply(&mut params);
    let reals = [
        ("temperature", asked.temperature),
        ("top_p", asked.top_p),
        ("min_p", asked.min_p),
        ("repeat_penalty", asked.repetition_penalty),
        ("presence_penalty", asked.presence_penalty),
        ("frequency_penalty", asked.frequency_penalty),
    ];
    for (name, value) in reals {
        if let (Some(field), Some(value)) = (SamplingField::named(name), value) {
            field.set(&mut params, value.into());
        }
    }
    if let Some(count) = asked.top_k {
        if count < -1 {
            return Err(invalid(format!("top_k is {count}: expected -1 for all, or a number of tokens")));
        }
        params.top_k = usize::try_from(count).unwrap_or(0);
    }
    // penalties look at the whole text, as in the engines that Dynamo's frontend was made for
    params.repeat_last_n = ALL;
    params.seed = asked.seed.map_or_else(drawn_seed, |seed| seed as u64);
    Ok(params)
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
        let model = RecommendedParams { numbers: vec![("temperature", 0.6), ("top_k", 20.0)], samplers: None };
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
