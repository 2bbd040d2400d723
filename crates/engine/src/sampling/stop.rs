//! Stop strings. They are found across tokens, and removed from the text.

/// Searches a stream of text for stop strings. Text that may be the beginning of one is held back.
///
/// Each byte takes amortized constant time per stop string, regardless of its length (Knuth, Morris
/// and Pratt 1977).
pub struct StopStrings {
    stops: Vec<StopPattern>,
    held: String,
    /// Number of bytes of `held` that were returned already. They are removed when they are more
    /// than half of it, so that each byte is moved at most twice.
    shown: usize,
    found: bool,
}

/// A stop string, and how many of its bytes the end of the text matches.
struct StopPattern {
    text: Box<[u8]>,
    /// The failure function: for each number of matched bytes, how many are still matched if the
    /// next byte differs. This is the longest proper prefix of the string that is a suffix of the
    /// matched bytes.
    shorter: Box<[usize]>,
    matched: usize,
}

impl StopStrings {
    /// A search for some strings. Empty strings are ignored.
    pub fn new(stops: &[String]) -> StopStrings {
        let stops = stops.iter().filter(|stop| !stop.is_empty()).map(|stop| StopPattern::new(stop)).collect();
        StopStrings { stops, held: String::new(), shown: 0, found: false }
    }

    /// Appends text. Returns the text that cannot be part of a stop string. After a stop string was
    /// found, all further text is dropped.
    pub fn push(&mut self, text: &str) -> String {
        if self.found {
            return String::new();
        }
        let before = self.held.len();
        self.held.push_str(text);
        for (at, byte) in text.bytes().enumerate() {
            let end = before + at + 1;
            // The match that ends first wins, and of those that end here the longest. The answer
            // thus does not depend on how the text is divided into tokens.
            let whole =
                self.stops.iter_mut().filter_map(|stop| stop.advance(byte).then_some(stop.text.len()));
            if let Some(longest) = whole.max() {
                self.found = true;
                self.held.truncate(end - longest);
                return self.finish();
            }
        }
        // A match starts with the first byte of a stop string, which begins a character. The text
        // is therefore cut at the start of a character, and slicing cannot panic.
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

    /// The text that was held back, at the end of the stream.
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
            // Invariant: the first `matched` bytes are the longest proper prefix that is also a
            // suffix of the first `at` bytes.
            shorter[at] = matched;
            while matched > 0 && text[at] != text[matched] {
                matched = shorter[matched];
            }
            matched += usize::from(text[at] == text[matched]);
        }
        StopPattern { text: text.into(), shorter, matched: 0 }
    }

    /// Processes the next byte of the text. Returns whether the string is complete with it.
    fn advance(&mut self, byte: u8) -> bool {
        // `matched` is less than the length here: the search ends at the first complete match.
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

    /// The expected result, by the definition.
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

    /// All texts of seven letters out of three, with all pairs of a few stop strings that overlap
    /// themselves and each other.
    #[test]
    fn stop_strings_match_their_definition() {
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

    /// A stop string of a megabyte that the text almost matches. Comparing all its prefixes at each
    /// token took quadratic time.
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
