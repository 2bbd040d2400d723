//! FP4 and INT4 GEMM on a GPU: weights and arrays stay in its memory.

use crate::border::{self, guarded, null};
use crate::buffers::give;
use crate::error::{latent_error, latent_status};
use crate::gemm::{input, latent_gemm_options};
use crate::sized;
use crate::weight::latent_weight;
use latent::Error;
use latent_marlin::{DeviceArray, GemmDevice, ResidentWeight};
use std::ffi::{c_char, c_void};

/// A GPU for products with 4-bit weights. Threads of the caller may use it, its weights and its
/// arrays at the same time.
pub struct latent_gemm_device(GemmDevice);

/// A weight in the memory of a GPU.
pub struct latent_device_weight(ResidentWeight);

/// Rows of numbers in the memory of a GPU: inputs, results of products and inputs of further ones.
pub struct latent_device_array(DeviceArray);

/// Opens a GPU: "gpu" (the first), "gpu:N", or "auto" (the first that is hardware). Free it with
/// latent_gemm_device_free; its weights and arrays keep it open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn latent_gemm_device_open(
    name: *const c_char,
    device: *mut *mut latent_gemm_device,
    error: *mut *mut latent_error,
) -> latent_status {
    // SAFETY: pointers are as the header says
    unsafe {
        guarded(error, || {
            border::hand_out(device, "device", || {
                let name = border::word(name, "name")?.ok_or_else(|| null("name"))?;
                let opened = GemmDevice::named(name)?.ok_or_else(|| {
                    Error::argument(format!(
                        "device {name:?} is the CPU: use latent_gemm_new, or gpu or gpu:N"
                    ))
                })?;
                Ok(latent_gemm_device(opened))
            })
        })
    }
}

/// Frees a GPU. NULL is fine.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn latent_gemm_device_free(device: *mut latent_gemm_device) {
    // SAFETY: it came from latent_gemm_device_open, and the caller frees it once
    unsafe { border::free(device) }
}

/// Sends a weight to a GPU. `order` is NULL, or names for each of the weight's k rows the input
/// that it is multiplied with (checkpoints in act-order). Free it with latent_device_weight_free.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn latent_device_weight_new(
    device: *const latent_gemm_device,
    weight: *const latent_weight,
    order: *const u32,
    order_count: usize,
    resident: *mut *mut latent_device_weight,
    error: *mut *mut latent_error,
) -> latent_status {
    // SAFETY: pointers are as the header says
    unsafe {
        guarded(error, || {
            border::hand_out(resident, "resident", || {
                let device = &border::given(device, "device")?.0;
                let weight = latent_weight::given(weight)?;
                let view = weight.view()?;
                let sent = match order.is_null() && order_count == 0 {
                    true => device.upload(&view)?,
                    false => device.upload_ordered(&view, border::elements(order, order_count, "order")?)?,
                };
                Ok(latent_device_weight(sent))
            })
        })
    }
}

/// Frees a weight on a GPU. NULL is fine.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn latent_device_weight_free(resident: *mut latent_device_weight) {
    // SAFETY: it came from latent_device_weight_new, and the caller frees it once
    unsafe { border::free(resident) }
}

/// Sends `rows` rows of `columns` numbers, whose type is one of latent_input_type, to a GPU. Free
/// them with latent_device_array_free.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn latent_device_array_new(
    device: *const latent_gemm_device,
    x: *const c_void,
    x_count: usize,
    x_type: i32,
    rows: usize,
    columns: usize,
    array: *mut *mut latent_device_array,
    error: *mut *mut latent_error,
) -> latent_status {
    // SAFETY: pointers are as the header says
    unsafe {
        guarded(error, || {
            border::hand_out(array, "array", || {
                let device = &border::given(device, "device")?.0;
                let sent = device.rows(input(x, x_count, x_type)?, rows, columns)?;
                Ok(latent_device_array(sent))
            })
        })
    }
}

/// Frees an array on a GPU. NULL is fine.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn latent_device_array_free(array: *mut latent_device_array) {
    // SAFETY: it came from a function of this library, and the caller frees it once
    unsafe { border::free(array) }
}

/// Rows and columns of an array; either may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn latent_device_array_shape(
    array: *const latent_device_array,
    rows: *mut usize,
    columns: *mut usize,
    error: *mut *mut latent_error,
) -> latent_status {
    // SAFETY: pointers are as the header says
    unsafe {
        guarded(error, || {
            let (found_rows, found_columns) = border::given(array, "array")?.0.shape();
            give(rows, || found_rows);
            give(columns, || found_columns);
            Ok(())
        })
    }
}

/// Copies an array to the host as float, row-major, once the GPU has computed it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn latent_device_array_read(
    array: *const latent_device_array,
    values: *mut f32,
    values_count: usize,
    error: *mut *mut latent_error,
) -> latent_status {
    // SAFETY: pointers are as the header says
    unsafe {
        guarded(error, || {
            let array = &border::given(array, "array")?.0;
            Ok(array.read(border::elements_mut(values, values_count, "values")?)?)
        })
    }
}

/// y = x · W + bias on a GPU, where the result stays: `bias` is NULL or one row of n numbers,
/// `options` may be NULL (`isa` and `activations` are those of the CPU). Free `y` with
/// latent_device_array_free.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn latent_device_multiply(
    resident: *const latent_device_weight,
    x: *const latent_device_array,
    bias: *const latent_device_array,
    options: *const latent_gemm_options,
    y: *mut *mut latent_device_array,
    error: *mut *mut latent_error,
) -> latent_status {
    // SAFETY: pointers are as the header says
    unsafe {
        guarded(error, || {
            border::hand_out(y, "y", || {
                let weight = &border::given(resident, "resident")?.0;
                let x = &border::given(x, "x")?.0;
                let bias = bias.as_ref().map(|bias| &bias.0);
                let options =
                    sized::read(options, latent_gemm_options::NONE)?.unwrap_or(latent_gemm_options::NONE);
                let product = weight.multiply(options.read()?.forced(), x, bias)?;
                Ok(latent_device_array(product))
            })
        })
    }
}

/// Decodes a weight on a GPU into `[k, n]` floats, which stay there. Free them with
/// latent_device_array_free.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn latent_device_dequantize(
    resident: *const latent_device_weight,
    values: *mut *mut latent_device_array,
    error: *mut *mut latent_error,
) -> latent_status {
    // SAFETY: pointers are as the header says
    unsafe {
        guarded(error, || {
            border::hand_out(values, "values", || {
                let decoded = border::given(resident, "resident")?.0.dequantize()?;
                Ok(latent_device_array(decoded))
            })
        })
    }
}
