//! Rules that give single tensors of a random model another type.

use crate::error::TestingError;
use latent_types::TensorType;
use std::str::FromStr;

/// A type for all tensors whose names contain a pattern: `ffn_down_exps=Q6_K`, `blk.2.*shexp=Q5_K`.
/// A `*` matches any text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TypeRule {
    pub pattern: String,
    pub ty: TensorType,
}

impl TypeRule {
    /// Whether the name contains the pattern.
    pub fn matches(&self, name: &str) -> bool {
        let mut rest = name;
        self.pattern.split('*').all(|part| match rest.find(part) {
            // Taking the first occurrence of each part suffices: it leaves the most text for the
            // parts that follow.
            Some(at) => {
                rest = &rest[at + part.len()..];
                true
            }
            None => false,
        })
    }
}

impl FromStr for TypeRule {
    type Err = TestingError;

    fn from_str(word: &str) -> Result<TypeRule, TestingError> {
        let wrong = || TestingError::TypeRule { word: word.to_owned() };
        let (pattern, ty) = word.split_once('=').ok_or_else(wrong)?;
        let ty =
            TensorType::from_name(ty).ok().filter(|ty| latent_quant::can_encode(*ty)).ok_or_else(wrong)?;
        if pattern.is_empty() { Err(wrong()) } else { Ok(TypeRule { pattern: pattern.to_owned(), ty }) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_anywhere_in_a_name() {
        let rule: TypeRule = "blk.2.*shexp=q5_k".parse().unwrap();
        assert_eq!(rule.ty, TensorType::Q5_K);
        for (name, matches) in [
            ("blk.2.ffn_up_shexp.weight", true),
            ("blk.12.ffn_up_shexp.weight", false),
            ("blk.2.ffn_up_exps.weight", false),
            ("shexp.blk.2.", false),
        ] {
            assert_eq!(rule.matches(name), matches, "{name}");
        }
        for wrong in ["ffn_up", "=Q4_K", "ffn_up=Q9", "ffn_up=I32"] {
            assert!(wrong.parse::<TypeRule>().unwrap_err().to_string().contains("PATTERN=TYPE"), "{wrong}");
        }
    }
}
