//! Random models as folders of 4-bit and FP8 weights in the layouts of AutoGPTQ and GPTQModel,
//! AutoAWQ, compressed-tensors and ModelOpt. Each comes with a copy of the same weights in f32.

mod form;
mod packers;
mod quantize;

pub use form::{FourBitLayout, FourBitRecipe, Fp8Scale};

use crate::error::TestingError;
use crate::folder::config_of;
use crate::gguf::tensors;
use crate::random::{NumberSpread, Random, rows};
use crate::{ModelRecipe, WrittenModel};
use form::TensorData;
use latent_formats::safetensors::Writer;
use latent_formats::{CompleteFile, OutputFile, OutputFolder};
use latent_graph::circuit::TensorNaming;
use latent_graph::config::KvForm;
use latent_types::TensorType;
use serde_json::{Value, json};
use std::io::Write;
use std::path::Path;

impl ModelRecipe {
    /// Writes the model with quantized weights into the folder `packed`, and with the values of
    /// these weights in f32 into `plain`. Matrices of `packed` that are not quantized have the
    /// recipe's own type.
    ///
    /// # Errors
    /// If the shape or type is unknown, safetensors has no dtype for it, or a folder cannot be
    /// written.
    pub fn write_four_bit(
        &self,
        form: &FourBitRecipe,
        packed: &Path,
        plain: &Path,
    ) -> Result<WrittenModel, TestingError> {
        let shape = self.shape()?;
        if self.kind.base.is_quantized() {
            return Err(TestingError::NoFolder { kind: self.kind.base });
        }
        let config = self.config(shape, KvForm::Combined);
        let (mut small, mut whole) = (Vec::new(), Vec::new());
        for (name, ty, shape) in tensors(self, &config, TensorNaming::HuggingFace)? {
            let mut random = Random::of_tensor(self.seed, &name);
            let cols = shape.last().copied().unwrap_or(1);
            let outputs: usize = shape[..shape.len() - 1].iter().product();
            let spread = NumberSpread::of(&name, &shape);
            let encoded = |error| TestingError::Encode { tensor: name.clone(), error };
            let bytes = rows(&mut random, ty, outputs, cols, spread).map_err(encoded)?;
            let mut numbers = vec![0.0; outputs * cols];
            // Decoding rounds the numbers to what `packed` stores, so that `plain` holds exactly
            // the same values.
            latent_quant::decode(ty, &bytes, &mut numbers).map_err(encoded)?;
            if form.takes(&name, &shape) {
                let (parts, values) = packers::pack(form, &name, &numbers, cols, &mut random);
                small.extend(parts);
                numbers = values;
            } else {
                small.push(TensorData { name: name.clone(), ty, shape: shape.clone(), bytes });
            }
            let bytes = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
            whole.push(TensorData { name, ty: TensorType::F32, shape, bytes });
        }
        let mut config = config_of(shape, &config);
        write(plain, &config, &whole)?;
        config["quantization_config"] = settings(form);
        write(packed, &config, &small)
    }
}

fn write(folder: &Path, config: &Value, tensors: &[TensorData]) -> Result<WrittenModel, TestingError> {
    let made = OutputFolder::create(folder)?;
    let mut out = OutputFile::create(&folder.join("config.json"))?;
    out.write_all(config.to_string().as_bytes()).map_err(|error| out.failed(error))?;
    let config = out.complete()?;
    let mut out = OutputFile::create(&folder.join("model.safetensors"))?;
    let mut writer = Writer::new();
    for held in tensors {
        writer.tensor(held.name.clone(), held.ty, &held.shape).map_err(|error| out.failed(error))?;
    }
    let written = writer.write(&mut out, |i, out| out.write_all(&tensors[i].bytes));
    written.map_err(|error| out.failed(error))?;
    let weights = out.complete()?;
    let written = WrittenModel { bytes: weights.bytes(), tensors: tensors.len(), first: folder.to_owned() };
    CompleteFile::publish_all(vec![weights, config])?;
    made.keep();
    Ok(written)
}

/// The `quantization_config` that the layout's program writes.
fn settings(form: &FourBitRecipe) -> Value {
    let group = form.group.map_or(-1, |group| group as i64);
    match form.layout {
        FourBitLayout::Gptq | FourBitLayout::GptqV2 => json!({
            "quant_method": "gptq",
            "bits": 4,
            "group_size": group,
            "desc_act": form.ordered,
            "sym": form.symmetric,
            "lm_head": false,
            "checkpoint_format": if form.layout == FourBitLayout::Gptq { "gptq" } else { "gptq_v2" },
            "pack_dtype": "int32",
        }),
        FourBitLayout::Awq => json!({
            "quant_method": "awq",
            "bits": 4,
            "group_size": group,
            "zero_point": true,
            "version": "gemm",
            "modules_to_not_convert": form.ignored,
        }),
        FourBitLayout::PackQuantized => compressed(form, "pack-quantized", "int", form.group),
        FourBitLayout::Nvfp4 => compressed(form, "nvfp4-pack-quantized", "float", Some(16)),
        FourBitLayout::Mxfp4 => compressed(form, "mxfp4-pack-quantized", "float", Some(32)),
        FourBitLayout::ModelOpt => json!({"quant_method": "modelopt", "quant_algo": "NVFP4"}),
        FourBitLayout::Fp8(scale) => float_quantized(scale),
        FourBitLayout::E5m2(_) => {
            json!({"quant_method": "fp8", "fmt": "e5m2", "activation_scheme": "dynamic"})
        }
    }
}

fn float_quantized(scale: Fp8Scale) -> Value {
    let (strategy, blocks, inputs) = match scale {
        Fp8Scale::Tensor => {
            ("tensor", Value::Null, json!({"num_bits": 8, "type": "float", "dynamic": false}))
        }
        Fp8Scale::Channel => {
            ("channel", Value::Null, json!({"num_bits": 8, "type": "float", "dynamic": true}))
        }
        Fp8Scale::Block => ("block", json!([128, 128]), Value::Null),
    };
    json!({
        "quant_method": "compressed-tensors",
        "format": "float-quantized",
        "quantization_status": "compressed",
        "ignore": ["lm_head"],
        "config_groups": {"group_0": {
            "targets": ["Linear"],
            "input_activations": inputs,
            "output_activations": null,
            "weights": {
                "num_bits": 8,
                "type": "float",
                "symmetric": true,
                "strategy": strategy,
                "group_size": null,
                "block_structure": blocks,
                "dynamic": false,
            },
        }},
    })
}

fn compressed(form: &FourBitRecipe, format: &str, ty: &str, group: Option<usize>) -> Value {
    let mut ignored = vec!["lm_head".to_owned()];
    ignored.extend(form.ignored.iter().map(|part| format!("re:.*{part}.*")));
    json!({
        "quant_method": "compressed-tensors",
        "format": format,
        "quantization_status": "compressed",
        "ignore": ignored,
        "config_groups": {"group_0": {
            "targets": ["Linear"],
            "input_activations": null,
            "output_activations": null,
            "weights": {
                "num_bits": 4,
                "type": ty,
                "symmetric": form.symmetric,
                "strategy": if group.is_some() { "group" } else { "channel" },
                "group_size": group,
                "actorder": form.ordered.then_some("group"),
                "dynamic": false,
            },
        }},
    })
}
