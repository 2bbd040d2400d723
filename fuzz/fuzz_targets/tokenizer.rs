//! A tokenizer from any tokenizer.json, a chat template from the same bytes, and text through what was built.
#![no_main]

use libfuzzer_sys::fuzz_target;
use text::{ChatInput, ChatTemplate, Encode, Tokenizer};

fuzz_target!(|bytes: &[u8]| {
    if let Ok(tokenizer) = Tokenizer::from_hf(bytes, None, None) {
        let how = Encode { add_special: true, parse_special: true };
        if let Ok(ids) = tokenizer.encode("Hello, wörld <s> 123", how) {
            let _ = tokenizer.decode(&ids, true);
        }
    }
    if bytes.len() < 4096
        && let Ok(source) = std::str::from_utf8(bytes)
        && let Ok(template) = ChatTemplate::new(source)
    {
        let _ = template.render(&ChatInput::new(serde_json::json!([{"role": "user", "content": "Hi"}])));
    }
});
