//! Tokenizers written in the form of another kind of file.

mod json;
mod lost_rules;
mod pre_name;
mod vocabulary;

pub use json::HfTokenizer;
pub use vocabulary::GgufTokenizer;
