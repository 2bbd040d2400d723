//! Stop strings: found across tokens, and never shown.

/// Watches a stream of text for stop strings. What may be the beginning of one is held back until it is certain.
pub struct StopStrings {
    stops: Vec<String>,
    held: String,
    found: bool,
}

impl StopStrings {
    /// A watcher; empty strings are ignored.
    pub fn new(stops: &[String]) -> StopStrings {
        let stops = stops.iter().filter(|stop| !stop.is_empty()).cloned().collect();
        StopStrings { stops, held: String::new(), found: false }
    }

    /// Takes text; returns what may be shown. Once a stop string was found nothing more comes.
    pub fn push(&mut self, text: &str) -> String {
        if self.found {
            return String::new();
        }
        self.held.push_str(text);
        // the match that is complete first, so that the answer does not depend on how the text was cut into pieces
        let matches = self.stops.iter().filter_map(|stop| Some((self.held.find(stop.as_str())?, stop.len())));
        let first = matches.min_by_key(|(at, length)| (at + length, *at));
        if let Some((at, _)) = first {
            self.found = true;
            self.held.truncate(at);
            return std::mem::take(&mut self.held);
        }
        let keep = self.stops.iter().map(|stop| overlap(&self.held, stop)).max().unwrap_or(0);
        let rest = self.held.split_off(self.held.len() - keep);
        std::mem::replace(&mut self.held, rest)
    }

    /// Whether a stop string was found.
    pub fn found(&self) -> bool {
        self.found
    }

    /// What was held back, at the end of the stream.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}

/// Bytes at the end of `text` that are a beginning of `stop`.
fn overlap(text: &str, stop: &str) -> usize {
    let longest = text.len().min(stop.len() - 1);
    (1..=longest).rev().find(|n| stop.is_char_boundary(*n) && text.ends_with(&stop[..*n])).unwrap_or(0)
}
