//! Tests of grammars through the public API.
#![allow(missing_docs, reason = "tests")]

mod answers_before_calls;
mod cache;
mod gbnf;
mod json;
mod masks;
#[path = "../support/mod.rs"]
mod support;
mod tools;
