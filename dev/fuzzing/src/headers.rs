//! Headers of every kind of model file, and config.json.

use latent_formats::gguf::{GgufError, Header, Value};
use latent_formats::pack::{Directory, PAGE};
use latent_formats::safetensors::SafetensorsError;
use latent_graph::config::{ConfigTensors, JsonKeys};

/// Most tensors exist, with a shape that the last byte of the name decides.
struct FuzzTensors;

impl ConfigTensors for FuzzTensors {
    fn shape(&self, name: &str) -> Option<Vec<usize>> {
        let last = usize::from(*name.as_bytes().last()?);
        (last % 3 > 0).then(|| vec![last; last % 4])
    }

    fn f32s(&self, name: &str) -> Option<Vec<f32>> {
        Some(vec![1.0; name.len() % 40])
    }
}

/// Reads a model config from any config.json, over tensors of arbitrary shapes.
///
/// # Panics
/// If the strict JSON parser accepts a text that serde_json reads differently, or the config
/// contradicts itself.
pub fn config(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let strict = latent_formats::json::parse(text);
    let usual = serde_json::from_str::<serde_json::Value>(text);
    // The strict parser may refuse more, but what it accepts must have the same value in
    // serde_json. The exception is serde_json's private key for numbers that it keeps as text.
    if let Ok(value) = &strict
        && !text.contains("$serde_json::private::")
    {
        assert_eq!(Some(value), usual.as_ref().ok());
    }
    let Ok(serde_json::Value::Object(object)) = strict else { return };
    let keys = JsonKeys { file: "config.json", object: &object };
    if let Ok(config) = latent_graph::ModelConfig::from_config(&keys, &FuzzTensors) {
        let frequencies = config.rope.inverse_frequencies(config.context_length);
        assert_eq!(frequencies.len(), config.rope.dims / 2);
        assert!(config.attention.softmax_scale.is_finite() && config.attention.heads > 0);
        assert_eq!(config.layer_kinds.len(), config.all_layers());
    }
}

/// Parses a GGUF header from any bytes, reads all of its metadata and tries to build a tokenizer
/// from it.
///
/// # Panics
/// If a tensor or an array is longer than the file, or the beginning of a valid file is refused.
pub fn gguf(bytes: &[u8]) {
    let parsed = Header::parse(bytes, bytes.len() as u64);
    // Readers parse the beginning of a long file first. It must not be refused if the whole file is
    // valid, and `NeedMore` must ask for more bytes than there are, or the reader would loop.
    match Header::parse(bytes, u64::MAX) {
        Ok(_) => {}
        Err(GgufError::NeedMore { need, .. }) => assert!(parsed.is_err() && need > bytes.len() as u64),
        Err(_) => assert!(parsed.is_err()),
    }
    let Ok(header) = parsed else { return };
    for tensor in &header.tensors {
        assert!(tensor.start + tensor.bytes <= bytes.len() as u64);
    }
    for (key, value) in header.metadata.entries() {
        let _ =
            (header.metadata.u64(key), header.metadata.f64(key), header.metadata.str(key), value.describe());
        if let Value::Array(array) = value {
            let strings = header.metadata.strings(key).ok().flatten().map(|s| s.len());
            let numbers = header.metadata.numbers(key).ok().flatten().map(|n| n.len());
            assert!(strings.or(numbers).is_none_or(|n| n == array.count));
        }
    }
    if let Ok(vocab) = latent_text::GgufVocab::from_metadata(&header.metadata) {
        let _ = latent_text::Tokenizer::from_gguf(&vocab);
    }
}

/// Parses a safetensors header from any bytes.
///
/// # Panics
/// If tensors leave holes or reach beyond the file.
pub fn safetensors(bytes: &[u8]) {
    match latent_formats::safetensors::Header::parse(bytes, u64::MAX) {
        // The format allows no holes: the tensors must fill the file.
        Ok(header) => {
            let held: u64 = header.tensors.iter().map(|tensor| tensor.bytes).sum();
            assert_eq!(header.data_start + held, u64::MAX);
        }
        Err(SafetensorsError::NeedMore { need, .. }) => assert!(need > bytes.len() as u64),
        Err(_) => {}
    }
    let Ok(tensors) = latent_formats::safetensors::list(bytes) else { return };
    let mut held = 0;
    for (_, _, shape, range) in tensors {
        assert!(range.start <= range.end && range.end <= bytes.len());
        assert!(shape.len() <= latent_formats::limits::MAX_SAFETENSORS_DIMENSIONS);
        held += range.len();
    }
    // The difference is the header and its length of eight bytes. Tensors that overlap would make
    // the sum too large.
    assert!(bytes.len() - held >= 8 && held <= bytes.len());
}

/// Parses the header of a packed file from any bytes.
///
/// # Panics
/// If a tensor reaches beyond the file, or its size differs from that of its rows.
pub fn packed(bytes: &[u8]) {
    let _ = Directory::parse(bytes);
    // The checksum in the prelude would refuse nearly all inputs, so the body is parsed without it.
    directory(bytes);
    // Tensors begin at multiples of a page. Without padding, no short input could hold one.
    let mut longer = bytes.to_vec();
    longer.resize(bytes.len().next_multiple_of(PAGE as usize) + 2 * PAGE as usize, 0);
    directory(&longer);
}

fn directory(body: &[u8]) {
    let Ok(directory) = Directory::parse_body(body) else { return };
    for tensor in &directory.tensors {
        assert!(tensor.start >= directory.data_start);
        assert!(tensor.start + tensor.bytes <= body.len() as u64 + PAGE);
        if tensor.tile_rows.is_none() {
            let rows: usize = tensor.shape.iter().rev().skip(1).product();
            let row = tensor.ty.row_bytes(tensor.shape.last().copied().unwrap_or(1));
            assert_eq!(row.map(|row| (row * rows) as u64), Some(tensor.bytes));
        }
    }
}
