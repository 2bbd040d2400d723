//! The server over real connections, with the demo model.
#![allow(missing_docs, reason = "tests")]

mod agents;
mod anthropic;
mod auth;
mod chat;
mod checked;
mod client;
mod crowds;
mod deadlines;
mod defaults;
mod errors;
mod generation;
mod hostile;
mod infill;
mod kimi_k3;
mod life;
mod llama_cpp;
mod loading;
mod lora;
mod lost;
mod models;
mod ollama;
mod openapi;
mod overflow;
mod parts;
mod plain;
mod reasoning;
mod recurrent;
mod responses;
mod router;
mod slots;
#[cfg(feature = "otel")]
mod spans;
mod streams;
mod support;
#[cfg(feature = "tls")]
mod tls;
mod truncated;
#[path = "../../../grammar/tests/support/mod.rs"]
mod vocabularies;
