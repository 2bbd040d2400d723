//! Values of templates, and the operations of Python on them that need only a meter.

mod data;
mod elements;
mod entries;
mod equal;
mod input;
mod items;
mod methods;
mod order;

pub(crate) use data::{
    ContainerShape, Dict, Function, LoopState, Macro, Method, NamespaceObject, RangeBounds, Seq, SeqKind,
    UndefinedOrigin, Value,
};
pub(crate) use elements::contains;
pub(crate) use entries::DictBuilder;
pub(crate) use equal::equal;
pub(crate) use input::from_json;
pub(crate) use items::SeqBuilder;
pub(crate) use methods::{changes_receiver, method_of};
pub(crate) use order::{compare, less, sort_by};
