//! Stop strings: found across tokens, and never shown.

/// Watches a stream of text for stop strings. What may be the beginning of one is held back until it is certain.
///
/// Each byte is compared once or twice with each stop string, however long that is (Knuth, Morris and Pratt 1977).
pub struct StopStrings {
    stops: Vec<StopPattern>,
    held: String,
    /// Bytes of `held` that were shown already; they go when they are half of it, so that each byte is moved once or twice.
    shown: usize,
    found: bool,
}

/// A stop string, and how much of it the text ends in.
struct StopPattern {
    text: Box<[u8]>,
    /// For each number of matched bytes, how many are still matched if the next byte is another one: the longest shorter beginning of the
    /// string that these bytes end in.
    shorter: Box<[usize]>,
    matched: usize,
}

impl StopStrings {
    /// A watcher; empty strings are ignored.
    pub fn new(stops: &[String]) -> StopStrings {
        let stops = stops.iter().filter(|stop| !stop.is_empty()).map(|stop| StopPattern::new(stop)).collect();
        StopStrings { stops, held: String::new(), shown: 0, found: false }
    }

    /// Takes text; returns what may be shown. Once a stop string was found nothing more comes.
    pub fn push(&mut self, text: &str) -> String {
        if self.found {
            return String::new();
        }
        let before = self.held.len();
        self.held.push_str(text);
        for (at, byte) in text.bytes().enumerate() {
            let end = before + at + 1;
            // the match that is complete first, so that the answer does not depend on how the text was cut into pieces
            let whole =
                self.stops.iter_mut().filter_map(|stop| stop.advance(byte).then_some(stop.text.len()));
            if let Some(longest) = whole.max() {
                self.found = true;
                self.held.truncate(end - longest);
                return self.finish();
            }
        }
        let keep = self.stops.iter().map(|stop| stop.matched).max().unwrap_or(0);
        let certain = self.held.len() - keep;
        let text = self.held[self.shown..certain].to_owned();
        self.shown = certain;
        if self.shown > self.held.len() / 2 {
            self.held.drain(..std::mem::take(&mut self.shown));
        }
        text
    }

    /// Whether a stop string was found.
    pub fn found(&self) -> bool {
        self.found
    }

    /// What was held back, at the end of the stream.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held).split_off(std::mem::take(&mut self.shown))
    }
}

impl StopPattern {
    fn new(text: &str) -> StopPattern {
        let text = text.as_bytes();
        let mut shorter = vec![0; text.len()].into_boxed_slice();
        let mut matched = 0;
        for at in 1..text.len() {
            shorter[at] = matched;
            while matched > 0 && text[at] != text[matched] {
                matched = shorter[matched];
            }
            matched += usize::from(text[at] == text[matched]);
        }
        StopPattern { text: text.into(), shorter, matched: 0 }
    }

    /// Takes the next byte of the text; whether the string is complete with it.
    fn advance(&mut self, byte: u8) -> bool {
        while self.matched > 0 && self.text[self.matched] != byte {
            self.matched = self.shorter[self.matched];
        }
        self.matched += usize::from(self.text[self.matched] == byte);
        self.matched == self.text.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The same by its definition, at the cost of comparing every beginning of every string with every end of the text.
    fn by_definition(stops: &[String], text: &str) -> (String, bool) {
        let matches = stops.iter().filter_map(|stop| Some((text.find(stop.as_str())?, stop.len())));
        match matches.min_by_key(|(at, len)| (at + len, *at)) {
            Some((at, _)) => (text[..at].to_owned(), true),
            None => (text.to_owned(), false),
        }
    }

    fn watched(stops: &[String], text: &str, piece: usize) -> (String, bool) {
        let mut watcher = StopStrings::new(stops);
        let mut shown = String::new();
        let chars: Vec<char> = text.chars().collect();
        for piece in chars.chunks(piece) {
            shown.push_str(&watcher.push(&piece.iter().collect::<String>()));
            assert!(text.starts_with(&shown), "{shown:?} of {text:?}");
        }
        shown.push_str(&watcher.finish());
        (shown, watcher.found())
    }

    /// All texts of seven letters out of three, with every pair of a few stop strings that overlap themselves and each other.
    #[test]
    fn what_is_shown_is_what_the_definition_says() {
        let strings = ["a", "aa", "aba", "abab", "aaé", "éa", "baab"].map(str::to_owned);
        let letters = ["a", "b", "é"];
        for number in 0..3usize.pow(7) {
            let text: String = (0..7).map(|place| letters[number / 3usize.pow(place) % 3]).collect();
            for (i, first) in strings.iter().enumerate() {
                for second in &strings[i..] {
                    let stops = [first.clone(), second.clone()];
                    for piece in [1, 3] {
                        assert_eq!(
                            watched(&stops, &text, piece),
                            by_definition(&stops, &text),
                            "{stops:?} {text:?}"
                        );
                    }
                }
            }
        }
    }

    /// A stop string of a megabyte that the text almost matches: comparing all its beginnings at each token took the square of that.
    #[test]
    fn a_long_stop_string_costs_no_more_than_its_length() {
        let stops = ["a".repeat(1 << 20) + "b"];
        let mut watcher = StopStrings::new(&stops);
        let shown: usize = (0..1 << 18).map(|_| watcher.push("aaaaaaaa").len()).sum();
        assert_eq!((shown, watcher.found()), ((1 << 21) - (1 << 20), false));
        assert_eq!(watcher.push("b"), "");
        assert!(watcher.found());
    }
}
