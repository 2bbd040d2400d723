//! The file format of the prefix cache: consecutive blocks of a text, with their names and tokens.
//!
//! ```text
//! magic "LATNTPC1" | cache id u64 | index of the first block u64 | blocks u32 | bytes of the header u32 | bytes of the file u64
//! per block: name 16 bytes | tokens u32 × 64 | rows of the MTP layer u32 | states u32 | bytes u64 | checksum u64 | per state: position u64
//! checksum of the header u64
//! per block: rows of each layer, one layer after the other; per state: elements of each recurrent layer, f32
//! ```
//!
//! The cache id identifies the model, its precision and the layout of rows. A block can be read
//! without those before it.

use crate::cache::block_hash::BlockHash;
use latent_backend::KV_BLOCK;

const MAGIC: &[u8; 8] = b"LATNTPC1";

/// Bytes before the entries of blocks.
pub(super) const START: usize = 40;

/// Bytes of an entry without states: name, tokens, MTP rows, states, payload size, checksum.
const ENTRY: usize = 16 + 4 * KV_BLOCK + 4 + 4 + 8 + 8;

/// Maximum number of blocks per file.
pub(super) const MAX_BLOCKS: usize = 64;

/// Maximum size of a header, in bytes. It bounds the memory that a hostile file can request, and
/// has room for more states than a model keeps.
const MAX_HEADER: usize = 1 << 20;

/// A block to write.
#[derive(Debug)]
pub(super) struct NewBlock {
    pub name: BlockHash,
    pub tokens: Vec<u32>,
    /// Number of rows that the MTP layer has run.
    pub drafted: usize,
    /// Positions of the states.
    pub states: Vec<usize>,
    pub payload: Vec<u8>,
}

/// Blocks for one file.
#[derive(Debug)]
pub(super) struct BlockRun {
    /// The index of the first block in its text.
    pub first: usize,
    pub blocks: Vec<NewBlock>,
}

/// A header's entry of a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SegmentEntry {
    pub name: BlockHash,
    pub tokens: Vec<u32>,
    pub drafted: usize,
    pub states: Vec<usize>,
    /// Offset of the payload in the file.
    pub start: u64,
    /// Size of the payload.
    pub bytes: usize,
    /// Checksum of the payload.
    pub sum: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub first: usize,
    pub entries: Vec<SegmentEntry>,
}

/// The checked start of a file.
#[derive(Clone, Copy, Debug)]
pub(super) struct SegmentStart {
    pub first: usize,
    /// Number of blocks.
    pub blocks: usize,
    /// Size of the header, in bytes.
    pub header: usize,
}

/// A checksum at the speed of memory: four sums of 64 bits, each like FNV-1a over every fourth
/// word. Any change of one word changes the checksum.
pub(super) fn checksum(bytes: &[u8]) -> u64 {
    /// The prime of 64-bit FNV-1a.
    const PRIME: u64 = 0x0000_0100_0000_01b3;
    // Four different start values and independent sums, since one chain of multiplications would
    // wait for each product.
    let mut sums =
        [0xcbf2_9ce4_8422_2325u64, 0x9e37_79b9_7f4a_7c15, 0xc2b2_ae3d_27d4_eb4f, 0x1656_67b1_9e37_79f9];
    // Each of these operations is a bijection of the sum, since `PRIME` is odd. A change of one
    // word therefore always changes the result.
    let mix = |sum: u64, word: u64| (sum ^ word).wrapping_mul(PRIME).rotate_left(23);
    let words = bytes.chunks_exact(8);
    let mut rest = [0; 8];
    rest[..words.remainder().len()].copy_from_slice(words.remainder());
    for (index, word) in words.enumerate() {
        let word = u64::from_le_bytes(word.try_into().unwrap_or_default());
        sums[index % 4] = mix(sums[index % 4], word);
    }
    // The length tells trailing zeros from the padding of the last word.
    let end = mix(bytes.len() as u64, u64::from_le_bytes(rest));
    sums.iter().fold(end, |sum, other| mix(sum, *other))
}

impl BlockRun {
    /// The bytes of the file.
    pub(super) fn encode(&self, id: u64) -> Vec<u8> {
        let entries: usize = self.blocks.iter().map(|block| ENTRY + 8 * block.states.len()).sum();
        let header = START + entries + 8;
        let payload: usize = self.blocks.iter().map(|block| block.payload.len()).sum();
        let mut out = Vec::with_capacity(header + payload);
        out.extend_from_slice(MAGIC);
        out.extend_from_slice(&id.to_le_bytes());
        out.extend_from_slice(&(self.first as u64).to_le_bytes());
        out.extend_from_slice(&(self.blocks.len() as u32).to_le_bytes());
        out.extend_from_slice(&(header as u32).to_le_bytes());
        out.extend_from_slice(&((header + payload) as u64).to_le_bytes());
        for block in &self.blocks {
            out.extend_from_slice(&block.name.0);
            block.tokens.iter().for_each(|token| out.extend_from_slice(&token.to_le_bytes()));
            out.extend_from_slice(&(block.drafted as u32).to_le_bytes());
            out.extend_from_slice(&(block.states.len() as u32).to_le_bytes());
            out.extend_from_slice(&(block.payload.len() as u64).to_le_bytes());
            out.extend_from_slice(&checksum(&block.payload).to_le_bytes());
            block.states.iter().for_each(|position| out.extend_from_slice(&(*position as u64).to_le_bytes()));
        }
        let sum = checksum(&out);
        out.extend_from_slice(&sum.to_le_bytes());
        self.blocks.iter().for_each(|block| out.extend_from_slice(&block.payload));
        out
    }
}

/// Reads consecutive numbers. `None` at the end of the bytes.
struct SegmentReader<'a>(&'a [u8]);

impl<'a> SegmentReader<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn u32(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(self.take(4)?.try_into().ok()?))
    }

    fn u64(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.take(8)?.try_into().ok()?))
    }

    fn index(&mut self) -> Option<usize> {
        usize::try_from(self.u64()?).ok()
    }
}

impl SegmentStart {
    /// Checks the first [`START`] bytes of a file of `size` bytes.
    pub(super) fn parse(bytes: &[u8], id: u64, size: u64) -> Option<SegmentStart> {
        let mut bytes = SegmentReader(bytes);
        if bytes.take(8)? != MAGIC || bytes.u64()? != id {
            return None;
        }
        let (first, blocks, header) = (bytes.index()?, bytes.u32()? as usize, bytes.u32()? as usize);
        // The product is checked because `Header::parse` multiplies block indices by KV_BLOCK.
        let fits = (1..=MAX_BLOCKS).contains(&blocks)
            && first.checked_add(blocks)?.checked_mul(KV_BLOCK).is_some()
            && (START + blocks * ENTRY + 8..=MAX_HEADER).contains(&header);
        (fits && bytes.u64()? == size && size >= header as u64).then_some(SegmentStart {
            first,
            blocks,
            header,
        })
    }
}

impl Header {
    /// Parses and checks a whole header, of a file of `size` bytes.
    pub(super) fn parse(bytes: &[u8], id: u64, size: u64) -> Option<Header> {
        let SegmentStart { first, blocks, header } = SegmentStart::parse(bytes.get(..START)?, id, size)?;
        let (content, sum) = bytes.get(..header)?.split_at(header - 8);
        // The checksum finds accidental damage. The checks below hold for hostile files too, which
        // can have a right checksum.
        if SegmentReader(sum).u64()? != checksum(content) {
            return None;
        }
        let mut input = SegmentReader(&content[START..]);
        let (mut entries, mut start) = (Vec::with_capacity(blocks), header as u64);
        for index in first..first + blocks {
            let name = BlockHash(input.take(16)?.try_into().ok()?);
            let mut tokens = Vec::with_capacity(KV_BLOCK);
            for _ in 0..KV_BLOCK {
                tokens.push(input.u32()?);
            }
            let (drafted, states) = (input.u32()? as usize, input.u32()? as usize);
            let (bytes, sum) = (input.index()?, input.u64()?);
            // No capacity is reserved: the number of states may be wrong. The loop ends with the
            // header's bytes at the latest.
            let mut positions = Vec::new();
            for _ in 0..states {
                let position = input.index()?;
                // Within the block, and in ascending order.
                let within = position > index * KV_BLOCK && position <= (index + 1) * KV_BLOCK;
                if !within || positions.last().is_some_and(|last| *last >= position) {
                    return None;
                }
                positions.push(position);
            }
            if drafted > KV_BLOCK {
                return None;
            }
            entries.push(SegmentEntry { name, tokens, drafted, states: positions, start, bytes, sum });
            // Payloads follow each other without gaps, and the last one ends with the file.
            start = start.checked_add(bytes as u64)?;
        }
        (input.0.is_empty() && start == size).then_some(Header { first, entries })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segment() -> BlockRun {
        let block = |index: usize| NewBlock {
            name: BlockHash([index as u8; 16]),
            tokens: (0..KV_BLOCK as u32).map(|token| token + 100 * index as u32).collect(),
            drafted: 3,
            states: if index == 6 { vec![6 * KV_BLOCK + 1, 7 * KV_BLOCK] } else { Vec::new() },
            payload: (0..50 + index).map(|byte| byte as u8).collect(),
        };
        BlockRun { first: 5, blocks: vec![block(5), block(6), block(7)] }
    }

    #[test]
    fn a_header_round_trips() {
        let segment = segment();
        let file = segment.encode(9);
        let header = Header::parse(&file, 9, file.len() as u64).unwrap();
        assert_eq!((header.first, header.entries.len()), (5, 3));
        for (entry, block) in header.entries.iter().zip(&segment.blocks) {
            assert_eq!((entry.name, &entry.tokens, entry.drafted), (block.name, &block.tokens, 3));
            assert_eq!(entry.states, block.states);
            let payload = &file[entry.start as usize..][..entry.bytes];
            assert!(payload == block.payload && checksum(payload) == entry.sum);
        }
        assert!(Header::parse(&file, 8, file.len() as u64).is_none());
    }

    #[test]
    fn truncated_and_corrupt_files_are_detected() {
        let file = segment().encode(9);
        let header = u32::from_le_bytes(file[28..32].try_into().unwrap()) as usize;
        for len in 0..file.len() {
            assert!(Header::parse(&file[..len], 9, len as u64).is_none(), "{len} bytes");
        }
        for at in 0..header {
            let mut wrong = file.clone();
            wrong[at] ^= 0x10;
            assert!(Header::parse(&wrong, 9, file.len() as u64).is_none(), "byte {at}");
        }
        let whole = Header::parse(&file, 9, file.len() as u64).unwrap();
        for at in header..file.len() {
            let mut wrong = file.clone();
            wrong[at] ^= 1;
            let bad =
                |entry: &SegmentEntry| checksum(&wrong[entry.start as usize..][..entry.bytes]) != entry.sum;
            assert_eq!(whole.entries.iter().filter(|entry| bad(entry)).count(), 1, "byte {at}");
            assert_eq!(super::super::whole_blocks(&wrong, 9), Some(2), "byte {at}");
        }
    }

    #[test]
    fn checksums_depend_on_order_length_and_zeros() {
        let sums: Vec<u64> = (0..200).map(|len| checksum(&vec![0; len])).collect();
        let different: std::collections::HashSet<_> = sums.iter().collect();
        assert_eq!(different.len(), sums.len());
        let (mut a, mut b) = (vec![0u8; 64], vec![0u8; 64]);
        (a[0], b[32]) = (1, 1);
        assert_ne!(checksum(&a), checksum(&b));
    }
}
