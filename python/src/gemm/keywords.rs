//! Keyword arguments of matrix products.

use crate::errors::{argument, exception, refused};
use crate::options::{KeywordValue, Keywords, given, unknown};
use latent::{GemmOptions, quant_type};
use latent_marlin::{GemmDevice, QuantType, ResidentWeight};
use pyo3::prelude::*;

/// Names of the options that describe a weight, the number of threads, and the device.
const WEIGHT: [&str; 6] = ["zeros", "quant_type", "scale_type", "tensor_scale", "threads", "device"];

/// Storage format of group scales.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ScaleType {
    F16,
    E8m0,
    E4m3,
}

/// Keyword arguments that describe a weight.
#[derive(Default)]
pub(crate) struct WeightKeywords<'py> {
    pub(crate) zeros: Option<Bound<'py, PyAny>>,
    pub(crate) quant: Option<QuantType>,
    pub(crate) scale_type: Option<ScaleType>,
    pub(crate) tensor_scale: Option<f32>,
    /// Number of threads. 0: the default.
    pub(crate) threads: usize,
    pub(crate) device: Option<String>,
}

/// Keyword arguments of a product.
#[derive(Default)]
pub(crate) struct ProductKeywords<'py> {
    pub(crate) weight: WeightKeywords<'py>,
    pub(crate) bias: Option<Bound<'py, PyAny>>,
    pub(crate) options: GemmOptions,
}

/// Element type of a dequantized weight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Decoded {
    #[default]
    F32,
    F16,
}

/// Converts a NumPy dtype.
pub(crate) fn decoded(dtype: &Bound<'_, PyAny>) -> PyResult<Decoded> {
    let py = dtype.py();
    let dtype = py.import("numpy")?.call_method1("dtype", (dtype,))?.getattr("name")?;
    match dtype.extract::<String>()?.as_str() {
        "float32" => Ok(Decoded::F32),
        "float16" => Ok(Decoded::F16),
        other => Err(argument(py, format!("dtype {other}: expected float32 or float16"))),
    }
}

impl<'py> WeightKeywords<'py> {
    /// Stores a keyword argument. Returns false if it does not describe a weight.
    pub(crate) fn take(&mut self, given: &KeywordValue<'_, 'py>) -> PyResult<bool> {
        let py = given.value.py();
        match given.name {
            "zeros" => self.zeros = Some(given.value.clone()),
            "quant_type" => {
                let word: String = given.extract("a word")?;
                self.quant = Some(quant_type(&word).map_err(|error| exception(py, &error))?);
            }
            "scale_type" => {
                self.scale_type = Some(match given.extract::<String>("a word")?.as_str() {
                    "f16" => ScaleType::F16,
                    "e8m0" => ScaleType::E8m0,
                    "e4m3" => ScaleType::E4m3,
                    other => {
                        let message = format!("scale_type {other:?}: expected f16, e8m0, e4m3");
                        return Err(argument(py, message));
                    }
                });
            }
            "tensor_scale" => self.tensor_scale = Some(given.real()?),
            "threads" => self.threads = given.at_least_one()?,
            "device" => self.device = Some(given.extract("a word")?),
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Reads the keyword arguments of `dequantize`.
    pub(crate) fn with_dtype(
        py: Python<'py>,
        keywords: Keywords<'_, 'py>,
    ) -> PyResult<(WeightKeywords<'py>, Decoded)> {
        let (mut weight, mut result) = (WeightKeywords::default(), Decoded::default());
        for (name, value) in given(keywords)? {
            let given = KeywordValue { name: &name, value };
            if weight.take(&given)? {
                continue;
            }
            if name != "dtype" {
                return Err(unknown(py, &name, &[&WEIGHT[..], &["dtype"]].concat()));
            }
            result = decoded(&given.value)?;
        }
        Ok((weight, result))
    }
}

impl<'py> ProductKeywords<'py> {
    /// Reads the keyword arguments of a product. `kernel`: whether that option is allowed.
    pub(crate) fn new(py: Python<'py>, keywords: Keywords<'_, 'py>, kernel: bool) -> PyResult<Self> {
        let words: Vec<&str> =
            GemmOptions::WORDS.into_iter().filter(|word| kernel || *word != "kernel").collect();
        let mut all = ProductKeywords::default();
        for (name, value) in given(keywords)? {
            let given = KeywordValue { name: &name, value };
            if all.weight.take(&given)? {
                continue;
            }
            if name == "bias" {
                all.bias = Some(given.value);
            } else if words.contains(&name.as_str()) {
                let word: String = given.extract("a word")?;
                all.options.set(&name, &word).map_err(|error| exception(py, &error))?;
            } else {
                return Err(unknown(py, &name, &[&WEIGHT[..], &["bias"], &words].concat()));
            }
        }
        Ok(all)
    }

    /// Refuses options that apply to the CPU only.
    pub(crate) fn check_device(&self, py: Python<'py>, device: &GemmDevice) -> PyResult<()> {
        if self.weight.threads == 0 {
            return Ok(());
        }
        Err(refused(py, latent_marlin::Error::CpuOption { option: "threads", device: device.name() }))
    }

    /// Refuses arguments that describe a weight or a device if the weight is a `DeviceWeight`.
    pub(crate) fn check_resident(
        &self,
        py: Python<'py>,
        scales: Option<&Bound<'py, PyAny>>,
        weight: &ResidentWeight,
    ) -> PyResult<()> {
        self.check_device(py, weight.device())?;
        let WeightKeywords { zeros, quant, scale_type, tensor_scale, device, .. } = &self.weight;
        // An option that repeats a property of the weight could contradict it.
        let given = [
            ("scales", scales.is_some()),
            ("zeros", zeros.is_some()),
            ("quant_type", quant.is_some()),
            ("scale_type", scale_type.is_some()),
            ("tensor_scale", tensor_scale.is_some()),
            ("device", device.is_some()),
        ];
        match given.into_iter().find(|(_, given)| *given) {
            Some((name, _)) => Err(argument(py, format!("{name}: a DeviceWeight has its own; omit it"))),
            None => Ok(()),
        }
    }
}
