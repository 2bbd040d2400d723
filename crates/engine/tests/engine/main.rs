//! The engine over its public interface.
#![allow(missing_docs, reason = "tests")]

mod adding_a_model;
mod bits;
mod circuits;
mod context_shift;
mod demo;
mod diff;
mod draft_steps;
mod drafts;
mod embeddings;
mod examples;
mod fixtures;
mod four_bit;
mod gguf_forms;
mod gpu;
mod gpu_demo;
mod gpu_offload;
mod hosts;
mod in_flight;
mod input_squares;
mod many;
mod offload;
mod packed;
mod recurrent;
mod reference;
mod scheduler;
mod scheduler_late;
mod scheduler_panics;
mod scheduler_prefix;
mod scheduler_random;
mod scheduler_states;
mod shapes;
mod shards;
mod sound;
mod support;
mod verify_rows;
