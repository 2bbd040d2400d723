//! The kernels that run on this machine.

use crate::backend::{Backend, Kernel};
use crate::case::{Case, Family};
use crate::filter::Filter;
use serde::Serialize;
use std::collections::HashMap;

/// An operation with its formats, and the kernels that compute it.
#[derive(Clone, Debug, Serialize)]
pub struct Support {
    /// The operation.
    #[serde(flatten)]
    pub family: Family,
    /// Its kernels.
    pub kernels: Vec<Supporting>,
}

/// A kernel that computes an operation.
#[derive(Clone, Debug, Serialize)]
pub struct Supporting {
    /// Its name.
    pub kernel: String,
    /// Level that it is compiled for.
    pub level: &'static str,
    /// The features that this machine lacks for it.
    pub missing: Option<String>,
}

/// Every operation of `cases` that `filter` lets through, with its kernels, if any.
pub fn support(backend: &dyn Backend, cases: &[Case], filter: &Filter) -> Vec<Support> {
    let kernels = backend.kernels();
    let mut found: Vec<Support> = Vec::new();
    let mut place: HashMap<Family, usize> = HashMap::new();
    for case in cases {
        let (family, name) = (case.family(), case.name());
        let serving: Vec<&Kernel> = kernels.iter().filter(|kernel| backend.serves(kernel, case)).collect();
        if !filter.lets_case(&name) && !serving.iter().any(|kernel| filter.lets(kernel, &name)) {
            continue;
        }
        let at = *place.entry(family.clone()).or_insert_with(|| {
            found.push(Support { family, kernels: Vec::new() });
            found.len() - 1
        });
        for kernel in serving.into_iter().filter(|kernel| filter.lets(kernel, &name)) {
            if found[at].kernels.iter().all(|other| other.kernel != kernel.name) {
                found[at].kernels.push(Supporting {
                    kernel: kernel.name.clone(),
                    level: kernel.level,
                    missing: kernel.missing.clone(),
                });
            }
        }
    }
    found
}
