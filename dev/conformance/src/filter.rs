//! Selection of cases and kernels by words.

use crate::backend::CaseKernel;

/// Selects kernels by a level, and by words that must all occur in the name of the kernel or of the
/// case (case-insensitive).
#[derive(Clone, Debug, Default)]
pub struct KernelFilter {
    words: Vec<String>,
    level: Option<String>,
}

impl KernelFilter {
    /// Creates a filter from words. Each string may contain several, separated by spaces.
    pub fn new(words: &[String]) -> KernelFilter {
        let words = words.iter().flat_map(|word| word.split_whitespace()).map(str::to_lowercase).collect();
        KernelFilter { words, level: None }
    }

    /// Only kernels compiled for `level`.
    #[must_use]
    pub fn level(mut self, level: &str) -> KernelFilter {
        self.level = Some(level.to_owned());
        self
    }

    /// Whether a case on this kernel passes the filter.
    pub fn lets(&self, kernel: &CaseKernel, case: &str) -> bool {
        let (name, case) = (kernel.name.to_lowercase(), case.to_lowercase());
        self.level.as_ref().is_none_or(|level| level == kernel.level)
            && self.words.iter().all(|word| name.contains(word) || case.contains(word))
    }

    /// Whether a case passes the filter on any kernel.
    pub fn lets_case(&self, case: &str) -> bool {
        let case = case.to_lowercase();
        self.level.is_none() && self.words.iter().all(|word| case.contains(word))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_must_occur_in_the_kernel_or_the_case() {
        let kernel = CaseKernel { name: "avx2_q4_k_tiles_a8".into(), level: "avx2", missing: None, id: 0 };
        let lets = |words: &[&str]| {
            let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
            KernelFilter::new(&words).lets(&kernel, "linear(Q4_K, tiles, a8, m=1, k=256, n=37)")
        };
        assert!(lets(&[]) && lets(&["Q4_K m=1"]) && lets(&["avx2", "LINEAR"]));
        assert!(!lets(&["avx512"]) && !lets(&["q4_k", "m=2"]));
        assert!(!KernelFilter::default().level("portable").lets(&kernel, ""));
        assert!(
            KernelFilter::default().lets_case("x") && !KernelFilter::default().level("avx2").lets_case("x")
        );
    }
}
