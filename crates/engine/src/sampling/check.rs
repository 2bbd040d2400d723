//! Checks of sampling parameters.

use super::error::ParamError;
use super::fields::SamplingField;
use super::params::SamplingParams;
use crate::error::EngineError;

impl SamplingParams {
    /// Checks every parameter.
    ///
    /// # Errors
    /// The first that is out of its range, with the range.
    pub fn validate(&self, vocab: usize) -> Result<(), EngineError> {
        self.check(vocab).map_err(|error| EngineError::Options(error.to_string()))
    }

    /// Checks every parameter.
    ///
    /// # Errors
    /// The first that is out of its range, with its name and the range.
    pub fn check(&self, vocab: usize) -> Result<(), ParamError> {
        SamplingField::all().iter().try_for_each(|field| field.check(self))?;
        for (id, bias) in &self.logit_bias {
            // −∞ bans a token.
            if *id as usize >= vocab || bias.is_nan() || *bias == f32::INFINITY {
                let problem = format!(
                    "logit bias {bias} for token {id}: expected a token below {vocab} and a finite number or -inf"
                );
                return Err(ParamError { name: "logit_bias", problem });
            }
        }
        let allowed = self.allowed_tokens.as_deref();
        if let Some(id) = allowed.unwrap_or_default().iter().find(|id| **id as usize >= vocab) {
            let problem = format!("token {id} is allowed: expected a token below {vocab}");
            return Err(ParamError { name: "allowed_tokens", problem });
        }
        if allowed.is_some_and(<[u32]>::is_empty) {
            let problem = "the list of allowed tokens is empty: expected at least one".into();
            return Err(ParamError { name: "allowed_tokens", problem });
        }
        Ok(())
    }
}
