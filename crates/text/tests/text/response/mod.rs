//! Parsing of responses: every family's form, the checkpoint's own templates, round trips through
//! real chat templates, and the promise that any pieces give what the whole gives.

mod cases;
mod choosing;
mod pieces;
mod round_trips;
mod support;
