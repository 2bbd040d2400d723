//! Salts that isolate the cached prefixes of tenants.

use latent_backend::AdapterScales;
use latent_formats::Sha256;

/// Isolates the prefixes of different tenants. Only jobs with the salt that a block was cached with
/// find it, so that response times do not reveal other tenants' prompts. Jobs without a salt share
/// the default one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CacheSalt(pub [u8; 16]);

impl CacheSalt {
    /// The salt of jobs without a salt of their own.
    pub const SHARED: CacheSalt = CacheSalt([0; 16]);

    /// The salt of a secret, such as an API key. The secret cannot be computed from the salt.
    pub fn of(secret: &[u8]) -> CacheSalt {
        let mut hash = Sha256::new();
        // Domain separation: the salt equals no other hash of the key.
        hash.update(b"latent cache salt");
        hash.update(secret);
        let mut salt = [0; 16];
        salt.copy_from_slice(&hash.finalize()[..16]);
        CacheSalt(salt)
    }

    /// The salt of the same tenant for rows with these scales of the model's adapters. Without
    /// scales, it is unchanged.
    #[must_use]
    pub fn with_adapters(self, scales: Option<&AdapterScales>) -> CacheSalt {
        let Some(scales) = scales else { return self };
        let bits = scales.as_slice().iter().flat_map(|scale| scale.to_bits().to_le_bytes());
        CacheSalt::of(&self.0.into_iter().chain(*b"adapters").chain(bits).collect::<Vec<u8>>())
    }
}
