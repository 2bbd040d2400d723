//! A GGUF header from any bytes; what parses is read to its end, and a contract is attempted on it.
#![no_main]

use formats::gguf::{GgufError, Header, Value};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let parsed = Header::parse(bytes, bytes.len() as u64);
    // as the beginning of a longer file: never refused where the whole file is read, and never satisfied by asking for what is there
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
    if let Ok(vocab) = text::GgufVocab::from_metadata(&header.metadata) {
        let _ = text::Tokenizer::from_gguf(&vocab);
    }
});
