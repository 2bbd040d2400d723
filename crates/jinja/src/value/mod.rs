//! What a template computes with, and what Python does with it that needs nothing of a rendering but its meter.

mod data;
mod elements;
mod entries;
mod equal;
mod input;
mod items;
mod methods;
mod order;

pub(crate) use data::{Dict, Function, LoopState, Macro, Method, Missing, Seq, SeqKind, Shape, Space, Value};
pub(crate) use elements::contains;
pub(crate) use entries::Entries;
pub(crate) use equal::equal;
pub(crate) use input::from_json;
pub(crate) use items::Items;
pub(crate) use methods::{changes_receiver, method_of};
pub(crate) use order::{compare, less, sort_by};
