//! Assertions about the texts of refusals.

use crate::config_support::{self, GgufFixture, GgufSizes, HfFixture, deepseek_v3, names};
use serde_json::Value;

pub(crate) const SMALL: GgufSizes = GgufSizes { q_lora: 48, ..config_support::SMALL };

pub(crate) fn small() -> GgufFixture {
    GgufFixture::deepseek2(SMALL)
}

#[track_caller]
pub(crate) fn gguf(file: GgufFixture, parts: &[&str]) {
    let error = file.error();
    names(&error, &["model.gguf"]);
    names(&error, parts);
}

#[track_caller]
pub(crate) fn config(folder: HfFixture, parts: &[&str]) {
    let error = folder.error();
    names(&error, &["model/config.json"]);
    names(&error, parts);
}

#[track_caller]
pub(crate) fn config_key(key: &str, value: Value, expected: &str) {
    let shown = value.to_string();
    config(deepseek_v3().set(key, value), &[key, &shown, expected]);
}

#[track_caller]
pub(crate) fn config_key_shape(key: &str, value: Value, tensor: &str, shape: &str) {
    config(deepseek_v3().set(key, value), &[tensor, shape, "expected"]);
}
