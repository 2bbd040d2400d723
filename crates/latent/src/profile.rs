//! Profiles of a model.

use crate::error::Error;
use crate::model::Model;
use crate::waiting::WaitCheck;
use latent_engine::cache::Sequence;
use latent_engine::{Engine, EngineError, LogitsRequest, PeakRates, SeqInput, StepProfile, StepSize};
use serde_json::{Value, json};

/// Pseudo-random tokens.
fn tokens(engine: &Engine, count: usize) -> Vec<u32> {
    // In MoE models, equal tokens would all select the same experts. The multiplier is 2^64 divided
    // by the golden ratio (Fibonacci hashing), whose upper bits differ between neighbouring
    // numbers.
    let vocab = engine.config().vocab_size as u64;
    (1..=count as u64).map(|i| ((i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20) % vocab) as u32).collect()
}

impl Model {
    /// Measures the time of each phase of a prompt of `prompt` tokens and of `decode` tokens after
    /// it, and the machine's limits in the same run. Returns the JSON of `latent profile`.
    ///
    /// # Errors
    /// If the tokens do not fit into the context, or the backend does not support measuring.
    pub fn profile(&self, prompt: usize, decode: usize) -> Result<Value, Error> {
        self.profile_with(prompt, decode, None)
    }

    /// Like [`profile`](Self::profile), while `go_on` returns true.
    ///
    /// # Errors
    /// As for [`profile`](Self::profile), and if `go_on` returns false.
    pub fn profile_while(&self, prompt: usize, decode: usize, go_on: WaitCheck<'_>) -> Result<Value, Error> {
        self.profile_with(prompt, decode, Some(go_on))
    }

    fn profile_with(
        &self,
        prompt: usize,
        decode: usize,
        go_on: Option<WaitCheck<'_>>,
    ) -> Result<Value, Error> {
        let context = self.inner.description.context;
        let all = prompt.saturating_add(decode);
        if all == 0 || all > context {
            return Err(Error::argument(format!(
                "prompt {prompt} and decode {decode}: expected 1 to {context} tokens in total, the size of \
                 the context"
            )));
        }
        let backend = self.backend()?;
        self.lend_engine(all, go_on, move |engine, go_on| {
            // Otherwise the first steps would include reading the weights from the disk.
            engine.wait_for_weights();
            let summary = engine.summary();
            let limits = latent_backends::limits(&*backend, &summary.placement, summary.tier)?;
            let tokens = tokens(engine, all);
            let steps = steps(engine, &tokens, prompt, &limits, go_on)?;
            serde_json::to_value(json!({ "limits": limits, "steps": steps }))
                .map_err(|error| Error::new(crate::ErrorKind::Engine, error.to_string()))
        })
    }
}

/// The profiles of the prompt, which runs once before it is measured, and of the decode steps after
/// it.
fn steps(
    engine: &mut Engine,
    tokens: &[u32],
    prompt: usize,
    limits: &PeakRates,
    go_on: &dyn Fn() -> bool,
) -> Result<Vec<StepProfile>, EngineError> {
    let mut profiles = Vec::new();
    let (read, decoded) = tokens.split_at(prompt);
    let chunk = engine.chunk_for(prompt);
    let mut sequence = Sequence::default();
    let run = |engine: &mut Engine, sequence: &mut Sequence| match read {
        [] => Ok(()),
        read => engine.prefill(sequence, read, chunk, LogitsRequest::Last, &mut |_, _| {}, &mut |_| go_on()),
    };
    // The first run is not measured: it touches much of the memory for the first time.
    run(engine, &mut sequence)?;
    if prompt > 0 {
        let sizes: Vec<_> = StepSize::prompt(prompt, 0, chunk).collect();
        // The measured run begins with an empty sequence, as the first one did.
        sequence = Sequence::default();
        profiles.push(engine.profile(&sizes, false, limits, &mut |engine| run(engine, &mut sequence))?);
    }
    let mut decode = |engine: &mut Engine| {
        for token in decoded {
            let mut inputs =
                [SeqInput::tokens(&mut sequence, std::slice::from_ref(token), LogitsRequest::Last)];
            engine.step(&mut inputs, &mut |_, _, _| {})?.all()?;
            if !go_on() {
                return Err(EngineError::Stopped);
            }
        }
        Ok(())
    };
    if !decoded.is_empty() {
        let sizes: Vec<StepSize> = (0..decoded.len()).map(|i| StepSize::decode(1, prompt + i)).collect();
        profiles.push(engine.profile(&sizes, true, limits, &mut decode)?);
    }
    Ok(profiles)
}
