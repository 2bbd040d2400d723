//! Tests of tokenizers, templates and parsers through the public API.
#![allow(missing_docs, reason = "tests")]

mod components;
mod control;
mod dates;
mod demo;
mod exported;
mod response;
mod sentence_piece;
mod support;
mod tekken;
mod templates;
mod tiktoken;
mod tokenizer_files;
mod vocabularies;
