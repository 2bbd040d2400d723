//! SentencePiece as GGUF files hold it: pieces with scores, the best-scored pair merged first, bytes for what is unknown.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

/// Scores of all pieces, and the ids of the 256 bytes.
pub(super) struct Spm {
    pub(super) scores: Vec<f32>,
    pub(super) bytes: [Option<u32>; 256],
    pub(super) unknown: Option<u32>,
}

/// The character that stands for a space.
pub(super) const SPACE: char = '\u{2581}';

struct Pair {
    score: f32,
    left: usize,
    right: usize,
    len: usize,
}

impl PartialEq for Pair {
    fn eq(&self, other: &Pair) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Pair {}

impl PartialOrd for Pair {
    fn partial_cmp(&self, other: &Pair) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Pair {
    /// The best score first; of equal ones the leftmost.
    fn cmp(&self, other: &Pair) -> Ordering {
        self.score.total_cmp(&other.score).then(other.left.cmp(&self.left))
    }
}

/// A run of text: where it begins, its length, and its neighbours.
#[derive(Clone, Copy)]
struct Symbol {
    start: usize,
    len: usize,
    previous: usize,
    next: usize,
}

const NONE: usize = usize::MAX;

impl Spm {
    /// Appends the ids of a text.
    pub(super) fn encode(
        &self,
        text: &str,
        prefix: bool,
        id_of: impl Fn(&str) -> Option<u32>,
        ids: &mut Vec<u32>,
    ) {
        let mut spaced = String::with_capacity(text.len() + 8);
        if prefix && !text.is_empty() {
            spaced.push(SPACE);
        }
        spaced.extend(text.chars().map(|c| if c == ' ' { SPACE } else { c }));
        let mut symbols: Vec<Symbol> = spaced
            .char_indices()
            .enumerate()
            .map(|(i, (start, c))| Symbol {
                start,
                len: c.len_utf8(),
                previous: i.wrapping_sub(1),
                next: i + 1,
            })
            .collect();
        let Some(last) = symbols.last_mut() else { return };
        last.next = NONE;
        let mut queue = BinaryHeap::new();
        let offer = |queue: &mut BinaryHeap<Pair>, symbols: &[Symbol], left: usize| {
            let Some(a) = symbols.get(left) else { return };
            let Some(b) = symbols.get(a.next) else { return };
            let len = a.len + b.len;
            if let Some(id) = id_of(&spaced[a.start..a.start + len]) {
                queue.push(Pair { score: self.scores[id as usize], left, right: a.next, len });
            }
        };
        for left in 0..symbols.len() {
            offer(&mut queue, &symbols, left);
        }
        while let Some(pair) = queue.pop() {
            let (a, b) = (symbols[pair.left], symbols[pair.right]);
            // one of them has been merged since the pair was offered
            if a.len == 0 || b.len == 0 || a.next != pair.right || a.len + b.len != pair.len {
                continue;
            }
            symbols[pair.left].len = pair.len;
            symbols[pair.left].next = b.next;
            symbols[pair.right].len = 0;
            if let Some(after) = symbols.get_mut(b.next) {
                after.previous = pair.left;
            }
            offer(&mut queue, &symbols, a.previous);
            offer(&mut queue, &symbols, pair.left);
        }
        for symbol in symbols.iter().filter(|symbol| symbol.len > 0) {
            let text = &spaced[symbol.start..symbol.start + symbol.len];
            match id_of(text) {
                Some(id) => ids.push(id),
                None => self.fall_back(text, ids),
            }
        }
    }

    fn fall_back(&self, text: &str, ids: &mut Vec<u32>) {
        for byte in text.bytes() {
            ids.extend(self.bytes[usize::from(byte)].or(self.unknown));
        }
    }
}
