//! A build with GPU support, which uses the shaders of `latent-backend-wgpu`.

use crate::error::Error;
use crate::input::Input;
use crate::plan::Kernel;
use crate::weight::QuantType;
use half::slice::HalfFloatSliceExt;
use latent_backend_wgpu::{
    AdapterKind, GpuError, GroupScales, W4CodeKind, W4Device, W4DeviceKernel, W4Elements, W4Operand,
    W4Resident, W4Rows, W4WeightShape, adapters,
};
use latent_kernels::{W4Codes, W4Scales, W4Shape};

pub(super) use latent_backend_wgpu::{W4Device as Device, W4Resident as Weight, W4Rows as Rows};

pub(super) fn first_hardware() -> Option<usize> {
    adapters().iter().position(|adapter| adapter.kind != AdapterKind::Software)
}

/// Lists the adapters of this machine, for an error message.
pub(super) fn devices() -> String {
    let found: Vec<String> = adapters()
        .iter()
        .enumerate()
        .map(|(number, adapter)| format!("gpu:{number} ({})", adapter.name))
        .collect();
    if found.is_empty() {
        "this machine has no GPU".into()
    } else {
        format!("this machine has {}", found.join(", "))
    }
}

pub(super) fn open(index: usize) -> Result<W4Device, Error> {
    W4Device::open(index).map_err(|error| match error {
        GpuError::NoAdapter | GpuError::NoSuchAdapter { .. } => {
            Error::UnknownDevice { name: format!("gpu:{index}"), devices: devices() }
        }
        error => failed(error),
    })
}

pub(super) fn name(kernel: Kernel, quant: QuantType) -> &'static str {
    let kernel = match kernel {
        Kernel::Gemm => W4DeviceKernel::Gemm,
        Kernel::Fused => W4DeviceKernel::Fused,
        // The name is that of the kernel, for any number of slices.
        Kernel::Striped => W4DeviceKernel::Striped { slices: 1 },
    };
    kernel.name(match quant {
        QuantType::Fp4 => W4CodeKind::Fp4,
        QuantType::Int4 => W4CodeKind::Int4,
        QuantType::Int4Sym => W4CodeKind::Int4Sym,
    })
}

pub(super) fn adapter(device: &W4Device) -> String {
    device.adapter().name.clone()
}

pub(super) fn is_usable(device: &W4Device) -> bool {
    device.is_usable()
}

pub(super) fn memory_in_use(device: &W4Device) -> u64 {
    device.memory_in_use()
}

pub(super) fn set_memory_limit(device: &W4Device, bytes: u64) {
    device.set_memory_limit(bytes);
}

pub(super) fn upload(
    device: &W4Device,
    w: &crate::weight::Weight<'_>,
    order: Option<&[u32]>,
) -> Result<W4Resident, Error> {
    let matrix = w.matrix();
    let scales = match matrix.scales() {
        W4Scales::F16(bits) => GroupScales::F16(bits),
        W4Scales::E8m0(codes) => GroupScales::E8m0(codes),
        W4Scales::E4m3 { codes, tensor } => GroupScales::E4m3(codes, tensor),
    };
    let (codes, zeros): (_, &[u8]) = match matrix.codes() {
        W4Codes::E2m1 => (W4CodeKind::Fp4, &[]),
        W4Codes::Int4Sym => (W4CodeKind::Int4Sym, &[]),
        W4Codes::Int4 { zeros } => (W4CodeKind::Int4, zeros),
    };
    let W4Shape { k, n, group } = matrix.shape();
    let shape = W4WeightShape { k, n, group };
    let operand = W4Operand { shape, words: matrix.words(), scales, codes, zeros };
    device.upload(&operand, order).map_err(failed)
}

pub(super) fn rows(device: &W4Device, x: &Input<'_>, (m, k): (usize, usize)) -> Result<W4Rows, Error> {
    let widened;
    let elements = match x {
        Input::F32(x) => W4Elements::F32(x),
        Input::F16(x) if k.is_multiple_of(2) => W4Elements::F16(x.reinterpret_cast()),
        // Shaders read words of two f16: rows of an odd length would begin inside of a word.
        Input::F16(x) => {
            widened = x.to_f32_vec();
            W4Elements::F32(&widened)
        }
        Input::Bf16(x) => {
            widened = x.to_f32_vec();
            W4Elements::F32(&widened)
        }
    };
    device.rows(elements, m, k).map_err(failed)
}

pub(super) fn multiply(
    weight: &W4Resident,
    (kernel, slices): (Kernel, usize),
    x: &W4Rows,
    bias: Option<&W4Rows>,
) -> Result<W4Rows, Error> {
    let kernel = match kernel {
        Kernel::Gemm => W4DeviceKernel::Gemm,
        Kernel::Fused => W4DeviceKernel::Fused,
        Kernel::Striped => W4DeviceKernel::Striped { slices },
    };
    // Results are f32, and so must be what they begin with.
    let widened = match bias {
        Some(bias) if bias.is_f16() => Some(bias.to_f32().map_err(failed)?),
        _ => None,
    };
    weight.multiply(kernel, x, widened.as_ref().or(bias)).map_err(failed)
}

pub(super) fn dequantize(weight: &W4Resident, halves: bool) -> Result<W4Rows, Error> {
    weight.dequantize(halves).map_err(failed)
}

pub(super) fn shape(rows: &W4Rows) -> (usize, usize) {
    rows.shape()
}

pub(super) fn is_f16(rows: &W4Rows) -> bool {
    rows.is_f16()
}

pub(super) fn read(rows: &W4Rows) -> Result<Vec<f32>, Error> {
    rows.read_f32().map_err(failed)
}

pub(super) fn read_f16(rows: &W4Rows) -> Result<Vec<u16>, Error> {
    rows.read_f16().map_err(failed)
}

pub(super) fn converted(rows: &W4Rows, halves: bool) -> Result<W4Rows, Error> {
    if halves { rows.to_f16() } else { rows.to_f32() }.map_err(failed)
}

/// Converts an error of the device.
fn failed(error: GpuError) -> Error {
    let text = error.to_string();
    // Advice about the layers of a model is cut off, because this library multiplies single
    // weights.
    let message = text.split_once("; a smaller").map_or(text.as_str(), |(problem, _)| problem).to_owned();
    match error {
        GpuError::OutOfMemory { .. } | GpuError::TooLarge { .. } => Error::DeviceMemory(message),
        _ => Error::DeviceFault(text),
    }
}
