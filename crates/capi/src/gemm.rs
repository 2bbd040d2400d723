//! FP4 and INT4 GEMM.

use crate::border::{self, guarded};
use crate::error::{latent_error, latent_status};
use crate::sized::{self, SizedStruct};
use crate::values::fits;
use crate::weight::{latent_quant_type, latent_weight};
use latent::{Error, GemmHandle, GemmOptions};
use latent_marlin::half::slice::HalfBitsSliceExt;
use latent_marlin::{Input, Packed, Shape};
use std::ffi::{c_char, c_void};

/// Threads and memory for products with 4-bit weights. Threads of the caller may use it at the same
/// time: they take turns.
pub struct latent_gemm(GemmHandle);

/// Types of inputs.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum latent_input_type {
    /// float.
    LATENT_INPUT_F32 = 0,
    /// f16, as uint16_t.
    LATENT_INPUT_F16 = 1,
    /// bf16, as uint16_t.
    LATENT_INPUT_BF16 = 2,
}

/// What is forced of a product. Zeros leave everything to its shape: `latent_gemm_options options =
/// {sizeof options};`
#[repr(C)]
#[derive(Clone, Copy)]
pub struct latent_gemm_options {
    /// sizeof(latent_gemm_options).
    pub size: usize,
    /// "auto", "gemm", "fused" or "striped"; NULL: auto.
    pub kernel: *const c_char,
    /// Precision of the inputs in products: "auto" (theirs), "bf16" or "int8"; NULL: auto.
    pub activations: *const c_char,
    /// Instruction set: "auto", "portable", "avx2", "avx512" or "amx"; NULL: auto.
    pub isa: *const c_char,
    /// Slices of K, for the striped kernel, which it chooses; 0: chosen by the shape.
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

    /// The options that are set.
    ///
    /// # Safety
    /// Its pointers are NULL or texts.
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

/// Starts threads for products; 0: one for each core that affinity and cgroup quotas leave to this
/// process. Free them with latent_gemm_free.
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

/// Ends the threads, once no thread of the caller uses them. NULL is fine.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn latent_gemm_free(gemm: *mut latent_gemm) {
    // SAFETY: it came from latent_gemm_new, and the caller frees it once
    unsafe { border::free(gemm) }
}

/// Packs a dense weight `[k, n]`, row-major: `quant_type` is one of latent_quant_type. `words` gets
/// `[k / 8, n]`: eight codes along K, the first in the lowest bits; `scales` `[k / group, n]` of
/// f16, and for LATENT_INT4 `zeros` `[k / group, n]`, which is NULL otherwise.
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

/// y = x · W: `m` rows of k inputs, whose type is one of latent_input_type, times a weight `[k, n]`
/// into `m` rows of n results, which must not overlap the operands. `options` may be NULL. Results
/// have the same bits for any number of threads.
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

/// Inputs of a type.
///
/// # Safety
/// `x` points to `count` of them that no thread changes during the call.
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

/// Decodes a weight into `values`, which holds `k · n` elements, row-major.
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
