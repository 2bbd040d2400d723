//! Byte-pair encoding: the characters of a piece become symbols, and the pair of the lowest rank is merged until none is left.
//!
//! Memory: 12 bytes for each symbol of a word and 10 for its queue. A long piece is split beforehand wherever no merge can cross, which
//! does not change the result; the words are short in any real text.

use crate::error::TextError;
use foldhash::fast::RandomState;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, HashSet};

/// Token texts and their ids.
pub(super) type VocabularyMap = HashMap<Box<str>, u32, RandomState>;

/// Options of a BPE model other than vocabulary and merges.
#[derive(Clone, Debug, Default)]
pub(super) struct BpeOptions {
    /// The unknown token; without it and without byte fallback, unknown characters are dropped.
    pub(super) unknown: Option<String>,
    /// Consecutive unknown characters become one token (`fuse_unk`).
    pub(super) fuse_unknown: bool,
    /// Unknown characters become tokens `<0x00>` to `<0xFF>`, if all needed ones exist (`byte_fallback`).
    pub(super) byte_fallback: bool,
    /// A piece that is a token is not merged (`ignore_merges`).
    pub(super) ignore_merges: bool,
}

/// A byte-pair model.
pub(super) struct Bpe {
    /// Ids of the characters below U+0200, which a byte-level vocabulary consists of; [`NONE`] for
    /// missing tokens.
    low: Box<[u32; LOW]>,
    characters: HashMap<char, u32, RandomState>,
    /// Rank and result of each pair.
    merges: HashMap<(u32, u32), (u32, u32), RandomState>,
    /// The last symbol of a merge's left part and the first one of its right part. None where parts are not made of characters.
    joins: Option<HashSet<(u32, u32), RandomState>>,
    /// All tokens, where whole pieces are looked up, and the length of the longest.
    words: Option<(VocabularyMap, usize)>,
    bytes: Option<Box<[u32; 256]>>,
    unknown: Option<u32>,
    fuse_unknown: bool,
}

const LOW: usize = 0x200;
const NONE: u32 = u32::MAX;

/// Shorter pieces are not split into words.
const SHORT: usize = 64;

/// A symbol of a word, in a doubly linked list.
#[derive(Clone, Copy)]
struct BpeSymbol {
    /// Its token; [`NONE`] once it is merged into the one on its left.
    id: u32,
    previous: u32,
    next: u32,
}

/// Scratch memory, reused from word to word.
#[derive(Default)]
pub(super) struct Workspace {
    symbols: Vec<BpeSymbol>,
    /// Rank and index of pairs, the lowest rank first, then the leftmost.
    queue: BinaryHeap<Reverse<u64>>,
}

impl Bpe {
    /// A model whose ids are ranks: any two parts that make a token merge, the token of the lowest id first. A piece that is a token as a
    /// whole is taken without merging. Tokens are bytes written as characters.
    pub(super) fn ranked(vocabulary: VocabularyMap) -> Bpe {
        let mut model = Bpe::characters(&vocabulary, None, None, false);
        let mut joins = HashSet::default();
        for (text, rank) in &vocabulary {
            for (at, right) in text.char_indices().skip(1) {
                let (a, b) = text.split_at(at);
                let (Some(first), Some(second)) = (vocabulary.get(a), vocabulary.get(b)) else { continue };
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

    /// Takes pieces that are tokens as a whole without merging.
    fn look_up_words(&mut self, vocabulary: VocabularyMap) {
        let longest = vocabulary.keys().map(|text| text.len()).max().unwrap_or(0);
        self.words = Some((vocabulary, longest));
    }

    /// A model of these tokens and merges, the lowest rank first. Of a pair that stands twice, the later one counts. Tokens in `control`
    /// are never produced from text.
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
            let rank =
                u32::try_from(rank).map_err(|_| "it has more merges than can be counted".to_owned())?;
            let merged = id(&joined)?;
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
                // such parts may come from bytes: where they end is not known by their texts
                _ => joins = None,
            }
        }
        self.joins = joins;
        Ok(())
    }

    /// Whether characters can be dropped, or many become one token; `mapped`: pieces are in the byte-level alphabet.
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

    /// Appends the tokens of a piece through `push`.
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

    /// The symbols of the longest word that [`Bpe::encode`] will hold at once.
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

    /// The symbols of a piece before any merge, until `each` returns false.
    fn symbols(&self, piece: &str, each: &mut dyn FnMut(u32) -> bool) {
        // an unknown character waits for what follows it; bytes to fall back on pass it by, as they do in the library of this format
        let mut waiting = None;
        for c in piece.chars() {
            let mut utf8 = [0; 4];
            let go_on = if let Some(id) = self.character(c) {
                waiting.take().is_none_or(&mut *each) && each(id)
            } else if let Some(mut ids) = self.fallback(c.encode_utf8(&mut utf8).as_bytes()) {
                ids.all(&mut *each)
            } else {
                let before = if self.fuse_unknown { None } else { waiting };
                waiting = self.unknown;
                before.is_none_or(&mut *each)
            };
            if !go_on {
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

    /// Merges a word and appends its tokens.
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
            // stale entries are removed: a merge adds one entry at most, so this happens a few times per word
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

    /// Queues the pair that begins at a place, if it merges.
    fn offer(&self, symbols: &[BpeSymbol], queue: &mut BinaryHeap<Reverse<u64>>, place: u32) {
        if let Some((rank, _)) = self.pair_at(symbols, place) {
            queue.push(Reverse(u64::from(rank) << 32 | u64::from(place)));
        }
    }

    /// Rank and result of the pair that begins at a place.
    fn pair_at(&self, symbols: &[BpeSymbol], place: u32) -> Option<(u32, u32)> {
        let left = symbols[place as usize];
        let right = symbols.get(left.next as usize)?;
        self.merges.get(&(left.id, right.id)).copied()
    }

    /// The pair of a queue's entry, if it is not stale: a part that has grown makes another pair of another rank.
    fn valid(&self, symbols: &[BpeSymbol], entry: u64) -> Option<(u32, u32)> {
        let place = entry as u32;
        if symbols[place as usize].id == NONE {
            return None;
        }
        self.pair_at(symbols, place).filter(|(rank, _)| u64::from(*rank) == entry >> 32)
    }
}

/// Ids of `<0x00>` to `<0xFF>`; none if none of them exists.
fn byte_ids(vocabulary: &VocabularyMap) -> Option<Box<[u32; 256]>> {
    let mut ids = Box::new([NONE; 256]);
    for (byte, id) in ids.iter_mut().enumerate() {
        *id = vocabulary.get(format!("<0x{byte:02X}>").as_str()).copied().unwrap_or(NONE);
    }
    ids.iter().any(|id| *id != NONE).then_some(ids)
}

#[cfg(test)]
mod tests;
