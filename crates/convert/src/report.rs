//! The result of a conversion.

use std::collections::BTreeMap;
use std::path::PathBuf;

/// What a conversion did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConversionReport {
    /// The written files. The first one is the one to open.
    pub files: Vec<PathBuf>,
    pub bytes: u64,
    pub tensors: usize,
    /// Notes for the user, one sentence each: what the new files lack, and other remarks.
    pub notes: Vec<String>,
}

impl ConversionReport {
    /// Adds a note per reason for omitted tensors.
    pub(crate) fn dropped(&mut self, dropped: &[(String, String)]) {
        let mut reasons: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for (tensor, why) in dropped {
            reasons.entry(why).or_default().push(tensor);
        }
        for (why, tensors) in reasons {
            let more =
                if tensors.len() > 1 { format!(" and {} more", tensors.len() - 1) } else { String::new() };
            self.notes.push(format!("omitted {}{more}: {why}", tensors[0]));
        }
    }
}
