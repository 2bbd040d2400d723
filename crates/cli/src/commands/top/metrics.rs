//! Parser of Prometheus' text format, restricted to the metrics that `top` shows.

use std::cmp::Ordering;
use std::collections::BTreeMap;

/// Maximum lines that are read.
const MAX_LINES: usize = 50_000;

/// Maximum models. Metrics of further models are ignored.
const MAX_MODELS: usize = 64;

/// Maximum metrics that are kept.
const MAX_FIGURES: usize = 4096;

/// Prefixes of the names that are read: Latent's and llama-server's.
const PREFIXES: [&str; 2] = ["latent_", "llamacpp:"];

/// Maximum bytes of a name or a label.
const MAX_NAME_BYTES: usize = 200;

/// Values by name and the labels `state` and `model`. Values that differ only in other labels are
/// added.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct ScrapedMetrics {
    figures: BTreeMap<(String, Labels), f64>,
    /// In the order of the page.
    models: Vec<String>,
}

/// The labels that the view uses; empty if absent.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Labels {
    state: String,
    model: String,
}

impl ScrapedMetrics {
    /// Reads a page; lines in another format are skipped.
    pub(super) fn parse(text: &str) -> ScrapedMetrics {
        let mut metrics = ScrapedMetrics::default();
        // The page comes from another program and may have any size.
        for line in text.lines().take(MAX_LINES) {
            let Some((name, labels, value)) = sample(line) else { continue };
            if !labels.model.is_empty() && !metrics.models.contains(&labels.model) {
                if metrics.models.len() == MAX_MODELS {
                    continue;
                }
                metrics.models.push(labels.model.clone());
            }
            let key = (name.to_owned(), labels);
            if metrics.figures.len() < MAX_FIGURES || metrics.figures.contains_key(&key) {
                *metrics.figures.entry(key).or_default() += value;
            }
        }
        metrics
    }

    pub(super) fn is_empty(&self) -> bool {
        self.figures.is_empty()
    }

    /// The models on the page.
    pub(super) fn models(&self) -> &[String] {
        &self.models
    }

    /// Of several models the one with the most running requests, else a loaded one.
    pub(super) fn busiest(&self) -> Option<&str> {
        let rank = |name: &&String| {
            let figure = |of| self.of_model(of, name).unwrap_or(0.0);
            // `rev` and `max_by`, which returns the last maximum, give the first of equal models.
            (figure("latent_requests_running"), figure("latent_model_loaded"))
        };
        let several = Some(self.models.as_slice()).filter(|models| models.len() > 1)?;
        let best =
            several.iter().rev().max_by(|a, b| rank(a).partial_cmp(&rank(b)).unwrap_or(Ordering::Equal))?;
        Some(best)
    }

    /// A metric, summed over all models.
    pub(super) fn get(&self, name: &str) -> Option<f64> {
        self.of(name, "")
    }

    /// A metric of one state, summed over all models.
    pub(super) fn of(&self, name: &str, state: &str) -> Option<f64> {
        self.each(name, state).reduce(|sum, value| sum + value)
    }

    /// The maximum of a metric over all models.
    pub(super) fn largest(&self, name: &str) -> Option<f64> {
        self.each(name, "").reduce(f64::max)
    }

    /// A metric of one model.
    pub(super) fn of_model(&self, name: &str, model: &str) -> Option<f64> {
        let labels = Labels { state: String::new(), model: model.to_owned() };
        self.figures.get(&(name.to_owned(), labels)).copied().filter(|value| value.is_finite())
    }

    fn each(&self, name: &str, state: &str) -> impl Iterator<Item = f64> {
        // Keys are ordered by name, state, model: all models of a state are one range of the map.
        let first = (name.to_owned(), Labels { state: state.to_owned(), model: String::new() });
        let of_it = self.figures.range(first.clone()..);
        let of_it =
            of_it.take_while(move |((name, labels), _)| *name == first.0 && labels.state == first.1.state);
        // The NaN of one model would make the sum over all models NaN.
        of_it.map(|(_, value)| *value).filter(|value| value.is_finite())
    }
}

/// Name, labels and value of a line.
fn sample(line: &str) -> Option<(&str, Labels, f64)> {
    let line = line.trim();
    if !PREFIXES.iter().any(|prefix| line.starts_with(prefix)) {
        return None;
    }
    let end = line.find(|c: char| !(c.is_ascii_alphanumeric() || matches!(c, '_' | ':')))?;
    let (name, rest) = line.split_at(end);
    let (labels, rest) = match rest.strip_prefix('{') {
        Some(labels) => labelled(labels)?,
        None => (Labels::default(), rest),
    };
    // A timestamp may follow the value.
    let value = rest.split_whitespace().next()?;
    let longest = name.len().max(labels.state.len()).max(labels.model.len());
    if longest > MAX_NAME_BYTES || !rest.starts_with([' ', '\t']) {
        return None;
    }
    Some((name, labels, value.parse().ok()?))
}

/// The labels, and what follows them.
fn labelled(text: &str) -> Option<(Labels, &str)> {
    let (mut labels, mut rest) = (Labels::default(), text.trim_start());
    while !rest.starts_with('}') {
        let (name, quoted) = rest.split_once('=')?;
        let mut chars = quoted.trim_start().strip_prefix('"')?.char_indices();
        let body = quoted.trim_start().get(1..)?;
        let mut value = String::new();
        let end = loop {
            match chars.next()? {
                (_, '\\') => match chars.next()?.1 {
                    // The format escapes `\\`, `\"` and `\n`.
                    'n' => value.push('\n'),
                    c => value.push(c),
                },
                (at, '"') => break at,
                (_, c) => value.push(c),
            }
        };
        match name.trim() {
            "state" => labels.state = value,
            "model" => labels.model = value,
            _ => {}
        }
        rest = body.get(end + 1..)?.trim_start();
        rest = rest.strip_prefix(',').unwrap_or(rest).trim_start();
    }
    Some((labels, &rest[1..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_are_found_by_name_and_state() {
        let page = "# HELP latent_kv_blocks x\n# TYPE latent_kv_blocks gauge\nlatent_kv_blocks{state=\"used\"} 12\n\
                    latent_kv_blocks{ a=\"x,}\\\"\\n\", state = \"free\" , } 3.5 1700000000\n\
                    latent_http_requests_total{path=\"/a\",status=\"200\"} 2\nlatent_http_requests_total{path=\"/b\"} 3\n\
                    llamacpp:requests_processing\t4\ngo_threads 7\n";
        let metrics = ScrapedMetrics::parse(page);
        assert_eq!(metrics.of("latent_kv_blocks", "used"), Some(12.0));
        assert_eq!(metrics.of("latent_kv_blocks", "free"), Some(3.5));
        assert_eq!(metrics.get("latent_http_requests_total"), Some(5.0));
        assert_eq!(metrics.get("llamacpp:requests_processing"), Some(4.0));
        assert_eq!((metrics.get("go_threads"), metrics.get("latent_kv_blocks")), (None, None));
    }

    #[test]
    fn metrics_of_models_are_summed_and_separable() {
        let page = "latent_steps_total{model=\"b\"} 3\nlatent_steps_total{model=\"a\"} 4\nlatent_steps 9\n\
                    latent_kv_blocks{model=\"b\",state=\"used\"} 1\nlatent_kv_blocks{model=\"b\",state=\"free\"} 8\n\
                    latent_kv_blocks{model=\"a\",state=\"used\"} 5\nlatent_steps_total{model=\"c\"} NaN\n";
        let metrics = ScrapedMetrics::parse(page);
        assert_eq!(metrics.models(), ["b", "a", "c"]);
        assert_eq!(
            (metrics.get("latent_steps_total"), metrics.largest("latent_steps_total")),
            (Some(7.0), Some(4.0))
        );
        assert_eq!(metrics.of("latent_kv_blocks", "used"), Some(6.0));
        assert_eq!(metrics.of_model("latent_steps_total", "b"), Some(3.0));
        assert_eq!(metrics.of_model("latent_steps_total", "c"), None);
        assert_eq!(metrics.busiest(), Some("b"));
        let loaded = "latent_model_loaded{model=\"c\"} 1\n";
        assert_eq!(ScrapedMetrics::parse(&format!("{page}{loaded}")).busiest(), Some("c"));
        let running = "latent_requests_running{model=\"a\"} 2\n";
        assert_eq!(ScrapedMetrics::parse(&format!("{page}{loaded}{running}")).busiest(), Some("a"));
        assert_eq!(ScrapedMetrics::parse("latent_steps_total{model=\"b\"} 3\n").busiest(), None);
        let many: String = (0..1000).map(|i| format!("latent_x{{model=\"{i}\"}} 1\n")).collect();
        assert_eq!(ScrapedMetrics::parse(&many).models().len(), MAX_MODELS);
    }

    #[test]
    fn hostile_pages_do_not_panic() {
        for line in [
            "latent_a",
            "latent_a{",
            "latent_a{x",
            "latent_a{x=",
            "latent_a{x=\"",
            "latent_a{x=\"\\",
            "latent_a{}",
            "latent_a{}1",
            "latent_a 1e",
            "latent_a{é=\"é",
            "latent_é 1",
            "latent_a{x=\"y\"",
            "latent_a{state=\"",
            "latent_a \u{1b}[2J",
            "{} 1",
        ] {
            assert_eq!(ScrapedMetrics::parse(line).get("latent_a"), None, "{line:?}");
        }
        for value in ["NaN", "+Inf", "-Inf", "1e999"] {
            assert_eq!(ScrapedMetrics::parse(&format!("latent_a {value}")).get("latent_a"), None, "{value}");
        }
        let many: String = (0..100_000).map(|i| format!("latent_{i} 1\n")).collect();
        assert_eq!(ScrapedMetrics::parse(&many).figures.len(), MAX_FIGURES);
        assert!(ScrapedMetrics::parse(&"latent_a{a=\"b\",".repeat(100_000)).is_empty());
    }
}
