//! Figures for Prometheus, in its text format.

use crate::worker::{Engineering, ModelState};
use latent_engine::scheduler::SchedulerStats;
use std::collections::BTreeMap;
use std::fmt::{Display, Write};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// Counted by the server itself.
pub(crate) struct Metrics {
    started: Instant,
    connections: AtomicUsize,
    /// Responses by address and status.
    requests: Mutex<BTreeMap<(&'static str, u16), u64>>,
}

impl Metrics {
    pub(crate) fn new() -> Metrics {
        Metrics { started: Instant::now(), connections: AtomicUsize::new(0), requests: Mutex::default() }
    }

    /// Counts a connection as long as what is returned lives.
    pub(crate) fn connection(&self) -> OpenConnection<'_> {
        self.connections.fetch_add(1, Ordering::Relaxed);
        OpenConnection(&self.connections)
    }

    /// Counts a response.
    pub(crate) fn count(&self, address: &'static str, status: u16) {
        let mut requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        *requests.entry((address, status)).or_default() += 1;
    }

    /// The whole page.
    pub(crate) fn page(&self, engineering: &Engineering) -> String {
        let stats = engineering.live.stats();
        let mut page = Page(String::with_capacity(8192));
        llama(&mut page, engineering, &stats);
        scheduler(&mut page, &stats);
        cache(&mut page, &stats);
        self.server(&mut page, engineering);
        page.0
    }

    fn server(&self, page: &mut Page, engineering: &Engineering) {
        let requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let labelled = requests
            .into_iter()
            .map(|((address, status), count)| (format!("path=\"{address}\",status=\"{status}\""), count));
        page.family(COUNTER, "latent_http_requests_total", "Responses by address and status.", labelled);
        let open = self.connections.load(Ordering::Relaxed);
        page.gauge("latent_http_connections", open, "Connections that are open.");
        let ready = matches!(engineering.state(), ModelState::Ready(_)) && !engineering.is_draining();
        page.gauge("latent_ready", u8::from(ready), "Whether requests are taken.");
        let reloads = engineering.live.reloads();
        page.counter("latent_reloads_total", reloads, "Faults after which the model was loaded again.");
        page.gauge("latent_uptime_seconds", self.started.elapsed().as_secs(), "Since the server started.");
    }
}

/// A connection that is counted.
pub(crate) struct OpenConnection<'a>(&'a AtomicUsize);

impl Drop for OpenConnection<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

const COUNTER: &str = "counter";
const GAUGE: &str = "gauge";

/// Text in the making.
struct Page(String);

impl Page {
    /// A metric with one value per set of labels.
    fn family(
        &mut self,
        kind: &str,
        name: &str,
        help: &str,
        values: impl Iterator<Item = (String, impl Display)>,
    ) {
        // writing to a string cannot fail
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
        for (labels, value) in values {
            let _ = if labels.is_empty() {
                writeln!(self.0, "{name} {value}")
            } else {
                writeln!(self.0, "{name}{{{labels}}} {value}")
            };
        }
    }

    /// A metric with one value per state.
    fn states<const N: usize, T: Display>(
        &mut self,
        kind: &str,
        name: &str,
        help: &str,
        values: [(&str, T); N],
    ) {
        let labelled = values.into_iter().map(|(state, value)| (format!("state=\"{state}\""), value));
        self.family(kind, name, help, labelled);
    }

    fn counter(&mut self, name: &str, value: impl Display, help: &str) {
        self.family(COUNTER, name, help, std::iter::once((String::new(), value)));
    }

    fn gauge(&mut self, name: &str, value: impl Display, help: &str) {
        self.family(GAUGE, name, help, std::iter::once((String::new(), value)));
    }
}

/// llama.cpp's names, for dashboards that know them.
fn llama(page: &mut Page, engineering: &Engineering, stats: &SchedulerStats) {
    let rates = engineering.live.rates();
    page.counter("llamacpp:prompt_tokens_total", stats.tokens_in, "Prompt tokens that ran.");
    page.counter("llamacpp:tokens_predicted_total", stats.tokens_out, "Tokens that were generated.");
    page.counter("llamacpp:n_decode_total", stats.steps, "Steps of the engine.");
    page.gauge("llamacpp:prompt_tokens_seconds", rates.prompt, "Prompt tokens per second, now.");
    page.gauge("llamacpp:predicted_tokens_seconds", rates.completion, "Generated tokens per second, now.");
    page.gauge("llamacpp:requests_processing", stats.running, "Requests that run.");
    page.gauge("llamacpp:requests_deferred", stats.waiting, "Requests that wait.");
    let busy = if stats.steps > 0 { stats.gaps as f64 / stats.steps as f64 } else { 0.0 };
    page.gauge("llamacpp:n_busy_slots_per_decode", busy, "Decoding requests per step, on average.");
}

fn scheduler(page: &mut Page, stats: &SchedulerStats) {
    page.gauge("latent_requests_running", stats.running, "Requests that run.");
    page.gauge("latent_requests_in_prompt", stats.in_prompt, "Requests whose prompt has not run to its end.");
    page.gauge("latent_requests_waiting", stats.waiting, "Requests that wait.");
    page.gauge("latent_waiting_tokens", stats.waiting_tokens, "Prompt tokens that wait.");
    let jobs = [
        ("submitted", stats.submitted),
        ("refused", stats.refused),
        ("finished", stats.finished),
        ("cancelled", stats.cancelled),
        ("failed", stats.failed),
    ];
    page.states(COUNTER, "latent_jobs_total", "Answers by what became of them.", jobs);
    page.counter("latent_prompt_tokens_total", stats.tokens_in, "Prompt tokens that ran.");
    page.counter("latent_generated_tokens_total", stats.tokens_out, "Tokens that were generated.");
    page.counter("latent_preemptions_total", stats.preemptions, "Requests that gave their blocks to others.");
    page.counter("latent_steps_total", stats.steps, "Steps of the engine.");
    page.counter("latent_step_seconds_total", stats.step_time.as_secs_f64(), "Time that steps took.");
    page.gauge("latent_last_step_seconds", stats.last_step_time.as_secs_f64(), "Time of the last step.");
    page.gauge("latent_batch_decoding", stats.last_decoding, "Sequences that decoded in the last step.");
    page.gauge("latent_batch_prompt_tokens", stats.last_prompt_tokens, "Prompt tokens of the last step.");
    page.counter("latent_queue_seconds_total", stats.queue_time.as_secs_f64(), "Time that requests waited.");
    let first_token = stats.first_token_time.as_secs_f64();
    page.counter("latent_first_token_seconds_total", first_token, "Time to first tokens.");
    page.counter("latent_first_tokens_total", stats.first_tokens, "Requests with a first token.");
    page.counter("latent_token_gap_seconds_total", stats.gap_time.as_secs_f64(), "Time between tokens.");
    page.counter("latent_token_gaps_total", stats.gaps, "Gaps between tokens.");
    page.counter("latent_drafted_tokens_total", stats.drafts.drafted, "Tokens that were drafted.");
    page.counter("latent_accepted_drafts_total", stats.drafts.accepted, "Drafts that were accepted.");
}

fn cache(page: &mut Page, stats: &SchedulerStats) {
    let SchedulerStats { prefixes, disk, .. } = stats;
    let blocks = [("free", stats.blocks_free), ("cached", stats.blocks_cached), ("used", stats.blocks_used)];
    page.states(GAUGE, "latent_kv_blocks", "Blocks of the KV cache by what they hold.", blocks);
    page.gauge("latent_kv_block_tokens", stats.block_tokens, "Tokens of one block.");
    page.counter("latent_prefix_lookups_total", prefixes.lookups, "Prompts looked up in the prefix cache.");
    page.counter("latent_prefix_hits_total", prefixes.hits, "Prompts that began with something cached.");
    let saved = prefixes.tokens_saved;
    page.counter("latent_prefix_tokens_saved_total", saved, "Prompt tokens that did not have to run.");
    page.counter("latent_prefix_evicted_total", prefixes.evicted, "Cached blocks that were given up.");
    page.gauge("latent_disk_cache_bytes", disk.bytes, "Bytes of the prefix cache on disk.");
    page.counter("latent_disk_cache_blocks_read_total", disk.blocks_read, "Blocks read back from disk.");
    page.counter("latent_disk_cache_blocks_written_total", disk.blocks_written, "Blocks written to disk.");
    let damaged = "Files that were damaged or could not be written.";
    page.counter("latent_disk_cache_errors_total", disk.errors, damaged);
}
