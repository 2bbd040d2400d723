//! FP4 and INT4 GEMM on a GPU. Weights and arrays stay in its memory.

use crate::border::{self, guarded, null};
use crate::buffers::give;
use crate::error::{latent_error, latent_status};
use crate::gemm::{input, latent_gemm_options};
use crate::sized;
use crate::weight::latent_weight;
use latent::Error;
use latent_marlin::{DeviceArray, GemmDevice, ResidentWeight};
use std::ffi::{c_char, c_void};

/// A GPU for matrix products with 4-bit weights. Open it with latent_gemm_device_open and release
/// it with latent_gemm_device_free.
///
/// Several threads may use it, its weights and its arrays at the same time.
pub struct latent_gemm_device(GemmDevice);

/// A 4-bit weight in the memory of a GPU. Release it with latent_device_weight_free.
pub struct latent_device_weight(ResidentWeight);

/// A matrix in the memory of a GPU, used for inputs and results. Release it with
/// latent_device_array_free.
pub struct latent_device_array(DeviceArray);

/// Opens a GPU.
///
/// - `name`: "gpu" (the first one), "gpu:N", or "auto" (the first one that is not a software
///   renderer).
/// - `device`: receives the GPU, or NULL if the call fails. The caller must release it with
///   latent_gemm_device_free.
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

/// Releases a GPU. Weights and arrays on it remain valid and keep it open until they are released.
/// Does nothing if `device` is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn latent_gemm_device_free(device: *mut latent_gemm_device) {
    // SAFETY: it came from latent_gemm_device_open, and the caller frees it once
    unsafe { border::free(device) }
}

/// Copies a weight to a GPU.
///
/// - `weight`: the weight in host memory, which is not used after the call.
/// - `order`, `order_count`: for checkpoints in act-order, `k` indices: row i of the weight is
///   multiplied by input `order[i]`. NULL and 0 for the natural order.
/// - `resident`: receives the weight, or NULL if the call fails. The caller must release it with
///   latent_device_weight_free.
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

/// Releases a weight on a GPU. Does nothing if `resident` is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn latent_device_weight_free(resident: *mut latent_device_weight) {
    // SAFETY: it came from latent_device_weight_new, and the caller frees it once
    unsafe { border::free(resident) }
}

/// Copies a matrix to a GPU.
///
/// - `x`, `x_count`: `rows` rows of `columns` elements in host memory, row-major; `x_count` is the
///   number of elements.
/// - `x_type`: element type of `x`: one of latent_input_type. On the GPU, bf16 becomes f32, as does
///   f16 if `columns` is odd.
/// - `array`: receives the matrix, or NULL if the call fails. The caller must release it with
///   latent_device_array_free.
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

/// Releases an array on a GPU. Does nothing if `array` is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn latent_device_array_free(array: *mut latent_device_array) {
    // SAFETY: it came from a function of this library, and the caller frees it once
    unsafe { border::free(array) }
}

/// Stores the number of rows and of columns of an array in `*rows` and `*columns`. Either pointer
/// may be NULL.
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

/// Waits until the GPU has computed an array, and copies it to host memory as float, row-major.
///
/// `values_count` must be the number of rows times the number of columns.
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

/// Computes `y = x * W + bias` on a GPU. The result stays there. All operands must be on the same
/// GPU.
///
/// - `resident`: the weight W of shape `[k, n]`.
/// - `x`: rows of `k` inputs.
/// - `bias`: one row of `n` elements, or NULL.
/// - `options`: NULL for the defaults.
/// - `y`: receives rows of `n` floats, or NULL if the call fails. The caller must release the array
///   with latent_device_array_free.
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

/// Decodes a weight on a GPU to an array of `[k, n]` floats, which stays there. The rows have the
/// order in which they are stored.
///
/// `values` receives the array, or NULL if the call fails. The caller must release it with
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
