//! Metrics in Prometheus' text format.

use crate::memory::RequestMemory;
use crate::models::{LoadCounts, ModelStatus, Models};
use latent_engine::scheduler::SchedulerStats;
use std::collections::{BTreeMap, HashMap};
use std::fmt::{Display, Write};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Counters of the HTTP server, and state for rates.
pub(crate) struct Metrics {
    started: Instant,
    connections: AtomicUsize,
    memory: Arc<RequestMemory>,
    /// Responses by route and status. Sorted, so that scrapes have a stable order.
    requests: Mutex<BTreeMap<(&'static str, u16), u64>>,
    /// The totals of each model at the last scrape.
    scraped: Mutex<HashMap<String, ScrapedTotals>>,
}

/// A number of tokens, and the time to process them.
#[derive(Clone, Copy, Default)]
struct TokenWork {
    tokens: u64,
    time: Duration,
}

impl TokenWork {
    /// Tokens per second since the last scrape, which is replaced.
    fn rate_since(self, last: &mut TokenWork) -> f64 {
        // Saturating: statistics of a model start again if it was removed from the list and added
        // anew.
        let tokens = self.tokens.saturating_sub(last.tokens);
        let seconds = self.time.saturating_sub(last.time).as_secs_f64();
        // Without new time the totals stay, so that these tokens count in the next rate.
        if seconds <= 0.0 {
            return 0.0;
        }
        *last = self;
        tokens as f64 / seconds
    }
}

/// The totals of a model at the last scrape.
#[derive(Clone, Copy, Default)]
struct ScrapedTotals {
    prompt: TokenWork,
    completion: TokenWork,
}

/// Tokens per second since the last scrape, as llama.cpp reports them.
#[derive(Clone, Copy, Default)]
struct ScrapeRates {
    prompt: f64,
    completion: f64,
}

impl Metrics {
    pub(crate) fn new(memory: Arc<RequestMemory>) -> Metrics {
        Metrics {
            started: Instant::now(),
            connections: AtomicUsize::new(0),
            memory,
            requests: Mutex::default(),
            scraped: Mutex::default(),
        }
    }

    /// Counts a connection until the guard is dropped.
    pub(crate) fn connection(&self) -> OpenConnection<'_> {
        self.connections.fetch_add(1, Ordering::Relaxed);
        OpenConnection(self)
    }

    /// Counts a response.
    pub(crate) fn count(&self, address: &'static str, status: u16) {
        let mut requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        *requests.entry((address, status)).or_default() += 1;
    }

    /// The response of `GET /metrics`.
    pub(crate) fn page(&self, models: &Models) -> String {
        let list = models.list();
        let several = !models.is_single();
        let figures = list.iter().map(|model| ModelMetrics::new(model, several, self.rates(model))).collect();
        let mut page = MetricsPage { text: String::with_capacity(8192 * list.len()), models: figures };
        llama(&mut page);
        scheduler(&mut page);
        cache(&mut page);
        loads(&mut page);
        self.server(&mut page, models);
        page.text
    }

    /// The token rates of a model since the last scrape.
    fn rates(&self, model: &ModelStatus) -> ScrapeRates {
        let stats = &model.stats;
        let mut scraped = self.scraped.lock().unwrap_or_else(PoisonError::into_inner);
        // By name, since the index of a model changes when its definition does.
        let last = scraped.entry(model.name.clone()).or_default();
        // Gaps, not tokens: the first token of an answer is computed in the prompt's time.
        let prompt = TokenWork { tokens: stats.tokens_in, time: stats.prompt_time };
        let completion = TokenWork { tokens: stats.gaps, time: stats.gap_time };
        ScrapeRates {
            prompt: prompt.rate_since(&mut last.prompt),
            completion: completion.rate_since(&mut last.completion),
        }
    }

    fn server(&self, page: &mut MetricsPage, models: &Models) {
        // Cloned, so that requests do not wait for the lock while the page is written.
        let requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let labelled = requests
            .into_iter()
            .map(|((address, status), count)| (format!("path=\"{address}\",status=\"{status}\""), count));
        page.family(COUNTER, "latent_http_requests_total", "Responses by address and status.", labelled);
        let one = |value: u64| std::iter::once((String::new(), value));
        let open = self.connections.load(Ordering::Relaxed) as u64;
        page.family(GAUGE, "latent_http_connections", "Connections that are open.", one(open));
        let help = "Bytes that requests hold, from the first byte of a body to the last byte of its answer.";
        page.family(GAUGE, "latent_http_body_bytes", help, one(self.memory.used() as u64));
        let ready = u64::from(models.health().is_ok());
        page.family(GAUGE, "latent_ready", "Whether requests are taken.", one(ready));
        let uptime = self.started.elapsed().as_secs();
        page.family(GAUGE, "latent_uptime_seconds", "Since the server started.", one(uptime));
    }
}

/// A guard that counts an open connection.
pub(crate) struct OpenConnection<'a>(&'a Metrics);

impl Drop for OpenConnection<'_> {
    fn drop(&mut self) {
        // Relaxed: only the metrics read it, and no other memory depends on its value.
        self.0.connections.fetch_sub(1, Ordering::Relaxed);
        self.0.memory.connection_closed();
    }
}

const COUNTER: &str = "counter";
const GAUGE: &str = "gauge";

/// The values of a model. Counters cover the time since the server started, whether or not the
/// model is loaded.
struct ModelMetrics {
    /// The label `model`, if the server has several.
    label: String,
    stats: SchedulerStats,
    rates: ScrapeRates,
    reloads: u64,
    loaded: bool,
    counts: LoadCounts,
}

impl ModelMetrics {
    fn new(model: &ModelStatus, several: bool, rates: ScrapeRates) -> ModelMetrics {
        // The escapes of label values in the text format.
        let name = model.name.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
        ModelMetrics {
            // Without the label, the series of a single model match dashboards of llama.cpp.
            label: if several { format!("model=\"{name}\"") } else { String::new() },
            stats: model.stats,
            rates,
            reloads: model.reloads,
            loaded: model.served.is_some(),
            counts: model.counts,
        }
    }
}

/// The text that is being written.
struct MetricsPage {
    text: String,
    models: Vec<ModelMetrics>,
}

impl MetricsPage {
    /// A metric with one value per set of labels.
    fn family(
        &mut self,
        kind: &str,
        name: &str,
        help: &str,
        values: impl Iterator<Item = (String, impl Display)>,
    ) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}");
        for (labels, value) in values {
            let _ = if labels.is_empty() {
                writeln!(self.text, "{name} {value}")
            } else {
                writeln!(self.text, "{name}{{{labels}}} {value}")
            };
        }
    }

    /// A metric with one value per model.
    fn models<T: Display>(&mut self, kind: &str, name: &str, help: &str, value: impl Fn(&ModelMetrics) -> T) {
        // All models in one family: the text format requires the lines of a metric to be one group.
        let values: Vec<(String, T)> =
            self.models.iter().map(|model| (model.label.clone(), value(model))).collect();
        self.family(kind, name, help, values.into_iter());
    }

    /// A metric with one value per model and state.
    fn states<const N: usize, T: Display>(
        &mut self,
        kind: &str,
        name: &str,
        help: &str,
        values: impl Fn(&SchedulerStats) -> [(&'static str, T); N],
    ) {
        let mut all = Vec::new();
        for model in &self.models {
            let before = if model.label.is_empty() { String::new() } else { format!("{},", model.label) };
            all.extend(
                values(&model.stats)
                    .into_iter()
                    .map(|(state, value)| (format!("{before}state=\"{state}\""), value)),
            );
        }
        self.family(kind, name, help, all.into_iter());
    }

    fn counter<T: Display>(&mut self, name: &str, help: &str, value: impl Fn(&ModelMetrics) -> T) {
        self.models(COUNTER, name, help, value);
    }

    fn gauge<T: Display>(&mut self, name: &str, help: &str, value: impl Fn(&ModelMetrics) -> T) {
        self.models(GAUGE, name, help, value);
    }
}

/// Metrics under llama.cpp's names, for existing dashboards.
fn llama(page: &mut MetricsPage) {
    page.counter("llamacpp:prompt_tokens_total", "Prompt tokens that ran.", |model| model.stats.tokens_in);
    page.counter("llamacpp:prompt_tokens_cached_total", "Prompt tokens that were cached.", |model| {
        model.stats.prefixes.tokens_saved
    });
    page.counter("llamacpp:prompt_seconds_total", "Time that prompts took.", |model| {
        model.stats.prompt_time.as_secs_f64()
    });
    page.counter("llamacpp:tokens_predicted_total", "Tokens that were generated.", |model| {
        model.stats.tokens_out
    });
    let help = "Time that generated tokens took, without the first of each answer, which its prompt makes.";
    page.counter("llamacpp:tokens_predicted_seconds_total", help, |model| model.stats.gap_time.as_secs_f64());
    page.counter("llamacpp:n_decode_total", "Steps of the engine.", |model| model.stats.steps);
    page.counter("llamacpp:n_tokens_max", "Tokens of the longest request, its answer included.", |model| {
        model.stats.longest
    });
    let help = "Steps that verified drafts.";
    page.counter("llamacpp:spec_decode_num_drafts_total", help, |model| model.stats.drafts.steps);
    let help = "Tokens of drafts that were verified.";
    page.counter("llamacpp:spec_decode_num_draft_tokens_total", help, |model| model.stats.drafts.drafted);
    let help = "Drafted tokens that were accepted.";
    page.counter("llamacpp:spec_decode_num_accepted_tokens_total", help, |model| model.stats.drafts.accepted);
    page.gauge(
        "llamacpp:prompt_tokens_seconds",
        "Prompt tokens per second since the last scrape.",
        |model| model.rates.prompt,
    );
    let help = "Generated tokens per second of a request since the last scrape.";
    page.gauge("llamacpp:predicted_tokens_seconds", help, |model| model.rates.completion);
    page.gauge("llamacpp:requests_processing", "Requests that run.", |model| model.stats.running);
    page.gauge("llamacpp:requests_deferred", "Requests that wait.", |model| model.stats.waiting);
    // llama.cpp's slots are decoding requests here: one gap per decoded token and request.
    let busy = |model: &ModelMetrics| match model.stats.steps {
        0 => 0.0,
        steps => model.stats.gaps as f64 / steps as f64,
    };
    page.gauge("llamacpp:n_busy_slots_per_decode", "Decoding requests per step, on average.", busy);
}

fn scheduler(page: &mut MetricsPage) {
    page.gauge("latent_requests_running", "Requests that run.", |model| model.stats.running);
    page.gauge("latent_requests_in_prompt", "Requests whose prompt is not finished.", |model| {
        model.stats.in_prompt
    });
    page.gauge("latent_requests_waiting", "Requests that wait.", |model| model.stats.waiting);
    page.gauge("latent_waiting_tokens", "Prompt tokens that wait.", |model| model.stats.waiting_tokens);
    let jobs = |stats: &SchedulerStats| {
        [
            ("submitted", stats.submitted),
            ("refused", stats.refused),
            ("finished", stats.finished),
            ("cancelled", stats.cancelled),
            ("failed", stats.failed),
        ]
    };
    page.states(COUNTER, "latent_jobs_total", "Answers by outcome.", jobs);
    page.counter("latent_prompt_tokens_total", "Prompt tokens that ran.", |model| model.stats.tokens_in);
    page.counter("latent_generated_tokens_total", "Tokens that were generated.", |model| {
        model.stats.tokens_out
    });
    page.counter("latent_preemptions_total", "Requests that were preempted to free blocks.", |model| {
        model.stats.preemptions
    });
    page.counter("latent_steps_total", "Steps of the engine.", |model| model.stats.steps);
    page.counter("latent_step_seconds_total", "Time that steps took.", |model| {
        model.stats.step_time.as_secs_f64()
    });
    page.gauge("latent_last_step_seconds", "Time of the last step.", |model| {
        model.stats.last_step_time.as_secs_f64()
    });
    page.gauge("latent_batch_decoding", "Sequences that decoded in the last step.", |model| {
        model.stats.last_decoding
    });
    page.gauge("latent_batch_prompt_tokens", "Prompt tokens of the last step.", |model| {
        model.stats.last_prompt_tokens
    });
    page.counter("latent_queue_seconds_total", "Time that requests waited.", |model| {
        model.stats.queue_time.as_secs_f64()
    });
    page.counter("latent_first_token_seconds_total", "Time to first tokens.", |model| {
        model.stats.first_token_time.as_secs_f64()
    });
    page.counter("latent_first_tokens_total", "Requests with a first token.", |model| {
        model.stats.first_tokens
    });
    page.counter("latent_token_gap_seconds_total", "Time between tokens.", |model| {
        model.stats.gap_time.as_secs_f64()
    });
    page.counter("latent_token_gaps_total", "Gaps between tokens.", |model| model.stats.gaps);
    page.counter("latent_drafted_tokens_total", "Tokens that were drafted.", |model| {
        model.stats.drafts.drafted
    });
    page.counter("latent_accepted_drafts_total", "Drafts that were accepted.", |model| {
        model.stats.drafts.accepted
    });
}

fn cache(page: &mut MetricsPage) {
    let blocks = |stats: &SchedulerStats| {
        [("free", stats.blocks_free), ("cached", stats.blocks_cached), ("used", stats.blocks_used)]
    };
    page.states(GAUGE, "latent_kv_blocks", "Blocks of the KV cache by what they hold.", blocks);
    page.gauge("latent_kv_block_tokens", "Tokens of one block.", |model| model.stats.block_tokens);
    let slots = "Slots of recurrent state: of running requests and of snapshots.";
    page.gauge("latent_states_used", slots, |model| model.stats.states - model.stats.states_free);
    page.gauge("latent_states", "Slots of recurrent state that fit.", |model| model.stats.states);
    page.gauge("latent_state_bytes", "Bytes of a slot of recurrent state.", |model| model.stats.state_bytes);
    page.counter("latent_prefix_lookups_total", "Prompts looked up in the prefix cache.", |model| {
        model.stats.prefixes.lookups
    });
    page.counter("latent_prefix_hits_total", "Prompts with a cached prefix.", |model| {
        model.stats.prefixes.hits
    });
    page.counter(
        "latent_prefix_tokens_saved_total",
        "Prompt tokens that were reused from the cache.",
        |model| model.stats.prefixes.tokens_saved,
    );
    page.counter("latent_prefix_evicted_total", "Cached blocks that were evicted.", |model| {
        model.stats.prefixes.evicted
    });
    page.gauge("latent_disk_cache_bytes", "Bytes of the prefix cache on disk.", |model| {
        model.stats.disk.bytes
    });
    page.counter("latent_disk_cache_blocks_read_total", "Blocks read back from disk.", |model| {
        model.stats.disk.blocks_read
    });
    page.counter("latent_disk_cache_blocks_written_total", "Blocks written to disk.", |model| {
        model.stats.disk.blocks_written
    });
    let damaged = "Files that were damaged or could not be written.";
    page.counter("latent_disk_cache_errors_total", damaged, |model| model.stats.disk.errors);
}

/// Loads and unloads of models.
fn loads(page: &mut MetricsPage) {
    page.gauge("latent_model_loaded", "Whether the model is loaded.", |model| u8::from(model.loaded));
    page.counter("latent_model_loads_total", "How often the model was loaded.", |model| model.counts.loads);
    let time = |model: &ModelMetrics| model.counts.load_time.as_secs_f64();
    page.counter("latent_model_load_seconds_total", "Time that loading took.", time);
    let failures = |model: &ModelMetrics| model.counts.failures;
    page.counter("latent_model_load_failures_total", "How often it could not be loaded.", failures);
    page.counter("latent_model_unloads_total", "How often it was unloaded.", |model| model.counts.unloads);
    let reloads = "Failures after which the model was reloaded.";
    page.counter("latent_reloads_total", reloads, |model| model.reloads);
}
