//! A build without GPU support. The types of devices, weights and rows have no values, so that
//! functions that take one can never be called and need no code.

use crate::error::Error;
use crate::input::Input;
use crate::plan::Kernel;
use crate::weight::QuantType;

pub(super) enum Device {}
pub(super) enum Weight {}
pub(super) enum Rows {}

pub(super) fn first_hardware() -> Option<usize> {
    None
}

pub(super) fn devices() -> String {
    "this build has no GPU support".into()
}

pub(super) fn open(index: usize) -> Result<Device, Error> {
    Err(Error::NoGpu { index })
}

pub(super) fn name(kernel: Kernel, _quant: QuantType) -> &'static str {
    kernel.name()
}

pub(super) fn adapter(device: &Device) -> String {
    match *device {}
}

pub(super) fn is_usable(device: &Device) -> bool {
    match *device {}
}

pub(super) fn memory_in_use(device: &Device) -> u64 {
    match *device {}
}

pub(super) fn set_memory_limit(device: &Device, _bytes: u64) {
    match *device {}
}

pub(super) fn upload(
    device: &Device,
    _w: &crate::weight::Weight<'_>,
    _order: Option<&[u32]>,
) -> Result<Weight, Error> {
    match *device {}
}

pub(super) fn rows(device: &Device, _x: &Input<'_>, _shape: (usize, usize)) -> Result<Rows, Error> {
    match *device {}
}

pub(super) fn multiply(
    weight: &Weight,
    _plan: (Kernel, usize),
    _x: &Rows,
    _bias: Option<&Rows>,
) -> Result<Rows, Error> {
    match *weight {}
}

pub(super) fn dequantize(weight: &Weight, _halves: bool) -> Result<Rows, Error> {
    match *weight {}
}

pub(super) fn shape(rows: &Rows) -> (usize, usize) {
    match *rows {}
}

pub(super) fn is_f16(rows: &Rows) -> bool {
    match *rows {}
}

pub(super) fn read(rows: &Rows) -> Result<Vec<f32>, Error> {
    match *rows {}
}

pub(super) fn read_f16(rows: &Rows) -> Result<Vec<u16>, Error> {
    match *rows {}
}

pub(super) fn converted(rows: &Rows, _halves: bool) -> Result<Rows, Error> {
    match *rows {}
}
