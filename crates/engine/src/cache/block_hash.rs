//! Names of blocks by their contents: the keys of the prefix cache, in memory and on disk.

use super::prefix::CacheSalt;
use latent_backend::{InputRow, InputRows, KV_BLOCK};
use latent_formats::Sha256;

/// Names a full block of a model's KV cache by all tokens up to its end. Two blocks with the same
/// name hold the same rows. Names are SHA-256 hashes truncated to 128 bits, so that a client cannot
/// construct prompts whose blocks collide.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockHash(pub [u8; 16]);

/// The names of all full blocks of a sequence of tokens: [`block_hashes_of`] for tokens alone.
pub fn block_hashes(fingerprint: u64, tokens: &[u32]) -> Vec<BlockHash> {
    block_hashes_of(fingerprint, &[InputRows::Tokens(tokens)])
}

/// The names of all full blocks of a sequence with these rows. Each name is a hash of the previous
/// name and the block's own [`KV_BLOCK`] rows; embeddings are hashed by their bits. `fingerprint`
/// identifies the model and all settings that rows depend on, such as the cache's element type.
///
/// In a model with recurrent layers, a prefix can be reused only at positions with a snapshot:
/// [`Sequence::reusable`](super::Sequence::reusable).
pub fn block_hashes_of(fingerprint: u64, parts: &[InputRows<'_>]) -> Vec<BlockHash> {
    let rows: Vec<InputRow<'_>> = parts.iter().flat_map(InputRows::iter).collect();
    let mut parent = BlockHash([0; 16]);
    let named = |block: &[InputRow<'_>]| {
        parent = parent.next(fingerprint, block);
        parent
    };
    rows.chunks_exact(KV_BLOCK).map(named).collect()
}

impl BlockHash {
    /// The name of the block with these rows that follows the block of this name.
    fn next(self, fingerprint: u64, block: &[InputRow<'_>]) -> BlockHash {
        let mut hash = Sha256::new();
        // The name of the parent stands for all tokens before the block: rows depend on them.
        hash.update(fingerprint.to_le_bytes());
        hash.update(self.0);
        hash_rows(&mut hash, block);
        let mut name = [0; 16];
        name.copy_from_slice(&hash.finalize()[..16]);
        BlockHash(name)
    }
}

/// The names of the full blocks of a growing sequence. The salt takes the place of the name before
/// the first, so that blocks of tenants with other salts never have equal names.
#[derive(Clone, Debug)]
pub(crate) struct HashChain {
    fingerprint: u64,
    salt: CacheSalt,
    names: Vec<BlockHash>,
}

impl HashChain {
    pub(crate) fn new(fingerprint: u64, salt: CacheSalt) -> HashChain {
        HashChain { fingerprint, salt, names: Vec::new() }
    }

    /// Computes the names of the full blocks of `tokens` that have none yet. `tokens` must begin
    /// with the tokens of all earlier calls.
    pub(crate) fn extend_to(&mut self, tokens: &[u32]) {
        let named = self.names.len() * KV_BLOCK;
        for block in tokens.get(named..).unwrap_or_default().chunks_exact(KV_BLOCK) {
            let rows: Vec<InputRow<'_>> = block.iter().map(|token| InputRow::Token(*token)).collect();
            let parent = self.names.last().copied().unwrap_or(BlockHash(self.salt.0));
            self.names.push(parent.next(self.fingerprint, &rows));
        }
    }

    pub(crate) fn names(&self) -> &[BlockHash] {
        &self.names
    }

    pub(crate) fn salt(&self) -> CacheSalt {
        self.salt
    }
}

/// Hashes blocks of tokens as their ids. In a block with embeddings, a mark of its kind precedes
/// each row, and an embedding is its own hash. Such a block hashes more bytes than one of tokens,
/// so no choice of rows makes both equal.
fn hash_rows(hash: &mut Sha256, block: &[InputRow<'_>]) {
    let marked = block.iter().any(|row| matches!(row, InputRow::Embedding(_)));
    for row in block {
        match row {
            InputRow::Token(token) => {
                if marked {
                    hash.update([0]);
                }
                hash.update(token.to_le_bytes());
            }
            InputRow::Embedding(elements) => {
                // Hashed alone, every embedding adds 32 bytes whatever its width, so that the
                // boundaries between rows are unambiguous.
                let mut own = Sha256::new();
                elements.iter().for_each(|element| own.update(element.to_le_bytes()));
                hash.update([1]);
                hash.update(own.finalize());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_full_blocks_have_names_and_a_name_stands_for_everything_before_it() {
        let tokens: Vec<u32> = (0..3 * KV_BLOCK as u32 + 5).collect();
        let hashes = block_hashes(7, &tokens);
        assert_eq!(hashes.len(), 3);
        assert_eq!(block_hashes(7, &tokens[..2 * KV_BLOCK + 63]), hashes[..2]);
        let mut other = tokens.clone();
        other[KV_BLOCK - 1] += 1;
        let changed = block_hashes(7, &other);
        assert!(
            hashes.iter().zip(&changed).all(|(a, b)| a != b),
            "a change in the first block changes all names"
        );
        other = tokens.clone();
        other[KV_BLOCK] += 1;
        let changed = block_hashes(7, &other);
        assert!(changed[0] == hashes[0] && changed[1] != hashes[1] && changed[2] != hashes[2]);
        assert_ne!(block_hashes(8, &tokens)[0], hashes[0], "another model");
        assert!(block_hashes(7, &[]).is_empty());
    }

    #[test]
    fn a_chain_names_as_it_grows_and_a_salt_changes_all_names() {
        let tokens: Vec<u32> = (0..3 * KV_BLOCK as u32 + 5).collect();
        let mut chain = HashChain::new(7, CacheSalt::SHARED);
        for len in [0, 10, KV_BLOCK, KV_BLOCK + 1, tokens.len()] {
            chain.extend_to(&tokens[..len]);
            assert_eq!(chain.names(), block_hashes(7, &tokens[..len]));
        }
        let mut salted = HashChain::new(7, CacheSalt::of(b"key"));
        salted.extend_to(&tokens);
        assert!(chain.names().iter().zip(salted.names()).all(|(a, b)| a != b));
    }

    #[test]
    fn embeddings_are_named_by_their_bits_and_never_as_tokens() {
        const WIDTH: usize = 3;
        let values: Vec<f32> = (0..2 * KV_BLOCK * WIDTH).map(|i| i as f32).collect();
        fn embeddings(values: &[f32]) -> InputRows<'_> {
            InputRows::Embeddings { values, width: WIDTH }
        }
        let hashes = block_hashes_of(7, &[embeddings(&values)]);
        assert_eq!(hashes.len(), 2);
        // The names do not depend on how rows are divided into parts.
        let (start, end) = values.split_at(10 * WIDTH);
        assert_eq!(block_hashes_of(7, &[embeddings(start), embeddings(end)]), hashes);
        let mut other = values.clone();
        other[KV_BLOCK * WIDTH] = -0.0;
        let zero = block_hashes_of(7, &[embeddings(&other)]);
        other[KV_BLOCK * WIDTH] = 0.0;
        assert!(zero[0] == hashes[0] && zero[1] != block_hashes_of(7, &[embeddings(&other)])[1]);
        // Embeddings of one element have as many bytes as tokens.
        let tokens: Vec<u32> = (0..KV_BLOCK as u32).collect();
        let same: Vec<f32> = tokens.iter().map(|token| f32::from_bits(*token)).collect();
        let narrow = block_hashes_of(7, &[InputRows::Embeddings { values: &same, width: 1 }]);
        assert_ne!(narrow, block_hashes(7, &tokens));
        // In a block of both, the order counts.
        let (few, one) = (&tokens[..KV_BLOCK - 1], &values[..WIDTH]);
        let mixed = block_hashes_of(7, &[InputRows::Tokens(few), embeddings(one)]);
        let turned = block_hashes_of(7, &[embeddings(one), InputRows::Tokens(few)]);
        assert!(mixed.len() == 1 && mixed != turned);
    }

    #[test]
    fn names_are_the_same_on_every_machine() {
        // sha256(fingerprint 1, sixteen zeros, tokens 0..64), little-endian; first 16 bytes
        let tokens: Vec<u32> = (0..64).collect();
        let BlockHash(hash) = block_hashes(1, &tokens)[0];
        let text: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(text, "71b04a9eb5a6a6a437061227fe5520b5");
    }
}
