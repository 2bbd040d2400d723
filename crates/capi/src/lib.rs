//! C interface of Latent, described in docs/c.md and in `include/latent.h`, which cbindgen
//! generates from these files.
//!
//! * `error.rs`: status codes and error objects; `border.rs`: pointer checks and panics.
//! * `buffers.rs`: strings and token arrays that the library allocates.
//! * `sized.rs`: structs with a size field; `load_options.rs`, `generate_options.rs`: options.
//! * `model.rs`, `text.rs`, `generate.rs`, `event.rs`, `chat.rs`, `values.rs`: functions of a
//!   model.
//! * `gemm.rs`, `gemm_device.rs`, `weight.rs`: products with 4-bit weights.
#![deny(missing_docs)]
#![allow(unsafe_code, reason = "every function of the border takes pointers")]
#![allow(
    clippy::missing_safety_doc,
    reason = "latent.h says what pointers must be: docs/c.md, and each parameter"
)]
#![allow(non_camel_case_types, reason = "the names are C's")]

mod border;
mod buffers;
mod chat;
mod error;
mod event;
mod gemm;
mod gemm_device;
mod generate;
mod generate_options;
mod load_options;
mod model;
mod sized;
mod text;
mod values;
mod version;
mod weight;

pub use buffers::{latent_string, latent_string_free, latent_tokens, latent_tokens_free};
pub use chat::{latent_chat, latent_render_chat};
pub use error::{latent_error, latent_error_free, latent_error_message, latent_error_status, latent_status};
pub use event::{latent_callback, latent_event, latent_event_kind};
pub use gemm::{
    latent_gemm, latent_gemm_dequantize, latent_gemm_free, latent_gemm_multiply, latent_gemm_new,
    latent_gemm_options, latent_gemm_pack, latent_input_type,
};
pub use gemm_device::{
    latent_device_array, latent_device_array_free, latent_device_array_new, latent_device_array_read,
    latent_device_array_shape, latent_device_dequantize, latent_device_multiply, latent_device_weight,
    latent_device_weight_free, latent_device_weight_new, latent_gemm_device, latent_gemm_device_free,
    latent_gemm_device_open,
};
pub use generate::{latent_answer, latent_generate, latent_stop};
pub use generate_options::{latent_generate_options, latent_generate_options_init, latent_logit_bias};
pub use load_options::{latent_load_options, latent_lora};
pub use model::{
    latent_model, latent_model_context, latent_model_describe, latent_model_free, latent_model_hidden_size,
    latent_model_load, latent_model_vocab_size,
};
pub use text::{latent_detokenize, latent_tokenize};
pub use values::{latent_embed, latent_logits};
pub use version::{LATENT_ABI_VERSION, latent_abi_version, latent_version};
pub use weight::{latent_quant_type, latent_scale_type, latent_weight};
