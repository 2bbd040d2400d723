//! A contract from any config.json, over tensors that agree with whatever shape is asked for.
#![no_main]

use graph::contract::{JsonKeys, Tensors};
use libfuzzer_sys::fuzz_target;

/// Every tensor is there, with a shape that the last byte of its name decides.
struct Anything;

impl Tensors for Anything {
    fn shape(&self, name: &str) -> Option<Vec<usize>> {
        let last = usize::from(*name.as_bytes().last()?);
        (last % 3 > 0).then(|| vec![last; last % 4])
    }

    fn f32s(&self, name: &str) -> Option<Vec<f32>> {
        Some(vec![1.0; name.len() % 40])
    }
}

fuzz_target!(|bytes: &[u8]| {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let strict = formats::json::parse(text);
    let usual = serde_json::from_str::<serde_json::Value>(text);
    // strict reading only refuses more; what it accepts is what everyone else reads
    if let Ok(value) = &strict {
        assert_eq!(Some(value), usual.as_ref().ok());
    }
    let Ok(serde_json::Value::Object(object)) = strict else { return };
    let keys = JsonKeys { file: "config.json", object: &object };
    if let Ok(contract) = graph::Contract::from_config(&keys, &Anything) {
        let frequencies = contract.rope.inverse_frequencies(contract.context_length);
        assert_eq!(frequencies.len(), contract.attention.rope / 2);
        assert!(contract.attention.softmax_scale.is_finite() && contract.attention.heads > 0);
        assert_eq!(contract.layer_kinds.len(), contract.all_layers());
    }
});
