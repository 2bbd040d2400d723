//! A repository of the hub.

use std::fmt;

/// A repository of models on the hub.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Repo {
    /// The user or organisation.
    pub owner: String,
    /// The name.
    pub name: String,
}

impl Repo {
    /// Checks owner and name, which become names of folders in the cache.
    pub(crate) fn check(&self) -> Result<(), &'static str> {
        let plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        for part in [&self.owner, &self.name] {
            let ends = |c: char| part.starts_with(c) || part.ends_with(c);
            if part.is_empty()
                || part.len() > 96
                || !part.chars().all(plain)
                || ends('.')
                || part.contains("..")
            {
                return Err(
                    "OWNER and NAME can contain letters, digits and . _ -, but must not begin or end with a \
                     dot",
                );
            }
        }
        Ok(())
    }
}

impl fmt::Display for Repo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.owner, self.name)
    }
}
