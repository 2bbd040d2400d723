//! File types (mixes): their names, and the type that most tensors get.

use latent_types::TensorType::{self, *};

/// A file type, identified by its number in `general.file_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mix {
    name: &'static str,
    id: u32,
    base: TensorType,
}

/// Name, number and base type of llama.cpp's file types. Names with equal numbers are aliases.
const MIXES: [(&str, u32, TensorType); 36] = [
    ("F32", 0, F32),
    ("F16", 1, F16),
    ("BF16", 32, BF16),
    ("Q4_0", 2, Q4_0),
    ("Q4_1", 3, Q4_1),
    ("Q5_0", 8, Q5_0),
    ("Q5_1", 9, Q5_1),
    ("Q8_0", 7, Q8_0),
    ("Q2_K", 10, Q2_K),
    ("Q2_K_S", 21, Q2_K),
    ("Q3_K", 12, Q3_K),
    ("Q3_K_S", 11, Q3_K),
    ("Q3_K_M", 12, Q3_K),
    ("Q3_K_L", 13, Q3_K),
    ("Q4_K", 15, Q4_K),
    ("Q4_K_S", 14, Q4_K),
    ("Q4_K_M", 15, Q4_K),
    ("Q5_K", 17, Q5_K),
    ("Q5_K_S", 16, Q5_K),
    ("Q5_K_M", 17, Q5_K),
    ("Q6_K", 18, Q6_K),
    ("IQ1_S", 24, IQ1_S),
    ("IQ1_M", 31, IQ1_M),
    ("IQ2_XXS", 19, IQ2_XXS),
    ("IQ2_XS", 20, IQ2_XS),
    // Not a mistake: llama.cpp bases IQ2_S on IQ2_XS, IQ2_M on IQ2_S, and IQ3_XS on IQ3_S. Rules
    // raise the type of some tensors.
    ("IQ2_S", 28, IQ2_XS),
    ("IQ2_M", 29, IQ2_S),
    ("IQ3_XXS", 23, IQ3_XXS),
    ("IQ3_XS", 22, IQ3_S),
    ("IQ3_S", 26, IQ3_S),
    ("IQ3_M", 27, IQ3_S),
    ("IQ4_NL", 25, IQ4_NL),
    ("IQ4_XS", 30, IQ4_XS),
    ("TQ1_0", 36, TQ1_0),
    ("TQ2_0", 37, TQ2_0),
    ("MXFP4_MOE", 38, MXFP4),
];

impl Mix {
    /// Finds a mix by name, ignoring case.
    pub fn from_name(name: &str) -> Option<Mix> {
        let row = MIXES.iter().find(|row| row.0.eq_ignore_ascii_case(name))?;
        Some(Mix { name: row.0, id: row.1, base: row.2 })
    }

    /// Finds a mix by its number in `general.file_type`. Of several names it takes the longest
    /// (`Q4_K_M`).
    pub fn from_id(id: u32) -> Option<Mix> {
        let row = MIXES.iter().filter(|row| row.1 == id).max_by_key(|row| row.0.len())?;
        Some(Mix { name: row.0, id, base: row.2 })
    }

    pub fn names() -> impl Iterator<Item = &'static str> {
        MIXES.iter().map(|row| row.0)
    }

    /// The name by which it was found: `Q4_K` and `Q4_K_M` are the same mix.
    pub fn name(self) -> &'static str {
        self.name
    }

    /// Its number in `general.file_type`.
    pub fn id(self) -> u32 {
        self.id
    }

    /// Type of tensors without a special rule.
    pub fn base(self) -> TensorType {
        self.base
    }

    /// Whether it is one of the named mixes.
    pub(crate) fn is(self, names: &[&str]) -> bool {
        names.iter().any(|name| Mix::from_name(name).is_some_and(|mix| mix.id == self.id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_in_any_case_and_aliases_are_the_same_mix() {
        assert_eq!(Mix::from_name("q4_k").unwrap().id(), Mix::from_name("Q4_K_M").unwrap().id());
        assert_eq!(Mix::from_name("iq2_s").unwrap().base(), IQ2_XS);
        assert_eq!(Mix::from_id(15).unwrap().name(), "Q4_K_M");
        assert_eq!(Mix::from_id(2).unwrap().name(), "Q4_0");
        assert!(Mix::from_id(1024).is_none());
        assert!(Mix::from_name("Q4").is_none());
        assert!(Mix::from_name("Q5_K_M").unwrap().is(&["Q4_K_M", "Q5_K"]));
    }
}
