//! Regular expressions that split texts into words.
//!
//! Published patterns have one look-ahead: they end in `|\s+(?!\S)|\s+`, which leaves the last of
//! several spaces to the following word. Automata do not support look-ahead, and backtracking would
//! keep a state for each space. So this ending is matched as `\s+` and shortened afterwards. An
//! automaton then runs the whole pattern in linear time and constant memory. Other patterns with
//! look-around or possessive repetition run by backtracking with a limit on the steps.

use crate::error::TextError;
use regex_automata::{Input, meta, nfa::thompson::WhichCaptures, util::syntax};
use std::ops::Range;

/// Maximum bytes of a compiled pattern.
const SIZE_LIMIT: usize = 10 << 20;

/// Maximum bytes of a pattern's source; the longest published one has 4000.
pub(super) const MAX_SOURCE: usize = 1 << 16;

/// Maximum backtracking steps per search.
const MAX_STEPS: usize = 1_000_000;

/// The ending that is matched without look-ahead.
const TAIL: &str = r"|\s+(?!\S)|\s+";

/// Possessive parts of Ling's pattern, and equivalent parts without possessive repetition.
// They are equivalent because giving back a character never helps: the part that follows cannot
// match it, or can also match nothing.
const POSSESSIVE: [(&str, &str); 2] = [
    (r"[^\r\n\p{L}\p{N}]?+\p{L}+", r"[^\r\n\p{L}\p{N}]?\p{L}+"),
    (r"[^\s\p{L}\p{N}]++[\r\n]*|", r"[^\s\p{L}\p{N}]+[\r\n]*|"),
];

/// A compiled pattern.
pub(super) struct SplitPattern(PatternEngine);

enum PatternEngine {
    /// An automaton. With `tail`, its second pattern is [`TAIL`] without the look-ahead.
    Automaton {
        regex: Box<meta::Regex>,
        tail: bool,
    },
    Backtracking(Box<fancy_regex::Regex>),
}

impl SplitPattern {
    /// Compiles a pattern.
    pub(super) fn new(source: &str) -> Result<SplitPattern, String> {
        if source.len() > MAX_SOURCE {
            return Err(format!("it has {} bytes; the limit is {MAX_SOURCE}", source.len()));
        }
        let plain = POSSESSIVE.iter().fold(source.to_owned(), |source, (from, to)| source.replace(from, to));
        let automaton = |patterns: &[&str], tail| {
            // Only the range of the whole match is used.
            let captures = WhichCaptures::Implicit;
            let config = meta::Config::new().nfa_size_limit(Some(SIZE_LIMIT)).which_captures(captures);
            let regex = meta::Builder::new().configure(config).build_many(patterns).map_err(|e| {
                match e.size_limit() {
                    Some(_) => format!("compiled, it takes more than the limit of {SIZE_LIMIT} bytes"),
                    None => e.to_string(),
                }
            })?;
            Ok(SplitPattern(PatternEngine::Automaton { regex: Box::new(regex), tail }))
        };
        match plain.strip_suffix(TAIL) {
            Some(head) if dialect(head) == PatternDialect::Plain => return automaton(&[head, r"\s+"], true),
            _ if dialect(&plain) != PatternDialect::Backtracking => return automaton(&[&plain], false),
            _ => {}
        }
        let mut builder = fancy_regex::RegexBuilder::new(source);
        builder.backtrack_limit(MAX_STEPS).delegate_size_limit(SIZE_LIMIT);
        let regex = builder.build().map_err(|e| e.to_string())?;
        Ok(SplitPattern(PatternEngine::Backtracking(Box::new(regex))))
    }

    /// The next match in `text` at or after the byte `at`.
    fn find(&self, text: &str, at: usize) -> Result<Option<Range<usize>>, TextError> {
        match &self.0 {
            PatternEngine::Automaton { regex, tail } => {
                let Some(found) = regex.find(Input::new(text).range(at..)) else { return Ok(None) };
                let mut range = found.range();
                // `\s+(?!\S)` backs off by one character if a non-space follows the run. A single
                // space has nothing to back off to, and `\s+` matches it.
                if *tail && found.pattern().as_usize() == 1 && range.end < text.len() {
                    let last = text[range.clone()].char_indices().next_back().map_or(0, |(at, _)| at);
                    if last > 0 {
                        range.end = range.start + last;
                    }
                }
                Ok(Some(range))
            }
            PatternEngine::Backtracking(regex) => match regex.find_from_pos(text, at) {
                Ok(found) => Ok(found.map(|found| found.range())),
                Err(error) => Err(TextError::Encode(format!(
                    "a pattern of the tokenizer failed at byte {at} of a piece of {} bytes: {error}",
                    text.len()
                ))),
            },
        }
    }

    /// Passes byte ranges that cover the text to `each`: matches, and the text between them, with
    /// whether the range is a match. Matches may be empty.
    pub(super) fn cover(
        &self,
        text: &str,
        each: &mut dyn FnMut(Range<usize>, bool) -> Result<(), TextError>,
    ) -> Result<(), TextError> {
        let mut done = 0;
        let mut at = 0;
        let mut last_end = None;
        while at <= text.len() {
            let Some(found) = self.find(text, at)? else { break };
            at = found.end;
            if found.is_empty() {
                // Without a step forward the search would find the empty match again. An empty
                // match directly after another match does not count, as in the regex crate.
                at += text[at..].chars().next().map_or(1, char::len_utf8);
                if last_end == Some(found.end) {
                    continue;
                }
            }
            last_end = Some(found.end);
            if done < found.start {
                each(done..found.start, false)?;
            }
            done = found.end;
            each(found, true)?;
        }
        if done < text.len() { each(done..text.len(), false) } else { Ok(()) }
    }
}

/// Length of the shortest match, for patterns without backtracking.
pub(super) fn shortest_match(source: &str) -> Option<usize> {
    if source.len() > MAX_SOURCE || dialect(source) == PatternDialect::Backtracking {
        return None;
    }
    syntax::parse(source).ok()?.properties().minimum_len()
}

/// The engine that a pattern needs.
#[derive(PartialEq, Eq, Debug)]
enum PatternDialect {
    /// An automaton; flags apply to groups only.
    Plain,
    /// An automaton, with flags for the rest of the pattern.
    Flagged,
    /// Backtracking: look-around, possessive repetition and the like.
    Backtracking,
}

/// Scans a pattern far enough to recognize repetitions.
fn dialect(source: &str) -> PatternDialect {
    let mut dialect = PatternDialect::Plain;
    let mut chars = source.chars().peekable();
    let mut class_depth = 0usize;
    // Whether the last item was a repetition. A plus after it makes it possessive.
    let mut repeated = false;
    while let Some(c) = chars.next() {
        let mut repeats = false;
        match c {
            '\\' => match chars.next() {
                Some('p' | 'P' | 'x' | 'u' | 'U') if chars.peek() == Some(&'{') => {
                    for c in chars.by_ref() {
                        if c == '}' {
                            break;
                        }
                    }
                }
                // Back-references, and assertions and classes that regex-automata does not support.
                Some('0'..='9' | 'k' | 'g' | 'G' | 'K' | 'Z' | 'h' | 'H' | 'e' | 'R' | 'X' | 'O' | 'N') => {
                    return PatternDialect::Backtracking;
                }
                _ => {}
            },
            '[' => {
                class_depth += 1;
                if chars.peek() == Some(&'^') {
                    chars.next();
                }
                // A bracket at the beginning of a class is a literal.
                if chars.peek() == Some(&']') {
                    chars.next();
                }
            }
            ']' if class_depth > 0 => class_depth -= 1,
            _ if class_depth > 0 => {}
            '(' if chars.peek() == Some(&'?') => {
                chars.next();
                match group(&mut chars) {
                    PatternDialect::Plain => {}
                    PatternDialect::Flagged => dialect = PatternDialect::Flagged,
                    PatternDialect::Backtracking => return PatternDialect::Backtracking,
                }
            }
            '+' if repeated => return PatternDialect::Backtracking,
            // A question mark after a repetition makes it lazy.
            '?' if repeated => {}
            '*' | '+' | '?' => repeats = true,
            '{' => {
                for c in chars.by_ref() {
                    if c == '}' {
                        break;
                    }
                }
                repeats = true;
            }
            _ => {}
        }
        repeated = repeats;
    }
    dialect
}

/// The engine that a group needs, from the characters after its `(?`.
fn group(chars: &mut std::iter::Peekable<std::str::Chars<'_>>) -> PatternDialect {
    match chars.next() {
        Some(':') => PatternDialect::Plain,
        Some('P' | '<') if matches!(chars.peek(), Some('<' | 'a'..='z' | 'A'..='Z' | '_')) => {
            PatternDialect::Plain
        }
        Some(mut flag) => loop {
            match flag {
                'i' | 'm' | 's' | 'R' | 'U' | 'u' | 'x' | '-' => {}
                // Flags for this group only.
                ':' => return PatternDialect::Plain,
                ')' => return PatternDialect::Flagged,
                _ => return PatternDialect::Backtracking,
            }
            match chars.next() {
                Some(next) => flag = next,
                None => return PatternDialect::Backtracking,
            }
        },
        None => PatternDialect::Backtracking,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cuts<'a>(pattern: &SplitPattern, text: &'a str) -> Vec<(&'a str, bool)> {
        let mut cuts = Vec::new();
        let each = &mut |range: Range<usize>, matched| {
            cuts.push((&text[range], matched));
            Ok(())
        };
        pattern.cover(text, each).unwrap();
        cuts
    }

    #[test]
    fn dialects_are_recognized() {
        for (source, expected) in [
            (r"\p{N}{1,3}|[^\r\n\p{L}]?\p{L}+| ?[^\s\p{L}]+[\r\n]*|a+?b*?", PatternDialect::Plain),
            (r"[+*?+++(?!)]+", PatternDialect::Plain),
            (r"[]+]+|[^]+]+|[[:alpha:]+&&[^b]]+", PatternDialect::Plain),
            (r"(?i:'s|'t)|\++|\x{41}+", PatternDialect::Plain),
            (r"(?i)'s", PatternDialect::Flagged),
            (r"a++", PatternDialect::Backtracking),
            (r"a?+b", PatternDialect::Backtracking),
            (r"\p{L}{1,3}+", PatternDialect::Backtracking),
            (r"\s+(?!\S)", PatternDialect::Backtracking),
            (r"(?<=a)b", PatternDialect::Backtracking),
            (r"(?>a)b", PatternDialect::Backtracking),
            (r"(a)\1", PatternDialect::Backtracking),
        ] {
            assert_eq!(dialect(source), expected, "{source}");
        }
    }

    /// Automata and backtracking split alike by the patterns of all pre-tokenizers.
    #[test]
    fn the_ending_is_matched_as_by_backtracking() {
        let texts = [
            "a  b   c\u{a0} \u{3000}d ",
            "   ",
            " \n \n\n x \r\n\t y",
            "x\u{2003}\u{2003}y\u{85}z \u{2028} w",
            "",
            "  é  12345  !!  \n",
            "don't  we'LL ...\n\n!?x -y (z) 日本 👩‍👩‍👧 e\u{301}",
        ];
        let ling = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+";
        for source in super::super::pre::patterns().filter(|source| source.ends_with(TAIL)).chain([ling]) {
            let fast = SplitPattern::new(source).unwrap();
            assert!(matches!(fast.0, PatternEngine::Automaton { tail: true, .. }), "{source}");
            let slow =
                SplitPattern(PatternEngine::Backtracking(Box::new(fancy_regex::Regex::new(source).unwrap())));
            for text in texts {
                assert_eq!(cuts(&fast, text), cuts(&slow, text), "{source} {text:?}");
            }
        }
    }

    #[test]
    fn empty_matches_end() {
        let pattern = SplitPattern::new("a*").unwrap();
        assert_eq!(
            cuts(&pattern, "éaab"),
            [("", true), ("é", false), ("aa", true), ("b", false), ("", true)]
        );
    }

    #[test]
    fn too_much_is_an_error() {
        assert!(SplitPattern::new(&"a".repeat(MAX_SOURCE + 1)).is_err());
        assert!(SplitPattern::new("(((((a{100}){100}){100}){100}){100})").is_err());
        assert!(SplitPattern::new(&"(".repeat(60_000)).is_err());
        assert!(SplitPattern::new(&format!("{}a{}", "(?:".repeat(8_000), ")".repeat(8_000))).is_err());
        assert!(SplitPattern::new(&format!("(?=a){}a{}", "(?:".repeat(8_000), ")".repeat(8_000))).is_err());
        let catastrophic = SplitPattern::new(r"(?:(?=a)a+)+b").unwrap();
        let mut nothing = |_, _| Ok(());
        assert!(catastrophic.cover(&"a".repeat(64), &mut nothing).is_err());
        assert_eq!(shortest_match("ab|c+"), Some(1));
        assert_eq!(shortest_match("a*"), Some(0));
    }
}
