//! The supported APIs. Each parses its requests into items and parameters, and encodes answers in
//! its own format.

pub(crate) mod anthropic;
mod content;
mod infill;
pub(crate) mod llama_cpp;
pub(crate) mod model_events;
pub(crate) mod models;
pub(crate) mod ollama;
pub(crate) mod openai_chat;
pub(crate) mod openai_completions;
pub(crate) mod openai_embeddings;
pub(crate) mod openai_responses;
mod prepare;
