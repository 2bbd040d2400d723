//! Locations of values in memory: base, and strides of rows and heads.

use crate::error::EmitError;
use latent_graph::Plan;
use latent_graph::ir::{RowCount, Value, ValueId, ValueStorage};
use latent_types::ValueType;

/// The memory that contains a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Memory {
    /// The arena, at this byte offset.
    Arena(usize),
    /// The residual stream.
    Hidden,
    /// The logits that the caller reads.
    Logits,
    /// Token ids of the step.
    Tokens,
}

/// The location of a value, in elements.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Address {
    pub(crate) memory: Memory,
    /// First element.
    pub(crate) offset: usize,
    /// Stride of rows.
    pub(crate) row: usize,
    /// Stride of heads.
    pub(crate) head: usize,
}

/// The address of a value of `plan`.
pub(crate) fn address(plan: &Plan, id: ValueId) -> Result<Address, EmitError> {
    let value = plan.ir.value(id);
    let whole = |memory| Address { memory, offset: 0, row: value.row_width(), head: value.width };
    match value.storage {
        ValueStorage::Tokens => Ok(whole(Memory::Tokens)),
        ValueStorage::Hidden => Ok(whole(Memory::Hidden)),
        ValueStorage::Logits => Ok(whole(Memory::Logits)),
        ValueStorage::Own => match plan.arena.offsets.get(id.0).copied().flatten() {
            Some(at) => Ok(whole(Memory::Arena(at))),
            None => Err(EmitError::internal(format!("{} has no offset in the arena", value.name))),
        },
        ValueStorage::View { of, offset } => {
            // Recursive, but only over views of one value, such as a split of an in-place sum.
            let (parent, within) = (plan.ir.value(of), address(plan, of)?);
            if value.heads == parent.heads {
                // With one head the stride is unused; the width lets it count as contiguous.
                let head = if value.heads == 1 { value.width } else { within.head };
                return Ok(Address { offset: within.offset + offset, head, ..within });
            }
            // The same row split into other heads. That needs heads without gaps between them.
            if offset == 0 && value.row_width() == parent.row_width() && is_contiguous(parent, within) {
                return Ok(Address { head: value.width, ..within });
            }
            Err(EmitError::internal(format!("{} is a view of other heads", value.name)))
        }
    }
}

/// The address of a value that an operation reads as `heads` × `width`.
pub(crate) fn address_as(plan: &Plan, id: ValueId, heads: usize, width: usize) -> Result<Address, EmitError> {
    let (value, at) = (plan.ir.value(id), address(plan, id)?);
    if value.dtype != ValueType::F32 || value.rows == RowCount::Times(0) {
        return Err(EmitError::internal(format!("{} is not a matrix of f32", value.name)));
    }
    if (value.heads, value.width) == (heads, width) {
        return Ok(at);
    }
    if heads.checked_mul(width) == Some(value.row_width()) && is_contiguous(value, at) {
        return Ok(Address { head: width, ..at });
    }
    Err(EmitError::internal(format!(
        "{} is taken as {heads} × {width}, but it is {} × {}",
        value.name, value.heads, value.width
    )))
}

fn is_contiguous(value: &Value, at: Address) -> bool {
    value.heads == 1 || at.head == value.width
}

impl Address {
    /// The expression of its first element.
    pub(crate) fn pointer(self) -> String {
        let base = match self.memory {
            Memory::Arena(at) => format!("AT(float, {at})"),
            Memory::Hidden => "m->hidden".to_owned(),
            Memory::Logits => "m->logits".to_owned(),
            Memory::Tokens => "s->tokens".to_owned(),
        };
        if self.offset == 0 { base } else { format!("{base} + {}", self.offset) }
    }

    /// The expression of a `struct value`.
    pub(crate) fn value(self) -> String {
        format!("{{{}, {}, {}}}", self.pointer(), self.row, self.head)
    }

    /// The location, for comments in the C code.
    pub(crate) fn shown(self) -> String {
        let base = match self.memory {
            // Arena offsets are in bytes, `offset` in elements of f32.
            Memory::Arena(at) => return format!("arena + {}", at + 4 * self.offset),
            Memory::Hidden => "residual stream",
            Memory::Logits => "logits",
            Memory::Tokens => "tokens",
        };
        if self.offset == 0 { base.to_owned() } else { format!("{base} + {}", 4 * self.offset) }
    }
}
