//! Names of blocks by what they hold: the key of a prefix index, in memory or on disk.

use latent_backend::KV_BLOCK;
use sha2::{Digest, Sha256};

/// Names a full block of a model's KV cache by all tokens up to its end. Two blocks of one name hold the same rows, wherever they are: hashes of
/// 128 bits, cut from SHA-256, so that nobody can make two prompts whose blocks collide.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockHash(pub [u8; 16]);

/// The names of all full blocks of a sequence that begins with `tokens`. Each is made from the one before it and its own [`KV_BLOCK`] tokens;
/// `fingerprint` is the model's, with whatever else decides what rows hold, such as the cache's element type.
pub fn block_hashes(fingerprint: u64, tokens: &[u32]) -> Vec<BlockHash> {
    let mut parent = [0; 16];
    let named = |block: &[u32]| {
        let mut hash = Sha256::new();
        hash.update(fingerprint.to_le_bytes());
        hash.update(parent);
        block.iter().for_each(|token| hash.update(token.to_le_bytes()));
        parent.copy_from_slice(&hash.finalize()[..16]);
        BlockHash(parent)
    };
    tokens.chunks_exact(KV_BLOCK).map(named).collect()
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
    fn names_are_the_same_on_every_machine() {
        // sha256(fingerprint 1, sixteen zeros, tokens 0..64), little-endian; first 16 bytes
        let tokens: Vec<u32> = (0..64).collect();
        let BlockHash(hash) = block_hashes(1, &tokens)[0];
        let text: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(text, "71b04a9eb5a6a6a437061227fe5520b5");
    }
}
