//! The view computed from two readings.

use super::metrics::ScrapedMetrics;
use serde_json::{Value, json};
use std::time::Duration;

/// Maximum phases.
const MAX_PHASES: usize = 64;

/// A phase of a step.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct PhaseFigures {
    pub(super) name: String,
    /// Share of the step's time, 0 to 1.
    pub(super) share: f64,
    pub(super) microseconds: f64,
}

/// A row of the list of models.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ModelRow {
    pub(super) name: String,
    pub(super) loaded: Option<bool>,
    pub(super) running: Option<f64>,
    pub(super) waiting: Option<f64>,
    pub(super) token_rate: Option<f64>,
}

/// Metrics of one moment. `None` if the server does not report them.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct TopView {
    pub(super) ready: Option<bool>,
    pub(super) uptime: Option<f64>,
    pub(super) running: Option<f64>,
    pub(super) in_prompt: Option<f64>,
    pub(super) waiting: Option<f64>,
    pub(super) waiting_tokens: Option<f64>,
    /// Sequences decoded in the last step, and its prompt tokens.
    pub(super) decoding: Option<f64>,
    pub(super) prompt_rows: Option<f64>,
    pub(super) step_seconds: Option<f64>,
    pub(super) steps_rate: Option<f64>,
    pub(super) prompt_rate: Option<f64>,
    pub(super) token_rate: Option<f64>,
    /// Mean times between the readings, in seconds.
    pub(super) first_token: Option<f64>,
    pub(super) gap: Option<f64>,
    /// Cache blocks: used, cached, free.
    pub(super) blocks: [Option<f64>; 3],
    pub(super) block_tokens: Option<f64>,
    /// Slots of recurrent state: used, all, and bytes of each.
    pub(super) state_slots: [Option<f64>; 3],
    /// Prefix cache: hits, lookups, tokens saved, evicted blocks.
    pub(super) hits: Option<f64>,
    pub(super) lookups: Option<f64>,
    pub(super) saved: Option<f64>,
    pub(super) evicted: Option<f64>,
    pub(super) disk_bytes: Option<f64>,
    /// Answers by result: finished, refused, cancelled, failed.
    pub(super) jobs: [Option<f64>; 4],
    pub(super) preemptions: Option<f64>,
    pub(super) drafted: Option<f64>,
    pub(super) accepted: Option<f64>,
    /// Filled if the server has several models.
    pub(super) models: Vec<ModelRow>,
    pub(super) phases: Vec<PhaseFigures>,
    /// The model of `phases`, if the server has several.
    pub(super) phases_of: Option<String>,
}

impl TopView {
    /// Computes a view from a reading and, for rates, the previous one with the time between them.
    pub(super) fn new(now: &ScrapedMetrics, before: Option<(&ScrapedMetrics, Duration)>) -> TopView {
        // Latent's name, else llama-server's.
        let first = |names: [&str; 2]| now.get(names[0]).or_else(|| now.get(names[1]));
        // A counter that decreased belongs to a restarted server: no rate is known.
        let grown = |name: &str| {
            let (before, time) = before?;
            let difference = now.get(name)? - before.get(name)?;
            (difference >= 0.0).then_some((difference, time.as_secs_f64()))
        };
        let rate = |names: [&str; 2]| {
            let (more, seconds) = grown(names[0]).or_else(|| grown(names[1]))?;
            (seconds > 0.0).then(|| more / seconds)
        };
        let mean = |sum: &str, count: &str| {
            let ((sum, _), (count, _)) = (grown(sum)?, grown(count)?);
            (count > 0.0).then(|| sum / count)
        };
        let models = match now.models() {
            // With one model, the rows would repeat the totals above them.
            [_, _, ..] => now.models().iter().map(|name| ModelRow::new(name, now, before)).collect(),
            _ => Vec::new(),
        };
        let states = |name: &str, states: [&str; 3]| states.map(|state| now.of(name, state));
        TopView {
            ready: now.get("latent_ready").map(|ready| ready > 0.0),
            uptime: now.get("latent_uptime_seconds"),
            running: first(["latent_requests_running", "llamacpp:requests_processing"]),
            in_prompt: now.get("latent_requests_in_prompt"),
            waiting: first(["latent_requests_waiting", "llamacpp:requests_deferred"]),
            waiting_tokens: now.get("latent_waiting_tokens"),
            decoding: now.get("latent_batch_decoding"),
            prompt_rows: now.get("latent_batch_prompt_tokens"),
            // The mean needs two readings and a step in between; otherwise the last step's time is
            // shown.
            step_seconds: mean("latent_step_seconds_total", "latent_steps_total")
                .or_else(|| now.largest("latent_last_step_seconds")),
            steps_rate: rate(["latent_steps_total", "llamacpp:n_decode_total"]),
            prompt_rate: rate(["latent_prompt_tokens_total", "llamacpp:prompt_tokens_total"]),
            token_rate: rate(["latent_generated_tokens_total", "llamacpp:tokens_predicted_total"]),
            first_token: mean("latent_first_token_seconds_total", "latent_first_tokens_total"),
            gap: mean("latent_token_gap_seconds_total", "latent_token_gaps_total"),
            blocks: states("latent_kv_blocks", ["used", "cached", "free"]),
            block_tokens: now.largest("latent_kv_block_tokens"),
            state_slots: [
                now.get("latent_states_used"),
                now.get("latent_states"),
                now.largest("latent_state_bytes"),
            ],
            hits: now.get("latent_prefix_hits_total"),
            lookups: now.get("latent_prefix_lookups_total"),
            saved: now.get("latent_prefix_tokens_saved_total"),
            evicted: now.get("latent_prefix_evicted_total"),
            disk_bytes: now.get("latent_disk_cache_bytes"),
            jobs: ["finished", "refused", "cancelled", "failed"]
                .map(|state| now.of("latent_jobs_total", state)),
            preemptions: now.get("latent_preemptions_total"),
            drafted: now.get("latent_drafted_tokens_total"),
            accepted: now.get("latent_accepted_drafts_total"),
            models,
            phases: Vec::new(),
            phases_of: None,
        }
    }

    pub(super) fn json(&self, url: &str) -> Value {
        let phase = |phase: &PhaseFigures| json!({"name": phase.name, "share": phase.share, "microseconds": phase.microseconds});
        json!({
            "url": url,
            "ready": self.ready,
            "uptime_seconds": self.uptime,
            "requests": {"running": self.running, "in_prompt": self.in_prompt, "waiting": self.waiting, "waiting_tokens": self.waiting_tokens},
            "batch": {"decoding": self.decoding, "prompt_tokens": self.prompt_rows, "step_seconds": self.step_seconds},
            "per_second": {"steps": self.steps_rate, "prompt_tokens": self.prompt_rate, "generated_tokens": self.token_rate},
            "mean_seconds": {"first_token": self.first_token, "between_tokens": self.gap},
            "cache_blocks": {"used": self.blocks[0], "cached": self.blocks[1], "free": self.blocks[2], "tokens": self.block_tokens},
            "states": {"used": self.state_slots[0], "slots": self.state_slots[1], "bytes": self.state_slots[2]},
            "prefixes": {"hits": self.hits, "lookups": self.lookups, "tokens_saved": self.saved, "evicted": self.evicted, "disk_bytes": self.disk_bytes},
            "jobs": {"finished": self.jobs[0], "refused": self.jobs[1], "cancelled": self.jobs[2], "failed": self.jobs[3], "preempted": self.preemptions},
            "drafts": {"drafted": self.drafted, "accepted": self.accepted},
            "models": self.models.iter().map(ModelRow::json).collect::<Vec<_>>(),
            "phases": self.phases.iter().map(phase).collect::<Vec<_>>(),
            "phases_of": self.phases_of,
        })
    }
}

impl ModelRow {
    fn new(name: &str, now: &ScrapedMetrics, before: Option<(&ScrapedMetrics, Duration)>) -> ModelRow {
        let rate = || {
            let (before, time) = before?;
            let tokens = |metrics: &ScrapedMetrics| metrics.of_model("latent_generated_tokens_total", name);
            let more = tokens(now)? - tokens(before)?;
            // As in `TopView::new`: a counter decreases when the server restarts.
            (more >= 0.0 && !time.is_zero()).then(|| more / time.as_secs_f64())
        };
        ModelRow {
            name: name.to_owned(),
            loaded: now.of_model("latent_model_loaded", name).map(|loaded| loaded > 0.0),
            running: now.of_model("latent_requests_running", name),
            waiting: now.of_model("latent_requests_waiting", name),
            token_rate: rate(),
        }
    }

    fn json(&self) -> Value {
        json!({
            "name": self.name, "loaded": self.loaded, "requests": {"running": self.running, "waiting": self.waiting},
            "per_second": {"generated_tokens": self.token_rate},
        })
    }
}

/// Parses the phases of a step, longest first. Empty if the server does not report them.
pub(super) fn phases(text: &str) -> Vec<PhaseFigures> {
    let value: Value = serde_json::from_str(text).unwrap_or_default();
    let one = |phase: &Value| {
        let number = |name: &str| phase[name].as_f64().filter(|number| number.is_finite() && *number >= 0.0);
        let name: String = phase["name"].as_str()?.chars().take(60).collect();
        Some(PhaseFigures { name, share: number("share")?.min(1.0), microseconds: number("microseconds")? })
    };
    let mut phases: Vec<PhaseFigures> =
        value["phases"].as_array().into_iter().flatten().filter_map(one).collect();
    phases.sort_by(|a, b| b.share.total_cmp(&a.share));
    // After the sort, so that the longest phases remain.
    phases.truncate(MAX_PHASES);
    phases
}
