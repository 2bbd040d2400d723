//! Reporting of request fields that have no effect on the answer although they should.
//!
//! Unknown fields are ignored, as in the original APIs: clients send fields of newer versions. The
//! header and the log tell users why a sampler or a constraint does nothing.

use axum::http::HeaderValue;
use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

/// The response header that names them.
pub(crate) const HEADER: &str = "x-latent-ignored-fields";

/// Maximum number of names in a header.
const MAX_NAMES: usize = 16;

/// Maximum bytes of a name in a header and in the log.
const MAX_NAME: usize = 64;

/// Maximum number of names that are logged. Clients choose the names, so the set must be bounded.
const MAX_LOGGED: usize = 256;

/// Fields that do not change the text: identity, storage, caching, reporting, hardware settings.
const HARMLESS: &str = "
    model name stream stream_options user metadata client_metadata store service_tier safety_identifier prompt_cache_key
    prompt_cache_retention cache_control betas background include priority request_id user_id session_id keep_alive conversation_id
    id_slot slot_id n_keep n_discard n_cache_reuse cache_prompt backend_sampling verbose
    return_tokens return_progress return_token_ids timings_per_token logprobs top_logprobs n_probs post_sampling_probs response_fields
    prompt_logprobs include_usage usage encoding_format with_pieces truncation
    options.num_ctx options.num_batch options.num_gpu options.main_gpu options.num_thread options.num_keep options.numa options.low_vram
    options.f16_kv options.use_mmap options.use_mlock options.vocab_only options.logits_all
";

/// The names of ignored fields in one request.
#[derive(Default)]
pub(crate) struct IgnoredFields(Mutex<Vec<String>>);

impl IgnoredFields {
    /// Adds the names that are not harmless. Returns the added ones.
    pub(crate) fn add(&self, names: impl IntoIterator<Item = String>) -> Vec<String> {
        let changes_text = |name: &String| !HARMLESS.split_ascii_whitespace().any(|other| other == name);
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut added = Vec::new();
        for name in names.into_iter().filter(changes_text) {
            let name = printable(&name);
            if all.len() < MAX_NAMES && !all.contains(&name) {
                all.push(name.clone());
                added.push(name);
            }
        }
        added
    }

    /// The value of the header, if there are any.
    pub(crate) fn header(&self) -> Option<HeaderValue> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if all.is_empty() { None } else { HeaderValue::from_str(&all.join(", ")).ok() }
    }
}

/// A name in printable ASCII.
fn printable(name: &str) -> String {
    // Clients choose the names. They must not inject lines into the header or the log, or commas
    // into the header's list.
    let plain = |c: char| if c.is_ascii_alphanumeric() || "_-.".contains(c) { c } else { '?' };
    name.chars().take(MAX_NAME).map(plain).collect()
}

/// The names that were logged before, so that each is logged once per process.
#[derive(Default)]
pub(crate) struct LoggedFields(Mutex<HashSet<String>>);

impl LoggedFields {
    /// Logs the names that were not logged before.
    pub(crate) fn log(&self, names: &[String]) {
        let mut logged = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for name in names {
            if logged.len() < MAX_LOGGED && logged.insert(name.clone()) {
                tracing::warn!("requests set the field {name}, which has no effect");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_bounded_and_printable() {
        let ignored = IgnoredFields::default();
        assert!(ignored.header().is_none());
        let names = ["user", "top_q", "top_q", "böse\nname"].map(str::to_owned);
        // `user` has no effect on answers and is not reported. Header values must be ASCII.
        assert_eq!(ignored.add(names), ["top_q", "b?se?name"]);
        assert_eq!(ignored.header().unwrap(), "top_q, b?se?name");
        ignored.add((0..1000).map(|i| format!("{i}{}", "x".repeat(1000))));
        let header = ignored.header().unwrap();
        assert!(header.len() <= MAX_NAMES * (MAX_NAME + 2), "{}", header.len());
    }
}
