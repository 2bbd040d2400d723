//! The functions that the table of kernels points to.

use crate::attention::{AttendExpandedFn, AttendFn, ExpandKeysFn};
use crate::matmul::MatmulFn;

/// A kernel, typed by what it does. Operations without a function here have one form, called directly.
#[derive(Clone, Copy)]
pub enum KernelFn {
    /// A matmul with a weight of `[outputs, inputs]`.
    Matmul(MatmulFn),
    /// A matmul with a transposed weight.
    MatmulT(MatmulFn),
    /// MLA decode over cached latents.
    AttendLatent(AttendFn),
    /// The same with separate scores of content and RoPE.
    AttendSeparate(AttendFn),
    /// Prefill attention over expanded keys and values of f32.
    AttendExpanded(AttendExpandedFn),
    /// Expansion of keys from latents.
    ExpandKeys(ExpandKeysFn),
    /// Prefill attention over expanded keys and values of f16.
    PrefillAttnF16(AttendExpandedFn<half::f16>),
    /// Expansion of their keys.
    ExpandKeysF16(ExpandKeysFn<half::f16>),
    /// Prefill attention over expanded keys and values of bf16.
    PrefillAttnBf16(AttendExpandedFn<half::bf16>),
    /// Expansion of their keys.
    ExpandKeysBf16(ExpandKeysFn<half::bf16>),
    /// A plain function of this crate.
    Plain,
}
