//! 4-bit weights in the caller's memory.

use crate::border::{self, null};
use crate::sized::{self, SizedStruct};
use latent::Error;
use latent_marlin::half::slice::HalfBitsSliceExt;
use latent_marlin::{QuantType, Scales, Shape, Weight};
use std::ffi::c_void;

/// Meaning of the 4-bit codes of a weight.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum latent_quant_type {
    /// E2M1 floats: codes 0 to 7 are 0, 0.5, 1, 1.5, 2, 3, 4, 6, and codes 8 to 15 their negatives.
    LATENT_FP4 = 0,
    /// Unsigned integers with a zero point per group: value = (code - zero point) * scale.
    LATENT_INT4 = 1,
    /// Unsigned integers with the zero point 8: value = (code - 8) * scale.
    LATENT_INT4_SYM = 2,
}

impl latent_quant_type {
    pub(crate) fn read(value: i32) -> Result<QuantType, Error> {
        Ok(match value {
            0 => QuantType::Fp4,
            1 => QuantType::Int4,
            2 => QuantType::Int4Sym,
            other => {
                return Err(Error::argument(format!(
                    "quant_type is {other}, expected one of latent_quant_type"
                )));
            }
        })
    }
}

/// Storage format of group scales.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum latent_scale_type {
    /// IEEE half precision, as uint16_t.
    LATENT_SCALES_F16 = 0,
    /// E8M0 (MXFP4), as uint8_t.
    LATENT_SCALES_E8M0 = 1,
    /// E4M3 (NVFP4), as uint8_t. Each is multiplied by `tensor_scale`.
    LATENT_SCALES_E4M3 = 2,
}

/// A weight `[k, n]` of 4-bit codes with one scale per group of inputs. The arrays belong to the
/// caller.
///
/// Set fields that do not apply to 0 or NULL: `latent_weight weight = {sizeof weight};`
#[repr(C)]
#[derive(Clone, Copy)]
pub struct latent_weight {
    /// sizeof(latent_weight).
    pub size: usize,
    /// Meaning of the codes: one of latent_quant_type.
    pub quant_type: i32,
    /// Format of the scales: one of latent_scale_type.
    pub scale_type: i32,
    /// Number of inputs (rows). A multiple of 8 and of `group`.
    pub k: usize,
    /// Number of outputs (columns).
    pub n: usize,
    /// Number of consecutive inputs that share a scale.
    pub group: usize,
    /// Codes: `[k / 8, n]`. Each word has eight codes along K, the first in the lowest bits.
    pub words: *const u32,
    /// Number of elements in `words`.
    pub words_count: usize,
    /// Scales: `[k / group, n]`, in the format `scale_type`.
    pub scales: *const c_void,
    /// Number of elements in `scales`.
    pub scales_count: usize,
    /// Zero points for LATENT_INT4: `[k / group, n]`, each from 0 to 16. NULL for other types.
    pub zeros: *const u8,
    /// Number of elements in `zeros`.
    pub zeros_count: usize,
    /// Factor of all scales. Required for LATENT_SCALES_E4M3, ignored for other formats.
    pub tensor_scale: f32,
}

// SAFETY: it begins with `size`, and has numbers and pointers only
unsafe impl SizedStruct for latent_weight {
    const NAME: &str = "latent_weight";
}

impl latent_weight {
    const NONE: latent_weight = latent_weight {
        size: size_of::<latent_weight>(),
        quant_type: 0,
        scale_type: 0,
        k: 0,
        n: 0,
        group: 0,
        words: std::ptr::null(),
        words_count: 0,
        scales: std::ptr::null(),
        scales_count: 0,
        zeros: std::ptr::null(),
        zeros_count: 0,
        tensor_scale: 0.0,
    };

    /// Copies the struct of the caller. Fails if the pointer is NULL.
    ///
    /// # Safety
    /// `weight` is NULL, or as the header says.
    pub(crate) unsafe fn given(weight: *const latent_weight) -> Result<latent_weight, Error> {
        // SAFETY: as the caller promises
        unsafe { sized::read(weight, latent_weight::NONE) }?.ok_or_else(|| null("weight"))
    }

    /// Borrows the arrays as the weight that kernels read.
    ///
    /// # Safety
    /// Each pointer is NULL, or points to as many elements as its count says, which no thread
    /// changes while the result lives.
    pub(crate) unsafe fn view(&self) -> Result<Weight<'_>, Error> {
        const F16: i32 = latent_scale_type::LATENT_SCALES_F16 as i32;
        const E8M0: i32 = latent_scale_type::LATENT_SCALES_E8M0 as i32;
        const E4M3: i32 = latent_scale_type::LATENT_SCALES_E4M3 as i32;
        let quant = latent_quant_type::read(self.quant_type)?;
        // SAFETY: as the caller promises
        unsafe {
            let words = border::elements(self.words, self.words_count, "words")?;
            let (scales, count) = (self.scales, self.scales_count);
            let codes = || border::elements::<u8>(scales.cast(), count, "scales");
            let scales = match self.scale_type {
                F16 => {
                    let bits = border::elements::<u16>(scales.cast(), count, "scales")?;
                    Scales::F16(bits.reinterpret_cast())
                }
                E8M0 => Scales::E8m0(codes()?),
                E4M3 if self.tensor_scale == 0.0 => {
                    return Err(Error::argument("tensor_scale is 0: set it to the tensor's scale, or to 1"));
                }
                E4M3 => Scales::E4m3(codes()?, self.tensor_scale),
                other => {
                    let message = format!("scale_type is {other}, expected one of latent_scale_type");
                    return Err(Error::argument(message));
                }
            };
            let zeros = match self.zeros.is_null() && self.zeros_count == 0 {
                true => None,
                false => Some(border::elements(self.zeros, self.zeros_count, "zeros")?),
            };
            let shape = Shape { k: self.k, n: self.n, group: self.group };
            Ok(Weight::new(quant, shape, words, scales, zeros)?)
        }
    }
}
