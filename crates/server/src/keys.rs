//! API keys: stored as hashes, compared in constant time, never logged.

use latent_engine::cache::CacheSalt;
use latent_engine::scheduler::FairnessKey;
use sha2::{Digest, Sha256};
use subtle::{Choice, ConditionallySelectable, ConstantTimeEq};

/// The accepted API keys. If empty, no key is required.
#[derive(Clone, Default)]
pub struct ApiKeys {
    keys: Vec<ApiKey>,
}

#[derive(Clone)]
struct ApiKey {
    hash: [u8; 32],
    salt: CacheSalt,
}

impl std::fmt::Debug for ApiKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // `ServerConfig` derives `Debug`. The hashes must not be printed: short keys could be
        // guessed from them.
        write!(f, "{} keys", self.keys.len())
    }
}

/// The authenticated tenant: its prefix-cache salt and its fairness key.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tenant {
    pub(crate) salt: CacheSalt,
    pub(crate) key: FairnessKey,
}

/// Minimum length of a key in bytes.
const MIN_BYTES: usize = 8;

/// Errors of [`ApiKeys::parse`].
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The key is too short.
    #[error("line {line}: a key of {bytes} bytes is too short; use at least {MIN_BYTES}")]
    Short { line: usize, bytes: usize },
    /// The key cannot be sent in a header.
    #[error("line {line}: a key must consist of visible ASCII characters without spaces")]
    Characters { line: usize },
    /// The text has no key.
    #[error("it contains no key: one per line; lines that begin with # are comments")]
    Empty,
}

impl ApiKeys {
    /// Parses keys, one per line. Empty lines and lines that begin with `#` are skipped.
    pub fn parse(text: &str) -> Result<ApiKeys, KeyError> {
        let mut keys = ApiKeys::default();
        for (i, line) in text.lines().enumerate() {
            let (line, key) = (i + 1, line.trim());
            if key.is_empty() || key.starts_with('#') {
                continue;
            }
            if !key.bytes().all(|byte| byte.is_ascii_graphic()) {
                return Err(KeyError::Characters { line });
            }
            if key.len() < MIN_BYTES {
                return Err(KeyError::Short { line, bytes: key.len() });
            }
            // Hashes have one length, so that a comparison does not reveal the length of a key.
            keys.keys.push(ApiKey { hash: Sha256::digest(key).into(), salt: CacheSalt::of(key.as_bytes()) });
        }
        if keys.keys.is_empty() { Err(KeyError::Empty) } else { Ok(keys) }
    }

    /// Whether no key is required.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// The tenant of a key.
    pub(crate) fn tenant(&self, key: &[u8], share_prefixes: bool) -> Option<Tenant> {
        // All keys are compared, without an early exit, so that the time reveals neither a prefix
        // of a key nor its position.
        let hash: [u8; 32] = Sha256::digest(key).into();
        let (mut found, mut at) = (Choice::from(0), 0u64);
        for (i, key) in self.keys.iter().enumerate() {
            let same = hash.ct_eq(&key.hash);
            at.conditional_assign(&(i as u64), same);
            found |= same;
        }
        let own = self.keys.get(usize::try_from(at).ok()?).filter(|_| bool::from(found))?;
        let salt = if share_prefixes { CacheSalt::SHARED } else { own.salt };
        // 0 is the tenant of servers without keys.
        Some(Tenant { salt, key: FairnessKey(at + 1) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_key_has_its_tenant() {
        let keys = ApiKeys::parse("# ours\nsecret-number-1\n\n secret-number-2 \n").unwrap();
        let one = keys.tenant(b"secret-number-1", false).unwrap();
        let two = keys.tenant(b"secret-number-2", false).unwrap();
        assert_ne!((one.salt, one.key), (two.salt, two.key));
        assert_eq!(keys.tenant(b"secret-number-1", true).unwrap().salt, CacheSalt::SHARED);
        for wrong in [&b"secret-number-"[..], b"", b"secret-number-11", b"# ours"] {
            assert!(keys.tenant(wrong, false).is_none());
        }
        assert!(!format!("{keys:?}").contains("secret"));
        for wrong in ["", "# only\n", "short", "with blank inside", "schlüssel-lang"] {
            assert!(ApiKeys::parse(wrong).is_err(), "{wrong}");
        }
    }
}
