//! A weight in device memory, in the blocks of the file.

use super::gemm::GemmForm;
use super::layout::{BlockLayout, BlockQuants, BlockStorage, GridCodebook, layout};
use super::products::ProductContext;
use super::repack;
use super::shader::ProductShader;
use super::tiles::MAX_GEMV_ROWS;
use crate::buffers::{Buffer, float_bytes, largest_binding, word_bytes};
use crate::device::Device;
use crate::error::GpuError;
use crate::f16_values::F16Values;
use crate::pipeline::ShaderPipeline;
use latent_quant::grids;
use latent_types::{Arithmetic, TensorType};
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

/// The shape of a weight, in elements: `matrices` matrices `[outputs, inputs]`, one after the
/// other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DeviceWeightShape {
    /// Elements per row.
    pub(crate) inputs: usize,
    /// Rows per matrix.
    pub(crate) outputs: usize,
    /// Number of matrices: experts or heads, otherwise 1.
    pub(crate) matrices: usize,
}

/// Block scales of a weight, row-major.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HostScales<'a> {
    pub(crate) numbers: &'a [f32],
    /// Rows per scale.
    pub(crate) rows: usize,
    /// Inputs per scale: a multiple of eight.
    pub(crate) inputs: usize,
    /// Whether blocks begin again with every matrix (experts). Otherwise they run through all
    /// matrices (heads of one matrix).
    pub(crate) per_matrix: bool,
}

/// Block scales on the device.
pub(super) struct DeviceScales {
    pub(super) buffer: Buffer,
    pub(super) rows: usize,
    pub(super) inputs: usize,
    pub(super) per_matrix: bool,
}

/// Rows of a weight in one buffer: whole matrices, or some rows of the only matrix.
pub(super) struct WeightChunk {
    pub(super) buffer: Buffer,
    pub(super) rows: Range<usize>,
    /// Byte offset of the scales of repacked blocks.
    pub(super) d_first: usize,
}

/// The storage of a weight with this layout.
fn storage(products: &ProductContext, layout: &BlockLayout) -> BlockStorage {
    if products.variants.planes && layout.odd_scale().is_some() {
        BlockStorage::Planes
    } else {
        BlockStorage::File
    }
}

impl WeightChunk {
    /// Uploads rows of blocks.
    fn send(
        products: &ProductContext,
        what: &str,
        layout: &BlockLayout,
        blocks: &[u8],
        rows: Range<usize>,
    ) -> Result<WeightChunk, GpuError> {
        let device = &products.device;
        if storage(products, layout) == BlockStorage::File {
            return Ok(WeightChunk { buffer: Buffer::with(device, what, blocks)?, rows, d_first: 0 });
        }
        let buffer = Buffer::new(device, what, blocks.len() as u64)?;
        repack::write(&buffer, what, layout, blocks)?;
        let d_first = repack::scales_at(layout, blocks.len() / layout.block_bytes());
        Ok(WeightChunk { buffer, rows, d_first })
    }
}

/// A weight in device memory.
pub(crate) struct DeviceWeight {
    pub(super) format: TensorType,
    pub(super) shape: DeviceWeightShape,
    pub(super) storage: BlockStorage,
    pub(super) products: Arc<ProductContext>,
    /// Bytes from one row to the next, as stored.
    pub(super) row_bytes: usize,
    pub(super) chunks: Vec<WeightChunk>,
    pub(super) scales: Option<DeviceScales>,
    pub(super) codebook: Option<Buffer>,
    /// The shaders of earlier calls.
    pipelines: Mutex<Vec<(ProductShader, Arc<ShaderPipeline>)>>,
}

impl DeviceWeight {
    /// Uploads a weight, into several buffers if it exceeds the largest binding.
    ///
    /// # Errors
    /// If the format has no shaders, if the bytes do not match the shape, if a matrix exceeds a
    /// buffer, or if memory is too small.
    pub(crate) fn upload_for(
        products: &Arc<ProductContext>,
        what: &str,
        format: (TensorType, DeviceWeightShape),
        bytes: &[u8],
        scales: Option<HostScales<'_>>,
    ) -> Result<DeviceWeight, GpuError> {
        let max_buffer = largest_binding(&products.device.limits);
        DeviceWeight::upload_in(max_buffer, products, what, format, bytes, scales)
    }

    /// As [`upload_for`](Self::upload_for), for exact products without a shared context.
    #[cfg(any(test, feature = "cases"))]
    pub(crate) fn upload(
        device: &Arc<Device>,
        what: &str,
        (format, shape): (TensorType, DeviceWeightShape),
        bytes: &[u8],
        scales: Option<HostScales<'_>>,
    ) -> Result<DeviceWeight, GpuError> {
        let products = ProductContext::new(device, latent_graph::passes::Precision::Exact);
        DeviceWeight::upload_for(&products, what, (format, shape), bytes, scales)
    }

    /// As [`upload_for`](Self::upload_for), in buffers of at most `max_buffer` bytes.
    pub(super) fn upload_in(
        max_buffer: u64,
        products: &Arc<ProductContext>,
        what: &str,
        (format, shape): (TensorType, DeviceWeightShape),
        bytes: &[u8],
        scales: Option<HostScales<'_>>,
    ) -> Result<DeviceWeight, GpuError> {
        let device = &products.device;
        let refused = |problem: String| GpuError::Refused {
            device: device.name().to_owned(),
            what: what.to_owned(),
            problem,
        };
        let Some(layout) = layout(format) else {
            return Err(no_shader(device, what, format));
        };
        let DeviceWeightShape { inputs, outputs, matrices } = shape;
        let rows = outputs.saturating_mul(matrices);
        let row_bytes = format.row_bytes(inputs).unwrap_or(0);
        if rows.checked_mul(row_bytes) != Some(bytes.len()) || bytes.is_empty() {
            let shape = format!("{matrices} × {outputs} rows of {inputs} elements in {format}");
            return Err(refused(format!("{} bytes are not {shape}", bytes.len())));
        }
        // Chunks hold whole matrices, or any rows of the only matrix.
        let step = if matrices > 1 { outputs } else { 1 };
        // Shaders address bytes in u32.
        let max_bytes = usize::try_from(max_buffer.min(u32::MAX.into())).unwrap_or(usize::MAX);
        // At least one matrix or row, even if it is too large: then its upload reports the error.
        let max_rows = (max_bytes / row_bytes / step).max(1) * step;
        let mut chunks = Vec::new();
        for first in (0..rows).step_by(max_rows) {
            let rows = first..rows.min(first.saturating_add(max_rows));
            let part = &bytes[rows.start * row_bytes..rows.end * row_bytes];
            chunks.push(WeightChunk::send(products, what, layout, part, rows)?);
        }
        let words = codebook(layout);
        let codebook =
            words.map(|words| Buffer::with(device, "a codebook", &word_bytes(&words))).transpose()?;
        let scales = match scales {
            None => None,
            Some(HostScales { numbers, rows, inputs: across, per_matrix }) => {
                let needed = (across > 0 && rows > 0 && across.is_multiple_of(8)).then(|| {
                    let down = if per_matrix {
                        matrices * outputs.div_ceil(rows)
                    } else {
                        (matrices * outputs).div_ceil(rows)
                    };
                    down * inputs.div_ceil(across)
                });
                if needed != Some(numbers.len()) {
                    let rectangle = format!("rectangles of {rows} × {across} elements");
                    return Err(refused(format!(
                        "{} block scales do not cover it in {rectangle}",
                        numbers.len()
                    )));
                }
                let buffer = Buffer::with(device, "block scales", &float_bytes(numbers))?;
                Some(DeviceScales { buffer, rows, inputs: across, per_matrix })
            }
        };
        let storage = storage(products, layout);
        let row_blocks = row_bytes / format.block_bytes();
        // Repacking moves the scales of all rows to the end, so that rows are shorter.
        let row_bytes =
            if storage == BlockStorage::Planes { repack::scales_at(layout, row_blocks) } else { row_bytes };
        let (products, pipelines) = (Arc::clone(products), Mutex::default());
        Ok(DeviceWeight { format, shape, storage, products, row_bytes, chunks, scales, codebook, pipelines })
    }

    /// Whether products quantize the inputs. Weights with block scales keep f32 inputs.
    pub(super) fn multiplies_integers(&self) -> bool {
        self.scales.is_none() && self.products.takes_integers(self.format, self.shape.inputs)
    }

    /// The form of a GEMM's tiles.
    pub(super) fn gemm_form(&self) -> GemmForm {
        self.products.gemm_form(self.format, self.multiplies_integers())
    }

    /// The arithmetic of products with `rows` rows.
    pub(crate) fn arithmetic(&self, rows: usize) -> Arithmetic {
        if rows <= MAX_GEMV_ROWS {
            return if self.multiplies_integers() { Arithmetic::Int8 } else { Arithmetic::F32 };
        }
        match self.gemm_form() {
            GemmForm::Integers => Arithmetic::Int8,
            GemmForm::Matrices(matrix) if matrix.f16 => Arithmetic::F16,
            // Tiles of f16 are multiplied and added in f32.
            GemmForm::F32 | GemmForm::F16 | GemmForm::Matrices(_) => Arithmetic::F32,
        }
    }

    /// The compiled shader.
    pub(super) fn pipeline(
        &self,
        device: &Device,
        shader: &ProductShader,
    ) -> Result<Arc<ShaderPipeline>, GpuError> {
        // Before the lock: the first call runs a probe on the device.
        let f16_values = F16Values::of(&self.products.device);
        // A search here is faster than composing the shader's text, which is the key of the
        // device's pipelines.
        let mut known = self.pipelines.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, pipeline)) = known.iter().find(|(one, _)| one == shader) {
            return Ok(Arc::clone(pipeline));
        }
        let name = shader.name();
        let source = shader.wgsl(f16_values).ok_or_else(|| no_shader(device, &name, self.format))?;
        let pipeline = device.compiled(&name, source)?;
        known.push((*shader, Arc::clone(&pipeline)));
        Ok(pipeline)
    }
}

fn no_shader(device: &Device, what: &str, format: TensorType) -> GpuError {
    GpuError::Refused {
        device: device.name().to_owned(),
        what: what.to_owned(),
        problem: format!(
            "no shader supports {format}; `latent quantize` writes formats that are supported, such as Q8_0"
        ),
    }
}

fn codebook_words<const W: usize, const N: usize>(rows: &[[i8; W]; N]) -> Vec<u32> {
    let bytes: Vec<u8> = rows.iter().flatten().map(|value| *value as u8).collect();
    bytes.chunks_exact(4).map(|four| u32::from_le_bytes([four[0], four[1], four[2], four[3]])).collect()
}

/// The codebook of a format, four values per word. Rows have two words, or one in IQ3.
pub fn codebook(layout: &BlockLayout) -> Option<Vec<u32>> {
    // Shaders read the codebook from a buffer, since a driver may copy a constant array of that
    // size into the memory of every thread.
    let BlockQuants::Grid(grid) = layout.quants else { return None };
    Some(match grid {
        GridCodebook::Iq1S | GridCodebook::Iq1M => codebook_words(&grids::IQ1),
        GridCodebook::Iq2Xxs => codebook_words(&grids::IQ2_XXS),
        GridCodebook::Iq2Xs => codebook_words(&grids::IQ2_XS),
        GridCodebook::Iq2S => codebook_words(&grids::IQ2_S),
        GridCodebook::Iq3Xxs => codebook_words(&grids::IQ3_XXS),
        GridCodebook::Iq3S => codebook_words(&grids::IQ3_S),
    })
}
