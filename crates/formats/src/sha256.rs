//! SHA-256 (FIPS 180-4), for names of cached blocks and tokenizers. A dependency would bring seven
//! crates into every program.

/// The first 32 bits of the fractional parts of the cube roots of the first 64 primes.
const ROUND: [u32; 64] = [
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
];

/// The first 32 bits of the fractional parts of the square roots of the first eight primes.
const START: [u32; 8] =
    [0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19];

/// Bytes of a block.
const BLOCK: usize = 64;

/// An incremental hash.
///
/// ```
/// use latent_formats::Sha256;
/// let mut hash = Sha256::new();
/// hash.update("a");
/// hash.update(b"bc");
/// assert_eq!(hash.finalize()[..4], [0xba, 0x78, 0x16, 0xbf]);
/// ```
#[derive(Clone)]
pub struct Sha256 {
    state: [u32; 8],
    /// The incomplete last block.
    rest: [u8; BLOCK],
    filled: usize,
    bytes: u64,
}

impl Default for Sha256 {
    fn default() -> Sha256 {
        Sha256 { state: START, rest: [0; BLOCK], filled: 0, bytes: 0 }
    }
}

impl Sha256 {
    /// A hash of nothing so far.
    pub fn new() -> Sha256 {
        Sha256::default()
    }

    /// The hash of bytes.
    pub fn digest(bytes: impl AsRef<[u8]>) -> [u8; 32] {
        let mut hash = Sha256::new();
        hash.update(bytes);
        hash.finalize()
    }

    /// Adds bytes.
    pub fn update(&mut self, bytes: impl AsRef<[u8]>) {
        let mut bytes = bytes.as_ref();
        self.bytes = self.bytes.wrapping_add(bytes.len() as u64);
        if self.filled > 0 {
            let taken = bytes.len().min(BLOCK - self.filled);
            self.rest[self.filled..self.filled + taken].copy_from_slice(&bytes[..taken]);
            self.filled += taken;
            bytes = &bytes[taken..];
            if self.filled < BLOCK {
                return;
            }
            compress(&mut self.state, &self.rest);
            self.filled = 0;
        }
        let (blocks, rest) = bytes.as_chunks::<BLOCK>();
        blocks.iter().for_each(|block| compress(&mut self.state, block));
        self.rest[..rest.len()].copy_from_slice(rest);
        self.filled = rest.len();
    }

    /// The hash.
    pub fn finalize(mut self) -> [u8; 32] {
        // Taken first, because the padding below goes through `update`.
        let bits = self.bytes.wrapping_mul(8);
        self.update([0x80]);
        // The length in bits occupies the last eight bytes of a block.
        let zeros = (2 * BLOCK - 8 - self.filled) % BLOCK;
        self.update(&[0; BLOCK][..zeros]);
        self.update(bits.to_be_bytes());
        let mut out = [0; 32];
        for (out, word) in out.as_chunks_mut::<4>().0.iter_mut().zip(self.state) {
            *out = word.to_be_bytes();
        }
        out
    }
}

fn compress(state: &mut [u32; 8], block: &[u8; BLOCK]) {
    let mut words = [0u32; 64];
    for (word, bytes) in words.iter_mut().zip(block.as_chunks::<4>().0) {
        *word = u32::from_be_bytes(*bytes);
    }
    for i in 16..64 {
        // σ0 and σ1 of the standard.
        let (a, b) = (words[i - 15], words[i - 2]);
        let small = a.rotate_right(7) ^ a.rotate_right(18) ^ (a >> 3);
        let large = b.rotate_right(17) ^ b.rotate_right(19) ^ (b >> 10);
        words[i] = words[i - 16].wrapping_add(small).wrapping_add(words[i - 7]).wrapping_add(large);
    }
    let [mut a, mut b, mut c, mut d, mut e, mut f, mut g, mut h] = *state;
    for (word, round) in words.iter().zip(ROUND) {
        let sum = e.rotate_right(6) ^ e.rotate_right(11) ^ e.rotate_right(25);
        // Ch of the standard. `majority` below is Maj.
        let choice = (e & f) ^ (!e & g);
        let first = h.wrapping_add(sum).wrapping_add(choice).wrapping_add(round).wrapping_add(*word);
        let sum = a.rotate_right(2) ^ a.rotate_right(13) ^ a.rotate_right(22);
        let majority = (a & b) ^ (a & c) ^ (b & c);
        let second = sum.wrapping_add(majority);
        (h, g, f, e) = (g, f, e, d.wrapping_add(first));
        (d, c, b, a) = (c, b, a, first.wrapping_add(second));
    }
    for (state, word) in state.iter_mut().zip([a, b, c, d, e, f, g, h]) {
        *state = state.wrapping_add(word);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(bytes: impl AsRef<[u8]>) -> String {
        Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn the_vectors_of_the_standard() {
        for (text, expected) in [
            ("", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"),
            ("abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"),
            (
                "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
                "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1",
            ),
            (
                "abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmnhijklmnoijklmnopjklmnopqklmnopqrlmnopqrsmnopqrstnopqrstu",
                "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1",
            ),
        ] {
            assert_eq!(hex(text), expected, "{text}");
        }
        let million = "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0";
        assert_eq!(hex(vec![b'a'; 1_000_000]), million);
    }

    #[test]
    fn any_parts_have_the_hash_of_the_whole() {
        let bytes: Vec<u8> = (0..300u32).map(|i| (i * 7) as u8).collect();
        for length in 0..bytes.len() {
            for step in [1, 3, 55, 56, 63, 64, 65, 130] {
                let mut hash = Sha256::new();
                bytes[..length].chunks(step).for_each(|part| hash.update(part));
                assert_eq!(hash.finalize(), Sha256::digest(&bytes[..length]), "{length} by {step}");
            }
        }
    }
}
