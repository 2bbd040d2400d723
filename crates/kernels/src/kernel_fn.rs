//! The functions that the table of kernels points to.

use crate::attention::{AttendExpandedFn, AttendFn, ExpandKeysFn};
use crate::elementwise::ElementwiseFn;
use crate::matmul::MatmulFn;

/// A kernel's function, by signature.
#[derive(Clone, Copy)]
pub enum KernelFn {
    /// y = x · Wᵀ.
    Matmul(MatmulFn),
    /// y = x · W: the weight is stored transposed.
    MatmulT(MatmulFn),
    /// MLA decode attention in latent space.
    AttendLatent(AttendFn),
    /// MLA decode attention with separate scores.
    AttendSeparate(AttendFn),
    /// MLA prefill attention over expanded f32 keys and values.
    AttendExpanded(AttendExpandedFn),
    /// Expansion of latents to f32 keys.
    ExpandKeys(ExpandKeysFn),
    /// MLA prefill attention over expanded f16 keys and values.
    PrefillAttnF16(AttendExpandedFn<half::f16>),
    /// Expansion of latents to f16 keys.
    ExpandKeysF16(ExpandKeysFn<half::f16>),
    /// MLA prefill attention over expanded bf16 keys and values.
    PrefillAttnBf16(AttendExpandedFn<half::bf16>),
    /// Expansion of latents to bf16 keys.
    ExpandKeysBf16(ExpandKeysFn<half::bf16>),
    /// An elementwise operation on a row.
    Elementwise {
        /// The function.
        kernel: ElementwiseFn,
        /// The input of the operation, counted from 0, that the function overwrites.
        overwrites: usize,
    },
    /// One of this crate's row-wise functions, which backends call by name.
    Plain,
}
