//! The result of a conversion.

use std::collections::BTreeMap;
use std::path::PathBuf;

/// What a conversion did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConversionReport {
    /// The files that were written, the one to open first.
    pub files: Vec<PathBuf>,
    pub bytes: u64,
    pub tensors: usize,
    /// What the new files do not have, and what else a user should know: a sentence each.
    pub notes: Vec<String>,
}

impl ConversionReport {
    /// Notes tensors that were left out, those of one reason together.
    pub(crate) fn dropped(&mut self, dropped: &[(String, String)]) {
        let mut reasons: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for (tensor, why) in dropped {
            reasons.entry(why).or_default().push(tensor);
        }
        for (why, tensors) in reasons {
            let more =
                if tensors.len() > 1 { format!(" and {} more", tensors.len() - 1) } else { String::new() };
            self.notes.push(format!("left out {}{more}: {why}", tensors[0]));
        }
    }
}
