//! Tests of the program `latent`, run as by a user.
#![allow(missing_docs, reason = "tests")]

mod bench_verify;
mod chat;
mod chat_url;
mod check;
mod constraints;
mod deploy;
mod diff;
#[cfg(unix)]
mod docs;
mod drafts;
mod drawing;
mod emit_c;
mod eval;
mod flag_effects;
mod flags;
#[cfg(target_os = "linux")]
mod full_disk;
mod gpu;
#[cfg(feature = "gpu")]
mod gpu_layers;
mod hub;
mod licenses;
mod lora;
mod misuse;
#[cfg(feature = "mpi")]
mod mpi;
#[cfg(feature = "mpi")]
mod mpi_commands;
#[cfg(feature = "mpi")]
mod mpi_restart;
#[cfg(unix)]
mod pack_cache;
mod pipes;
#[cfg(unix)]
mod private;
mod program;
mod prompts;
#[cfg(unix)]
mod pty;
#[cfg(unix)]
mod router;
mod self_test;
mod serve;
#[cfg(unix)]
mod streams;
mod support;
mod switching;
#[cfg(unix)]
mod terminal;
mod top;
mod truth;
mod tuned;
mod verify;
#[cfg(unix)]
mod written;
