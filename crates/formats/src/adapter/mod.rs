//! LoRA adapters: files with pairs of low-rank matrices for tensors of a base model, in the form of llama.cpp (GGUF) or of PEFT (a folder).

mod file;
mod gguf;
mod open;
mod peft;

pub use file::{AdapterFile, LowRankPair};
pub use peft::peft_module;
