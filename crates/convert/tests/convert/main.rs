//! Tests of conversions through the public API.
#![allow(missing_docs, reason = "tests")]

mod conversions;
mod merges;
mod mixes;
mod quantize;
mod refusals;
mod round_trips;
mod support;
