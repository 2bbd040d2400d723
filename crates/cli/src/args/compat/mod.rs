//! Flags and variables of other servers, and what they mean to `latent serve`.
//!
//! Each server has one table. The parser reads it, and docs/switching.md and the tests are made from it.

mod flag;
mod llama_server;
mod preset;
mod table;
mod translate;
mod values;
mod vllm;

pub(crate) use preset::{Preset, PresetOption, PresetScope, PresetSection, sections as preset_sections};
pub use table::{CompatRow, rows};
pub(super) use translate::{Environment, VariableFlag, translate, with_environment};
