//! SentencePiece's byte-pair encoding as GGUF files store it: pieces with scores. The pair whose
//! result has the best score is merged first. Text without a piece becomes byte tokens.
//!
//! A text is first split wherever no piece contains the two adjacent characters. No merge can cross
//! such a border, and the resulting words are short.

use crate::error::TextError;
use foldhash::fast::RandomState;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashSet};

pub(super) struct Spm {
    scores: Vec<f32>,
    bytes: [Option<u32>; 256],
    unknown: Option<u32>,
    // With a fast hash, because it is looked up for every character of a text.
    /// Pairs of adjacent characters in any piece.
    neighbours: HashSet<(char, char), RandomState>,
}

/// The character that vocabularies contain instead of a space.
pub(super) const SPACE: char = '\u{2581}';

/// Replaces [`SPACE`] by spaces.
pub(super) fn spaces(text: &str) -> String {
    text.replace(SPACE, " ")
}

/// A symbol of a word, in a doubly linked list: a range of the word's bytes.
#[derive(Clone, Copy)]
struct SpmSymbol {
    start: u32,
    /// [`NONE`] after the symbol was merged into its left neighbor.
    end: u32,
    previous: u32,
    next: u32,
}

const NONE: u32 = u32::MAX;

/// Pairs to merge: the best score first, of equal scores the leftmost.
type PairQueue = BinaryHeap<Reverse<u64>>;

/// Finds the id of a piece.
type PieceLookup<'a> = dyn Fn(&str) -> Option<u32> + 'a;

/// Receives the tokens.
type TokenSink<'a> = dyn FnMut(u32) -> Result<(), TextError> + 'a;

impl Spm {
    /// A model. `texts` are the texts of all tokens that merges can produce.
    pub(super) fn new<'a>(
        scores: Vec<f32>,
        bytes: [Option<u32>; 256],
        unknown: Option<u32>,
        texts: impl Iterator<Item = &'a str>,
    ) -> Spm {
        let neighbours = texts.flat_map(|text| text.chars().zip(text.chars().skip(1))).collect();
        Spm { scores, bytes, unknown, neighbours }
    }

    /// Whether every byte has a token, so that no text is lost.
    pub(super) fn keeps_text(&self) -> bool {
        self.bytes.iter().all(Option::is_some)
    }

    /// Passes the ids of a text to `push`.
    ///
    /// # Errors
    /// What `push` returns; a word of more bytes than can be counted.
    pub(super) fn encode(
        &self,
        text: &str,
        id_of: impl Fn(&str) -> Option<u32>,
        push: &mut TokenSink<'_>,
    ) -> Result<(), TextError> {
        // `SPACE` has three bytes of UTF-8, two more than a space.
        let mut spaced = String::with_capacity(text.len() + 2 * text.matches(' ').count());
        spaced.extend(text.chars().map(|c| if c == ' ' { SPACE } else { c }));
        let (mut start, mut last) = (0, None);
        let (mut symbols, mut queue) = (Vec::new(), PairQueue::new());
        for (at, c) in spaced.char_indices() {
            if last.is_some_and(|last| !self.neighbours.contains(&(last, c))) {
                self.word(&spaced[start..at], &id_of, (&mut symbols, &mut queue), push)?;
                start = at;
            }
            last = Some(c);
        }
        self.word(&spaced[start..], &id_of, (&mut symbols, &mut queue), push)
    }

    fn word(
        &self,
        word: &str,
        id_of: &PieceLookup<'_>,
        (symbols, queue): (&mut Vec<SpmSymbol>, &mut PairQueue),
        push: &mut TokenSink<'_>,
    ) -> Result<(), TextError> {
        if word.len() >= NONE as usize {
            return Err(TextError::Encode(format!("a word has {} bytes; the limit is {NONE}", word.len())));
        }
        let count = word.chars().count();
        symbols.clear();
        symbols.reserve_exact(count);
        symbols.extend(word.char_indices().enumerate().map(|(i, (start, c))| SpmSymbol {
            start: start as u32,
            end: (start + c.len_utf8()) as u32,
            // Wraps to `NONE` for the first symbol.
            previous: (i as u32).wrapping_sub(1),
            next: if i + 1 == count { NONE } else { i as u32 + 1 },
        }));
        let word = Word { text: word, scores: &self.scores, id_of };
        word.merge(symbols, queue);
        for symbol in symbols.iter().filter(|symbol| symbol.end != NONE) {
            let text = &word.text[symbol.start as usize..symbol.end as usize];
            match id_of(text) {
                Some(id) => push(id)?,
                None => text
                    .bytes()
                    .filter_map(|byte| self.bytes[usize::from(byte)].or(self.unknown))
                    .try_for_each(&mut *push)?,
            }
        }
        Ok(())
    }
}

/// A word while it is merged.
struct Word<'a> {
    text: &'a str,
    scores: &'a [f32],
    id_of: &'a PieceLookup<'a>,
}

impl Word<'_> {
    fn merge(&self, symbols: &mut [SpmSymbol], queue: &mut PairQueue) {
        let count = symbols.len();
        let room = count + count / 4 + 4;
        queue.clear();
        queue.reserve_exact(room);
        for left in 0..count {
            self.offer(symbols, queue, left as u32);
        }
        while let Some(Reverse(entry)) = queue.pop() {
            let place = entry as u32;
            if !self.valid(symbols, entry) {
                continue;
            }
            let SpmSymbol { previous, next, .. } = symbols[place as usize];
            let right = symbols[next as usize];
            symbols[next as usize].end = NONE;
            symbols[place as usize].end = right.end;
            symbols[place as usize].next = right.next;
            if let Some(after) = symbols.get_mut(right.next as usize) {
                after.previous = place;
            }
            // Remove stale entries when the capacity is reached. A merge adds at most one entry
            // net, so this happens only a few times per word.
            if queue.len() + 2 > room {
                queue.retain(|Reverse(entry)| self.valid(symbols, *entry));
            }
            if previous != NONE {
                self.offer(symbols, queue, previous);
            }
            self.offer(symbols, queue, place);
        }
    }

    fn offer(&self, symbols: &[SpmSymbol], queue: &mut PairQueue, place: u32) {
        if let Some(order) = self.order(symbols, place) {
            // The position in the lower half: of equal scores, the leftmost pair is merged first.
            queue.push(Reverse(u64::from(order) << 32 | u64::from(place)));
        }
    }

    /// Whether the pair at an entry's position still has the entry's score. Otherwise the entry is
    /// stale.
    fn valid(&self, symbols: &[SpmSymbol], entry: u64) -> bool {
        symbols[entry as u32 as usize].end != NONE
            && self.order(symbols, entry as u32).is_some_and(|order| u64::from(order) == entry >> 32)
    }

    /// The priority of the pair that begins at a symbol, if it makes a piece. The lowest is merged
    /// first.
    fn order(&self, symbols: &[SpmSymbol], place: u32) -> Option<u32> {
        let left = symbols[place as usize];
        let right = symbols.get(left.next as usize)?;
        let id = (self.id_of)(&self.text[left.start as usize..right.end as usize])?;
        let bits = self.scores[id as usize].to_bits();
        // Map f32 to u32 in the order of `f32::total_cmp`, then invert it, because the best score
        // comes first. An integer packs with the position into one u64, and NaN has a place.
        Some(!if bits >> 31 == 1 { !bits } else { bits | 1 << 31 })
    }
}
