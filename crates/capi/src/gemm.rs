//! FP4 and INT4 GEMM on the CPU.

use crate::border::{self, guarded};
use crate::error::{latent_error, latent_status};
use crate::sized::{self, SizedStruct};
use crate::values::fits;
use crate::weight::{latent_quant_type, latent_weight};
use latent::{Error, GemmHandle, GemmOptions};
use latent_marlin::half::slice::HalfBitsSliceExt;
use latent_marlin::{Input, Packed, Shape};
use std::ffi::{c_char, c_void};

/// A thread pool with workspace for matrix products with 4-bit weights. Create it with
/// latent_gemm_new and release it with latent_gemm_free.
///
/// Several threads may use it at the same time. Their calls run one after the other.
pub struct latent_gemm(GemmHandle);

/// Element type of an input array.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum latent_input_type {
    /// 32-bit float, as float.
    LATENT_INPUT_F32 = 0,
    /// IEEE half precision, as uint16_t.
    LATENT_INPUT_F16 = 1,
    /// bfloat16, as uint16_t.
    LATENT_INPUT_BF16 = 2,
}

/// Options that override the automatic choice of a kernel. A field that is 0 or NULL leaves the
/// choice to the library: `latent_gemm_options options = {sizeof options};`
#[repr(C)]
#[derive(Clone, Copy)]
pub struct latent_gemm_options {
    /// sizeof(latent_gemm_options).
    pub size: usize,
    /// Kernel: "auto", "gemm", "fused" or "striped". NULL: "auto", which depends on the shape.
    pub kernel: *const c_char,
    /// Precision of the inputs: "bf16", "int8", or "auto" to keep their own. NULL: "auto". On a
    /// GPU, only "auto" is supported.
    pub activations: *const c_char,
    /// Instruction set: "auto", "portable", "avx2", "avx512" or "amx". NULL: "auto". On a GPU, only
    /// "auto" is supported.
    pub isa: *const c_char,
    /// Number of slices of K, from 1 to k / 8. A value other than 0 selects the striped kernel. 0:
    /// depends on the shape.
    pub parallel: u32,
}

// SAFETY: it begins with `size`, and has integers and pointers only
unsafe impl SizedStruct for latent_gemm_options {
    const NAME: &str = "latent_gemm_options";
}

impl latent_gemm_options {
    pub(crate) const NONE: latent_gemm_options = latent_gemm_options {
        size: size_of::<latent_gemm_options>(),
        kernel: std::ptr::null(),
        activations: std::ptr::null(),
        isa: std::ptr::null(),
        parallel: 0,
    };

    /// Validates the options and copies them.
    ///
    /// # Safety
    /// Each string pointer is NULL or points to a NUL-terminated string.
    pub(crate) unsafe fn read(&self) -> Result<GemmOptions, Error> {
        let mut options = GemmOptions::default();
        for (name, word) in [("kernel", self.kernel), ("activations", self.activations), ("isa", self.isa)] {
            // SAFETY: as the caller promises
            if let Some(word) = unsafe { border::word(word, name) }? {
                options.set(name, word)?;
            }
        }
        if self.parallel > 0 {
            options.stripe(self.parallel as usize);
        }
        Ok(options)
    }
}

/// Creates a thread pool for matrix products.
///
/// - `threads`: number of threads. 0: one per core that CPU affinity and cgroup quotas allow this
///   process.
/// - `gemm`: receives the pool, or NULL if the call fails. The caller must release it with
///   latent_gemm_free.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn latent_gemm_new(
    threads: u32,
    gemm: *mut *mut latent_gemm,
    error: *mut *mut latent_error,
) -> latent_status {
    // SAFETY: pointers are as the header says
    unsafe {
        guarded(error, || {
            border::hand_out(gemm, "gemm", || {
                let started = GemmHandle::new(threads as usize)?;
                Ok(latent_gemm(started))
            })
        })
    }
}

/// Ends the threads and releases the pool. No other thread may use `gemm` during or after the call.
/// Does nothing if `gemm` is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn latent_gemm_free(gemm: *mut latent_gemm) {
    // SAFETY: it came from latent_gemm_new, and the caller frees it once
    unsafe { border::free(gemm) }
}

/// Quantizes a dense weight `[k, n]` to 4 bits.
///
/// - `quant_type`: one of latent_quant_type.
/// - `k`, `n`: numbers of rows (inputs) and columns (outputs). `k` must be a multiple of 8 and of
///   `group`.
/// - `group`: number of consecutive inputs that share a scale.
/// - `dense`, `dense_count`: the weight, row-major; `k * n` elements.
/// - `words`, `words_count`: output buffer of `[k / 8, n]` words. Each has eight codes along K, the
///   first in the lowest bits.
/// - `scales`, `scales_count`: output buffer of `[k / group, n]` f16 scales.
/// - `zeros`, `zeros_count`: output buffer of `[k / group, n]` zero points for LATENT_INT4; NULL
///   and 0 for other types.
///
/// The buffers belong to the caller. Returns LATENT_INVALID_ARGUMENT, before anything is written,
/// if one of them has another size.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn latent_gemm_pack(
    quant_type: i32,
    k: usize,
    n: usize,
    group: usize,
    dense: *const f32,
    dense_count: usize,
    words: *mut u32,
    words_count: usize,
    scales: *mut u16,
    scales_count: usize,
    zeros: *mut u8,
    zeros_count: usize,
    error: *mut *mut latent_error,
) -> latent_status {
    // SAFETY: pointers are as the header says
    unsafe {
        guarded(error, || {
            let quant = latent_quant_type::read(quant_type)?;
            let dense = border::elements(dense, dense_count, "dense")?;
            let packed = latent::pack(quant, dense, Shape { k, n, group })?;
            let Packed { shape, words: found, scales: found_scales, zeros: found_zeros, .. } = packed;
            let groups = shape.groups();
            let zero_rows = if found_zeros.is_empty() { 0 } else { groups };
            // All sizes are checked before anything is written.
            fits("words", words_count, k / 8, n)?;
            fits("scales", scales_count, groups, n)?;
            fits("zeros", zeros_count, zero_rows, n)?;
            let scales = border::elements_mut(scales, scales_count, "scales")?;
            border::elements_mut(words, words_count, "words")?.copy_from_slice(&found);
            scales.iter_mut().zip(found_scales).for_each(|(scale, found)| *scale = found.to_bits());
            border::elements_mut(zeros, zeros_count, "zeros")?.copy_from_slice(&found_zeros);
            Ok(())
        })
    }
}

/// Computes `y = x * W` for a 4-bit weight W of shape `[k, n]`.
///
/// - `x`, `x_count`: `m` rows of `k` inputs, row-major; `x_count` is the number of elements.
/// - `x_type`: element type of `x`: one of latent_input_type.
/// - `m`: number of rows.
/// - `y`, `y_count`: output buffer of `m` rows of `n` floats. It must not overlap the inputs.
/// - `options`: NULL for the defaults.
///
/// The results have the same bits for any number of threads.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn latent_gemm_multiply(
    gemm: *const latent_gemm,
    weight: *const latent_weight,
    x: *const c_void,
    x_count: usize,
    x_type: i32,
    m: usize,
    y: *mut f32,
    y_count: usize,
    options: *const latent_gemm_options,
    error: *mut *mut latent_error,
) -> latent_status {
    // SAFETY: pointers are as the header says
    unsafe {
        guarded(error, || {
            let gemm = &border::given(gemm, "gemm")?.0;
            let weight = latent_weight::given(weight)?;
            let options =
                sized::read(options, latent_gemm_options::NONE)?.unwrap_or(latent_gemm_options::NONE);
            let x = input(x, x_count, x_type)?;
            let y = border::elements_mut(y, y_count, "y")?;
            gemm.multiply(&options.read()?, &weight.view()?, x, m, y)
        })
    }
}

/// Borrows an input array whose element type is one of latent_input_type.
///
/// # Safety
/// `x` points to `count` elements of that type that no thread changes during the call.
pub(crate) unsafe fn input<'a>(x: *const c_void, count: usize, input_type: i32) -> Result<Input<'a>, Error> {
    const F32: i32 = latent_input_type::LATENT_INPUT_F32 as i32;
    const F16: i32 = latent_input_type::LATENT_INPUT_F16 as i32;
    const BF16: i32 = latent_input_type::LATENT_INPUT_BF16 as i32;
    // SAFETY: as the caller promises
    unsafe {
        match input_type {
            F32 => Ok(Input::F32(border::elements(x.cast(), count, "x")?)),
            F16 => Ok(Input::F16(border::elements::<u16>(x.cast(), count, "x")?.reinterpret_cast())),
            BF16 => Ok(Input::Bf16(border::elements::<u16>(x.cast(), count, "x")?.reinterpret_cast())),
            other => Err(Error::argument(format!("x_type is {other}, expected one of latent_input_type"))),
        }
    }
}

/// Decodes a weight to float.
///
/// `values` is an output buffer of `[k, n]` elements, row-major. `values_count` must be `k * n`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn latent_gemm_dequantize(
    gemm: *const latent_gemm,
    weight: *const latent_weight,
    values: *mut f32,
    values_count: usize,
    error: *mut *mut latent_error,
) -> latent_status {
    // SAFETY: pointers are as the header says
    unsafe {
        guarded(error, || {
            let gemm = &border::given(gemm, "gemm")?.0;
            let weight = latent_weight::given(weight)?;
            let values = border::elements_mut(values, values_count, "values")?;
            gemm.dequantize(&weight.view()?, values)
        })
    }
}
