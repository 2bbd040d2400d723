//! A safetensors header from any bytes.
#![no_main]

use formats::safetensors::{Header, SafetensorsError};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    match Header::parse(bytes, u64::MAX) {
        // what no tensor holds would be a hole
        Ok(header) => {
            let held: u64 = header.tensors.iter().map(|tensor| tensor.bytes).sum();
            assert_eq!(header.data_start + held, u64::MAX);
        }
        Err(SafetensorsError::NeedMore { need, .. }) => assert!(need > bytes.len() as u64),
        Err(_) => {}
    }
    let Ok(tensors) = formats::safetensors::list(bytes) else { return };
    let mut held = 0;
    for (_, _, shape, range) in tensors {
        assert!(range.start <= range.end && range.end <= bytes.len());
        assert!(shape.len() <= formats::limits::MAX_SAFETENSORS_DIMENSIONS);
        held += range.len();
    }
    // nothing is hidden between tensors
    assert!(bytes.len() - held >= 8 && held <= bytes.len());
});
