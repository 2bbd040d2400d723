//! Flags of `vllm serve`, except those that llama-server has under the same name.

use super::flag::FlagMeaning::{Becomes, ByValue, Ignored, Refused};
use super::flag::FlagOperand::{Nothing, Value, Values};
use super::flag::{CompatFlag, row};
use super::values;

#[rustfmt::skip]
pub(super) const FLAGS: &[CompatFlag] = &[
    // The model.
    row("--served-model-name", "", Values, Becomes("--alias"), "the first name is shown"),
    row("--revision", "", Value, Refused, "write it into the model's name: hf:OWNER/NAME@REVISION"),
    row("--download-dir", "", Value, Refused, "set the variable LATENT_CACHE"),
    row("--load-format", "", Value, Ignored, "GGUF files and folders of safetensors are detected"),
    row("--tokenizer", "", Value, Refused, "the tokenizer is that of the model's file or folder"),
    row("--tokenizer-mode", "", Value, Ignored, "the tokenizer is that of the model's file or folder"),
    row("--config-format", "", Value, Ignored, "the configuration is that of the model's file or folder"),
    row("--trust-remote-code", "", Nothing, Ignored, "code in repositories is never run"),
    row("--dtype", "", Value, Ignored, "weights keep the types of the file; `--precision exact` computes in f32"),
    row("--quantization", "", Value, Ignored, "the file defines the quantization"),
    row("--enable-lora", "", Nothing, Ignored, "`--lora FILE` gives the model adapters"),
    row("--lora-modules", "", Values, Refused, "give `--lora FILE:SCALE`; requests set scales by the field `lora`"),
    row("--task", "", Value, ByValue(values::task), "`generate` and `auto`; embeddings are served as well"),
    row("--runner", "", Value, ByValue(values::task), "`generate` and `auto`; embeddings are served as well"),
    row("--limit-mm-per-prompt", "", Value, Ignored, "image input is not supported"),

    // Context, batches and memory.
    row("--max-model-len", "", Value, ByValue(values::max_model_len), "`--ctx-size`; `auto` and -1: the default"),
    row("--max-num-seqs", "", Value, Becomes("--parallel"), ""),
    row("--max-num-batched-tokens", "", Value, ByValue(values::batched_tokens), "`--batch-size`, at most 8192"),
    row("--gpu-memory-utilization", "", Value, Ignored, "memory is measured: the cache takes what its context needs; `--cache-tokens` sets its size"),
    row("--kv-cache-memory-bytes", "", Value, Refused, "--cache-tokens sets the size of the cache in tokens"),
    row("--kv-cache-dtype", "", Value, ByValue(values::kv_cache_dtype), "`--cache-type`; fp8_e5m2: int8"),
    row("--enable-prefix-caching", "", Nothing, Ignored, "prompts are cached"),
    row("--enable-chunked-prefill --no-enable-chunked-prefill", "", Nothing, Ignored, "long prompts are read in batches, together with other requests"),
    row("--block-size", "", Value, Ignored, "blocks of the cache have 64 tokens"),
    row("--swap-space", "", Value, Ignored, "a request that loses its blocks runs again; `--cache-disk` keeps prompts"),
    row("--cpu-offload-gb", "", Value, Refused, "layers are placed as a whole: `-ngl N` puts the last N on the GPU"),
    row("--enforce-eager", "", Nothing, Ignored, "plans are made when the model is loaded"),
    row("--compilation-config -O", "", Value, Ignored, "plans are made when the model is loaded"),
    row("--tensor-parallel-size -tp", "", Value, ByValue(values::tensor_parallel), "1; more: `mpirun -n N latent serve … --partition tensor=N`"),
    row("--pipeline-parallel-size -pp", "", Value, ByValue(values::pipeline_parallel), "1; more: `mpirun -n N latent serve … --partition pipeline=N`"),
    row("--data-parallel-size -dp", "", Value, ByValue(values::data_parallel), "1; more: several servers behind a load balancer"),
    row("--enable-expert-parallel", "", Nothing, Refused, "give `--partition experts=N` to N processes (docs/hosts.md)"),
    row("--distributed-executor-backend", "", Value, Ignored, "processes share a model by MPI"),
    row("--speculative-config", "", Value, Refused, "`--draft mtp` drafts with the model's own MTP layer"),

    // Chat and defaults of requests.
    row("--enable-auto-tool-choice", "", Nothing, Ignored, "tools are always offered to the model"),
    row("--tool-call-parser", "", Value, Ignored, "the tool call format is that of the model"),
    row("--reasoning-parser", "", Value, Ignored, "the reasoning format is that of the model"),
    row("--enable-reasoning", "", Nothing, Ignored, "reasoning is always separated"),
    row("--chat-template-content-format", "", Value, Ignored, "it is known from the template"),
    row("--default-chat-template-kwargs", "", Value, Becomes("--chat-template-kwargs"), ""),
    row("--structured-outputs-config", "", Value, Ignored, "grammars are compiled by llguidance"),
    row("--guided-decoding-backend", "", Value, Ignored, "grammars are compiled by llguidance"),
    row("--generation-config", "", Value, ByValue(values::generation_config), "`auto`: the model's; `vllm`: `--no-model-sampling`"),
    row("--override-generation-config", "", Value, Refused, "give the flags of the samplers: --temp, --top-p, …"),
    row("--response-role", "", Value, Ignored, "answers are the assistant's"),
    row("--max-logprobs", "", Value, Refused, "write top_logprobs into the section [limits] of the file of --config"),

    // The server.
    row("--allowed-origins", "", Value, ByValue(values::allowed_origins), "`--cors` for each"),
    row("--allowed-methods", "", Value, Ignored, "all methods that the server has are allowed"),
    row("--allowed-headers", "", Value, Ignored, "the headers that a preflight names are allowed"),
    row("--allow-credentials", "", Nothing, Becomes("--cors-credentials"), ""),
    row("--ssl-keyfile", "", Value, Becomes("--tls-key"), ""),
    row("--ssl-certfile", "", Value, Becomes("--tls-cert"), ""),
    row("--root-path", "", Value, Ignored, "addresses in answers are relative; `--api-prefix` serves below a prefix"),
    row("--uvicorn-log-level", "", Value, ByValue(values::uvicorn_log_level), "`--log`"),
    row("--disable-log-requests --no-enable-log-requests", "", Nothing, Ignored, "requests are only logged with `--log info`"),
    row("--enable-log-requests", "", Nothing, Becomes("--log info"), ""),
    row("--disable-log-stats", "", Nothing, Ignored, "statistics are only in /metrics"),
    row("--disable-uvicorn-access-log", "", Nothing, Ignored, "requests are only logged with `--log info`"),
    row("--disable-fastapi-docs", "", Nothing, Ignored, "`/openapi.json` is always served"),
    row("--api-server-count", "", Value, Ignored, "one thread serves all connections"),
];
