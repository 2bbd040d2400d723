//! Configurations of models over the public interface.
#![allow(missing_docs, reason = "tests")]

mod config_fixtures;
mod config_lies;
mod config_models;
#[path = "../config_support/mod.rs"]
mod config_support;
mod config_traps;
