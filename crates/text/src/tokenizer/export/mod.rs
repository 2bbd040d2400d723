//! Conversion of tokenizers between kinds of files.

mod json;
mod lost_rules;
mod pre_name;
mod vocabulary;

pub use json::HfTokenizer;
pub use vocabulary::GgufTokenizer;
