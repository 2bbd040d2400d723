//! Quantization of GGUF models.
//!
//! * [`Assignment`]: the type of each tensor, chosen by a [`Mix`] with llama.cpp's rules per
//!   tensor, by [`TensorPattern`]s of names, and with [`Importances`].
//! * [`Hessians`]: inputs of GPTQ, which [`Assignment::use_hessians`] enables.
//! * [`Weights`]: the source of the weights: a GGUF file here, a folder of safetensors in
//!   [`FolderWeights`](crate::FolderWeights).
//! * [`MergedWeights`]: the weights of another source with merged LoRA adapters.
//! * [`write()`]: writes the file, or the files of a set, on all cores. An interrupted run can be
//!   resumed.
//! * [`quantize_row`]: quantizes a row of weights with the best instructions of this CPU.
mod assigned_tensor;
mod assignment;
mod collected;
mod gptq;
mod hessians;
mod importance;
mod jobs;
mod merged;
mod mix;
mod rounded;
mod rows;
mod rules;
mod search;
mod sensitivity;
mod shape;
mod weights;
mod write;

pub use assigned_tensor::AssignedTensor;
pub use assignment::{Assignment, Options, TensorPattern};
pub use collected::{Calibration, CollectedSums, write_importances};
pub(crate) use gptq::gptq_type_names;
pub use hessians::{HessianGroup, Hessians, write_hessians};
pub use importance::Importances;
pub use latent_quant::gptq::{DEFAULT_DAMPING, GptqOptions, has_gptq};
pub use merged::{AdapterNames, MergedWeights};
pub use mix::Mix;
pub use rounded::RoundedMatrices;
pub use rows::quantize_row;
pub use search::{SizeFit, TypeMeasurements};
pub use sensitivity::TensorGroup;
pub use weights::{SourceTensor, WeightRowReader, Weights};
pub use write::{QuantizedModel, WrittenTensor, write};
