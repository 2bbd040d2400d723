//! Byte-pair encoding: each character of a piece becomes a symbol, and the pair of symbols with the
//! lowest rank is merged until no pair merges.
//!
//! A priority queue of pairs and a linked list of symbols make this O(n log n). A symbol needs 12
//! bytes, and 10 in the queue. A long piece is first split wherever no merge can cross, which does
//! not change the result. The resulting words are short in any real text, so memory stays small.

use crate::error::TextError;
use foldhash::fast::RandomState;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, HashSet};

/// Token texts and their ids.
pub(super) type VocabularyMap = HashMap<Box<str>, u32, RandomState>;

/// Options of a BPE model other than vocabulary and merges.
#[derive(Clone, Debug, Default)]
pub(super) struct BpeOptions {
    /// `unk_token`. Without it and without byte fallback, unknown characters are dropped.
    pub(super) unknown: Option<String>,
    /// `fuse_unk`: consecutive unknown characters become one token.
    pub(super) fuse_unknown: bool,
    /// `byte_fallback`: an unknown character becomes tokens `<0x00>` to `<0xFF>`, if all that it
    /// needs exist.
    pub(super) byte_fallback: bool,
    /// `ignore_merges`: a piece that is a token is not merged. Llama 3 and GLM-4 have it.
    pub(super) ignore_merges: bool,
}

/// A byte-pair model.
pub(super) struct Bpe {
    // An array, because the alphabet of byte-level vocabularies lies below U+0200: no hashing per
    // character.
    /// Ids of the characters below [`LOW`]; [`NONE`] for missing tokens.
    low: Box<[u32; LOW]>,
    characters: HashMap<char, u32, RandomState>,
    /// Rank and result of each pair.
    merges: HashMap<(u32, u32), (u32, u32), RandomState>,
    // A merge can only cross the border between two characters that are in this set.
    /// For each merge, the last character of its left part and the first of its right part. `None`
    /// if some parts do not consist of characters.
    joins: Option<HashSet<(u32, u32), RandomState>>,
    /// All tokens and the length of the longest, if whole pieces are looked up.
    words: Option<(VocabularyMap, usize)>,
    bytes: Option<Box<[u32; 256]>>,
    unknown: Option<u32>,
    fuse_unknown: bool,
}

/// The byte-level alphabet ends at U+0143.
const LOW: usize = 0x200;
const NONE: u32 = u32::MAX;

/// Shorter pieces are not split into words. They need little memory as a whole.
const SHORT: usize = 64;

/// A symbol of a word, in a doubly linked list.
#[derive(Clone, Copy)]
struct BpeSymbol {
    /// The token; [`NONE`] after it was merged into its left neighbor.
    id: u32,
    previous: u32,
    next: u32,
}

/// Scratch memory, reused for all words of a text.
#[derive(Default)]
pub(super) struct Workspace {
    symbols: Vec<BpeSymbol>,
    // One u64 per pair, rank in the upper half: entries compare by rank, then by position.
    /// Pairs to merge, the lowest rank first, then the leftmost.
    queue: BinaryHeap<Reverse<u64>>,
}

impl Bpe {
    /// A model without a list of merges, as in tiktoken: two adjacent tokens merge if their
    /// concatenation is a token, the one of the lowest id first. A piece that is a token is not
    /// merged. Tokens are in the byte-level alphabet.
    pub(super) fn ranked(vocabulary: VocabularyMap) -> Bpe {
        let mut model = Bpe::characters(&vocabulary, None, None, false);
        let mut joins = HashSet::default();
        for (text, rank) in &vocabulary {
            for (at, right) in text.char_indices().skip(1) {
                let (a, b) = text.split_at(at);
                let (Some(first), Some(second)) = (vocabulary.get(a), vocabulary.get(b)) else { continue };
                // The rank of a merge is the id of its result.
                model.merges.insert((*first, *second), (*rank, *rank));
                let left = a.chars().next_back().and_then(|c| model.character(c));
                joins.extend(left.zip(model.character(right)));
            }
        }
        model.joins = Some(joins);
        model.look_up_words(vocabulary);
        model
    }

    /// A model without merges.
    fn characters(
        vocabulary: &VocabularyMap,
        bytes: Option<Box<[u32; 256]>>,
        unknown: Option<u32>,
        fuse: bool,
    ) -> Bpe {
        let mut low = Box::new([NONE; LOW]);
        let mut characters = HashMap::default();
        for (text, id) in vocabulary {
            let mut chars = text.chars();
            if let (Some(c), None) = (chars.next(), chars.next()) {
                match low.get_mut(c as usize) {
                    Some(slot) => *slot = *id,
                    None => drop(characters.insert(c, *id)),
                }
            }
        }
        Bpe {
            low,
            characters,
            merges: HashMap::default(),
            joins: None,
            words: None,
            bytes,
            unknown,
            fuse_unknown: fuse,
        }
    }

    /// Encodes pieces that are tokens without merging.
    fn look_up_words(&mut self, vocabulary: VocabularyMap) {
        // A longer piece is not hashed: hashing a megabyte only to miss would cost time.
        let longest = vocabulary.keys().map(|text| text.len()).max().unwrap_or(0);
        self.words = Some((vocabulary, longest));
    }

    /// A model of tokens and merges in the order of ranks. If a pair is listed twice, the later
    /// entry counts, as in the `tokenizers` library. Merges never produce a token in `control`.
    ///
    /// # Errors
    /// A merge whose parts or result are not tokens; a missing token.
    pub(super) fn new(
        mut vocabulary: VocabularyMap,
        pairs: impl IntoIterator<Item = (String, String)>,
        control: &HashSet<u32>,
        options: &BpeOptions,
    ) -> Result<Bpe, String> {
        let unknown = match &options.unknown {
            Some(text) => Some(
                *vocabulary
                    .get(text.as_str())
                    .ok_or_else(|| format!("unk_token {text:?} is not in the vocabulary"))?,
            ),
            None => None,
        };
        let bytes = if options.byte_fallback { byte_ids(&vocabulary) } else { None };
        let mut model = Bpe::characters(&vocabulary, bytes, unknown, options.fuse_unknown);
        model.add_merges(&vocabulary, pairs, control)?;
        if options.ignore_merges {
            // A word that spells a control token must not become that token.
            vocabulary.retain(|_, id| !control.contains(id));
            model.look_up_words(vocabulary);
        }
        Ok(model)
    }

    fn add_merges(
        &mut self,
        vocabulary: &VocabularyMap,
        pairs: impl IntoIterator<Item = (String, String)>,
        control: &HashSet<u32>,
    ) -> Result<(), String> {
        let fallback: HashSet<u32> =
            self.bytes.iter().flat_map(|ids| ids.iter()).chain(&self.unknown).copied().collect();
        let mut joins = Some(HashSet::default());
        let mut joined = String::new();
        for (rank, (left, right)) in pairs.into_iter().enumerate() {
            joined.clear();
            joined.push_str(&left);
            joined.push_str(&right);
            let id = |text: &str| {
                let found = vocabulary.get(text).copied();
                found.ok_or_else(|| {
                    format!("merge {rank} of {left:?} and {right:?}: {text:?} is not in the vocabulary")
                })
            };
            let pair = (id(&left)?, id(&right)?);
            let rank = u32::try_from(rank).map_err(|_| "it has too many merges".to_owned())?;
            let merged = id(&joined)?;
            // Otherwise a user's text that spells `<|im_end|>` could merge to the control token.
            if control.contains(&merged) {
                continue;
            }
            self.merges.insert(pair, (rank, merged));
            let ends = (left.chars().next_back(), right.chars().next());
            let symbols = (ends.0.and_then(|c| self.character(c)), ends.1.and_then(|c| self.character(c)));
            match (&mut joins, symbols) {
                (Some(set), (Some(a), Some(b)))
                    if !fallback.contains(&pair.0) && !fallback.contains(&pair.1) =>
                {
                    set.insert((a, b));
                }
                // A part may be a byte token or the unknown token. Its text does not tell which
                // characters it can stand next to, so long pieces cannot be split.
                _ => joins = None,
            }
        }
        self.joins = joins;
        Ok(())
    }

    /// Whether characters can be dropped, or any number of them become one token; `mapped`: pieces
    /// are in the byte-level alphabet.
    pub(super) fn loses_text(&self, mapped: bool) -> bool {
        if mapped {
            super::bytes::characters().iter().any(|c| self.character(*c).is_none())
        } else {
            self.bytes.as_ref().is_none_or(|ids| ids.contains(&NONE))
        }
    }

    fn character(&self, c: char) -> Option<u32> {
        match self.low.get(c as usize) {
            Some(id) => (*id != NONE).then_some(*id),
            None => self.characters.get(&c).copied(),
        }
    }

    /// Passes the tokens of a piece to `push`.
    ///
    /// # Errors
    /// What `push` returns; a piece of more symbols than can be counted.
    pub(super) fn encode(
        &self,
        piece: &str,
        workspace: &mut Workspace,
        push: &mut dyn FnMut(u32) -> Result<(), TextError>,
    ) -> Result<(), TextError> {
        if let Some((words, longest)) = &self.words
            && piece.len() <= *longest
            && let Some(id) = words.get(piece)
        {
            return push(*id);
        }
        let cuts = self.joins.as_ref().filter(|_| piece.len() >= SHORT);
        let joined = |a, b| cuts.is_none_or(|joins| joins.contains(&(a, b)));
        let symbols = &mut workspace.symbols;
        symbols.clear();
        // Reserved exactly: a vector that doubles needs up to three times its size while it grows.
        symbols.reserve_exact(if piece.len() < SHORT {
            piece.len()
        } else {
            self.longest_word(piece, joined)
        });
        let mut failed = Ok(());
        self.symbols(piece, &mut |id| {
            if let Some(last) = symbols.last()
                && !joined(last.id, id)
            {
                failed = self.merge(symbols, &mut workspace.queue, push);
                symbols.clear();
            }
            symbols.push(BpeSymbol { id, previous: NONE, next: NONE });
            failed.is_ok()
        });
        failed?;
        self.merge(symbols, &mut workspace.queue, push)
    }

    /// Number of symbols of the piece's longest word.
    fn longest_word(&self, piece: &str, joined: impl Fn(u32, u32) -> bool) -> usize {
        let (mut longest, mut len, mut last) = (0, 0, None);
        self.symbols(piece, &mut |id| {
            len = if last.is_some_and(|last| joined(last, id)) { len + 1 } else { 1 };
            longest = longest.max(len);
            last = Some(id);
            true
        });
        longest
    }

    /// Passes the symbols of a piece before any merge to `each`, until it returns false.
    fn symbols(&self, piece: &str, each: &mut dyn FnMut(u32) -> bool) {
        // The unknown token is emitted late, because `fuse_unk` joins it with the next ones. Byte
        // fallback does not flush it, so its bytes come before an earlier unknown token. The
        // `tokenizers` library has the same order.
        let mut waiting = None;
        for c in piece.chars() {
            let mut utf8 = [0; 4];
            let more = if let Some(id) = self.character(c) {
                waiting.take().is_none_or(&mut *each) && each(id)
            } else if let Some(mut ids) = self.fallback(c.encode_utf8(&mut utf8).as_bytes()) {
                ids.all(&mut *each)
            } else {
                let before = if self.fuse_unknown { None } else { waiting };
                waiting = self.unknown;
                before.is_none_or(&mut *each)
            };
            if !more {
                return;
            }
        }
        if let Some(id) = waiting {
            each(id);
        }
    }

    /// The byte-fallback tokens of a character, if all exist.
    fn fallback(&self, bytes: &[u8]) -> Option<impl Iterator<Item = u32>> {
        let ids = self.bytes.as_ref()?;
        let found = bytes.iter().map(|byte| ids[usize::from(*byte)]);
        if found.clone().any(|id| id == NONE) { None } else { Some(found) }
    }

    /// Merges a word and passes its tokens to `push`.
    fn merge(
        &self,
        symbols: &mut [BpeSymbol],
        queue: &mut BinaryHeap<Reverse<u64>>,
        push: &mut dyn FnMut(u32) -> Result<(), TextError>,
    ) -> Result<(), TextError> {
        if symbols.len() >= NONE as usize {
            let problem = format!("a piece has {} symbols; the limit is {NONE}", symbols.len());
            return Err(TextError::Encode(problem));
        }
        let count = symbols.len();
        for (place, symbol) in symbols.iter_mut().enumerate() {
            symbol.previous = if place == 0 { NONE } else { place as u32 - 1 };
            symbol.next = if place + 1 == count { NONE } else { place as u32 + 1 };
        }
        queue.clear();
        // A fixed capacity with a quarter of slack for stale entries, so that the queue never
        // reallocates.
        let room = count + count / 4 + 4;
        if count > 1 {
            queue.reserve_exact(room);
        }
        for place in 0..count.saturating_sub(1) {
            self.offer(symbols, queue, place as u32);
        }
        while let Some(Reverse(entry)) = queue.pop() {
            let place = entry as u32;
            let Some((_, id)) = self.valid(symbols, entry) else { continue };
            let BpeSymbol { previous, next, .. } = symbols[place as usize];
            let after = symbols[next as usize].next;
            symbols[next as usize].id = NONE;
            symbols[place as usize].id = id;
            symbols[place as usize].next = after;
            if let Some(symbol) = symbols.get_mut(after as usize) {
                symbol.previous = place;
            }
            // Remove stale entries when the capacity is reached. A merge adds at most one entry
            // net, so this happens only a few times per word.
            if queue.len() + 2 > room {
                queue.retain(|Reverse(entry)| self.valid(symbols, *entry).is_some());
            }
            if previous != NONE {
                self.offer(symbols, queue, previous);
            }
            self.offer(symbols, queue, place);
        }
        symbols.iter().filter(|symbol| symbol.id != NONE).try_for_each(|symbol| push(symbol.id))
    }

    /// Queues the pair that begins at a symbol, if it merges.
    fn offer(&self, symbols: &[BpeSymbol], queue: &mut BinaryHeap<Reverse<u64>>, place: u32) {
        if let Some((rank, _)) = self.pair_at(symbols, place) {
            queue.push(Reverse(u64::from(rank) << 32 | u64::from(place)));
        }
    }

    /// Rank and result of the pair that begins at a symbol.
    fn pair_at(&self, symbols: &[BpeSymbol], place: u32) -> Option<(u32, u32)> {
        let left = symbols[place as usize];
        let right = symbols.get(left.next as usize)?;
        self.merges.get(&(left.id, right.id)).copied()
    }

    /// The pair of a queue's entry, unless the entry is stale. Entries are not removed when a merge
    /// changes a symbol; then the pair at the position has another rank.
    fn valid(&self, symbols: &[BpeSymbol], entry: u64) -> Option<(u32, u32)> {
        let place = entry as u32;
        if symbols[place as usize].id == NONE {
            return None;
        }
        self.pair_at(symbols, place).filter(|(rank, _)| u64::from(*rank) == entry >> 32)
    }
}

/// Ids of `<0x00>` to `<0xFF>`; `None` if all are missing.
fn byte_ids(vocabulary: &VocabularyMap) -> Option<Box<[u32; 256]>> {
    let mut ids = Box::new([NONE; 256]);
    for (byte, id) in ids.iter_mut().enumerate() {
        *id = vocabulary.get(format!("<0x{byte:02X}>").as_str()).copied().unwrap_or(NONE);
    }
    ids.iter().any(|id| *id != NONE).then_some(ids)
}

#[cfg(test)]
mod tests;
