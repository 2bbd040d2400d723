//! Quantization of GGUF models.
//!
//! * [`Assignment`]: which type each tensor gets, by a [`Mix`] with llama.cpp's choice per tensor, by [`TensorPattern`]s of names, and with [`Importances`].
//! * [`Hessians`]: rounds tensors by GPTQ where [`Assignment::use_hessians`] is called.
//! * [`Weights`]: where the weights come from: a GGUF file here, a folder of safetensors in [`FolderWeights`](crate::FolderWeights).
//! * [`MergedWeights`]: the weights of another source with LoRA adapters merged into them.
//! * [`write()`]: writes the file, or the files of a set, on all cores; an interrupted run can be resumed.
//! * [`quantize_row`]: a row of weights in a type, by the instructions of this CPU.
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
