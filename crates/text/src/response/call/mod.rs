//! Arguments of tool calls: from the text of any format to deltas of JSON.

mod arguments;
mod json;
mod name;
mod object;
mod schema;

pub(super) use arguments::{JsonArguments, ReadProgress};
pub(super) use json::{escape_into, quoted};
pub(super) use name::{MAX_NAME_BYTES, is_name, unescape};
pub use object::ObjectKeys;
pub(super) use object::{ObjectCalls, ObjectEvent};
pub(super) use schema::{ParameterType, ToolTypes, typed, undeclared};
