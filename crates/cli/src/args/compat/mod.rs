//! Flags and environment variables of other servers, and their meaning for `latent serve`.
//!
//! Each server has a table. The parser reads it, and docs/switching.md and tests are generated from
//! it.

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
