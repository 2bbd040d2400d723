//! A worker for NVIDIA Dynamo: Latent's engine behind `LLMEngine` of dynamo-backend-common, so that
//! Dynamo's frontend finds replicas of a model, sends each prompt to the one that has most of it in
//! its cache, and lets another answer where one is gone. See README.md.
//!
//! * `options.rs`: what the command line says; `load.rs`: the model; `card.rs`: what the frontend
//!   needs of it.
//! * `engine.rs`: the trait; `stream.rs`: one answer as it is sent; `handle.rs`: cancelling it.
//! * `request.rs`, `sampling.rs`, `guided.rs`, `limits.rs`: Dynamo's request as a job of the
//!   scheduler.
//! * `worker.rs`: the thread that owns the scheduler; `kv_events.rs`, `load_report.rs`: what it
//!   tells the router.

mod card;
mod engine;
mod error;
mod guided;
mod handle;
mod kv_events;
mod limits;
mod load;
mod load_report;
mod options;
mod request;
mod sampling;
mod stream;
mod worker;

pub use card::card;
pub use engine::LatentEngine;
pub use options::Options;
pub use worker::Hook;
