//! Expected hashes of files.

use ring::digest::{Context, SHA1_FOR_LEGACY_USE_ONLY, SHA256};
use serde::{Deserialize, Serialize};
use std::fmt;

/// The expected hash of a file, in lowercase hexadecimal digits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Digest {
    /// Large files: SHA-256 of the bytes.
    Sha256(String),
    /// Small files, which are stored in git itself: SHA-1 of git's header and the bytes.
    Git(String),
}

fn hex(text: &str, digits: usize) -> Option<String> {
    let text = text.trim().trim_matches('"');
    let text = text.strip_prefix("sha256:").unwrap_or(text);
    (text.len() == digits && text.bytes().all(|b| b.is_ascii_hexdigit())).then(|| text.to_ascii_lowercase())
}

impl Digest {
    /// Parses 64 digits, which may be quoted.
    pub(crate) fn sha256(text: &str) -> Option<Digest> {
        hex(text, 64).map(Digest::Sha256)
    }

    /// Parses 40 digits.
    pub(crate) fn git(text: &str) -> Option<Digest> {
        hex(text, 40).map(Digest::Git)
    }

    /// The digits, for file names.
    pub(crate) fn digits(&self) -> &str {
        match self {
            Digest::Sha256(digits) | Digest::Git(digits) => digits,
        }
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Digest::Sha256(digits) => write!(f, "sha256:{digits}"),
            Digest::Git(digits) => write!(f, "git:{digits}"),
        }
    }
}

/// Whether a text is the hash of a commit. Only such texts become names of folders, so a server
/// cannot choose a path.
pub(crate) fn is_commit(text: &str) -> bool {
    text.len() == 40 && text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
}

/// An incremental hash of a file.
pub(crate) struct Hasher {
    context: Context,
    git: bool,
}

impl Hasher {
    /// A hasher for a file of `size` bytes with the expected `digest`.
    pub(crate) fn new(digest: Option<&Digest>, size: u64) -> Hasher {
        let git = matches!(digest, Some(Digest::Git(_)));
        let mut context = Context::new(if git { &SHA1_FOR_LEGACY_USE_ONLY } else { &SHA256 });
        // The header of git's blob objects.
        if git {
            context.update(format!("blob {size}\0").as_bytes());
        }
        Hasher { context, git }
    }

    pub(crate) fn update(&mut self, bytes: &[u8]) {
        self.context.update(bytes);
    }

    /// The digest of the bytes so far.
    pub(crate) fn finish(self) -> Digest {
        let bytes = self.context.finish();
        let digits = bytes.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        if self.git { Digest::Git(digits) } else { Digest::Sha256(digits) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_values() {
        // `git hash-object` and `sha256sum` of "hello\n".
        let git = Digest::git("ce013625030ba8dba906f756967f9e9ca394464a").unwrap();
        let sha =
            Digest::sha256("\"5891B5B522D5DF086D0FF0B110FBD9D21BB4FC7163AF34D08286A2E846F6BE03\"").unwrap();
        for digest in [&git, &sha] {
            let mut hasher = Hasher::new(Some(digest), 6);
            hasher.update(b"hel");
            hasher.update(b"lo\n");
            assert_eq!(hasher.finish(), *digest);
        }
        assert!(Digest::sha256("../../x").is_none() && Digest::git("").is_none());
        assert!(is_commit(&"0a".repeat(20)) && !is_commit(&"0A".repeat(20)) && !is_commit("main"));
    }
}
