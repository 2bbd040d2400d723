//! A safetensors header from any bytes.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(tensors) = formats::safetensors::list(bytes) else { return };
    for (_, _, shape, range) in tensors {
        assert!(range.start <= range.end && range.end <= bytes.len());
        assert!(shape.len() <= formats::limits::MAX_SAFETENSORS_DIMENSIONS);
    }
});
