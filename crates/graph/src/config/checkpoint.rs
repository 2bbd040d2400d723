//! An opened checkpoint as keys and tensors.

use super::decimal::written;
use super::source::{ConfigTensors, MetadataKeys, MetadataValue};
use latent_formats::gguf::{Metadata, Value};
use latent_formats::{Checkpoint, TensorInfo, TensorRef};
use latent_types::TensorType;

/// Maximum list length that is read; a longer one is reduced to its length.
// Lists per layer or per rotated pair are shorter, vocabularies are longer.
const MAX_LIST: usize = 4096;

/// Metadata of a GGUF file.
pub(super) struct GgufKeys<'a> {
    pub(super) file: String,
    pub(super) metadata: &'a Metadata,
}

impl MetadataKeys for GgufKeys<'_> {
    fn file(&self) -> String {
        self.file.clone()
    }

    fn field(&self, key: &str) -> Option<MetadataValue> {
        Some(match self.metadata.get(key)? {
            Value::Unsigned(value) => MetadataValue::Integer((*value).into()),
            Value::Signed(value) => MetadataValue::Integer((*value).into()),
            // GGUF floats are f32. The decimal behind them equals the number in config.json.
            Value::Float(value) => MetadataValue::Real(written(*value)),
            Value::Bool(value) => MetadataValue::Flag(*value),
            Value::String(value) => MetadataValue::Text(value.clone()),
            Value::Array(array) if array.count > MAX_LIST => MetadataValue::Count(array.count),
            Value::Array(array) => match self.metadata.numbers(key) {
                Ok(Some(numbers)) => MetadataValue::List(numbers.into_iter().map(number).collect()),
                _ => MetadataValue::Count(array.count),
            },
        })
    }
}

fn number(value: f64) -> MetadataValue {
    // `numbers` returns f64 for every array type. Below 2^53 integers are exact.
    if value.fract() == 0.0 && value.abs() < 9e15 {
        MetadataValue::Integer(value as i128)
    } else {
        MetadataValue::Real(written(value))
    }
}

/// Tensors of a checkpoint.
pub(super) struct CheckpointShapes<'a>(pub(super) &'a Checkpoint);

impl ConfigTensors for CheckpointShapes<'_> {
    fn shape(&self, name: &str) -> Option<Vec<usize>> {
        self.0.info(name).map(|info| info.shape.clone())
    }

    fn equal(&self, one: &str, other: &str) -> Option<bool> {
        let (one, other) = (self.0.tensor(one)?, self.0.tensor(other)?);
        let form =
            |tensor: &TensorRef<'_>| (tensor.info.ty, tensor.info.shape.clone(), tensor.info.tile_rows);
        // Bytes of different formats or tile layouts are never compared.
        Some(form(&one) == form(&other) && one.data == other.data)
    }

    fn f32s(&self, name: &str) -> Option<Vec<f32>> {
        let plain = |info: &TensorInfo| info.ty == TensorType::F32 && info.tile_rows.is_none();
        let tensor = self.0.tensor(name).filter(|tensor| plain(tensor.info))?;
        let numbers = tensor
            .data
            .chunks_exact(4)
            .map(|bytes| f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]));
        Some(numbers.collect())
    }
}
