//! Flags whose meaning depends on their value.

use super::flag::FlagOutcome;
use serde_json::Value;

/// Maximum `--batch-size`.
const MAX_BATCH: u64 = super::super::limits::MAX_STEP_ROWS;

/// `--parallel`: −1 means the default.
pub(super) fn parallel(value: &str) -> FlagOutcome {
    match value {
        "-1" => FlagOutcome::Ignored("the number of requests is Latent's default"),
        value => FlagOutcome::flag("--parallel", value),
    }
}

/// `--prio`.
pub(super) fn priority(value: &str) -> FlagOutcome {
    match value {
        "0" => FlagOutcome::Ignored("the priority is that of the process"),
        _ => FlagOutcome::Refused("start the server with `nice` or `chrt`".into()),
    }
}

/// `--numa`.
pub(super) fn numa(value: &str) -> FlagOutcome {
    match value {
        "distribute" => FlagOutcome::flag("--pin", "nodes"),
        "numactl" => FlagOutcome::Ignored("the affinity of the process always applies"),
        "isolate" => {
            FlagOutcome::Refused("start the server with `numactl --cpunodebind=0 --membind=0`".into())
        }
        _ => FlagOutcome::Refused("expected distribute, isolate or numactl".into()),
    }
}

/// `--device`: names of Latent pass through, those of llama.cpp's backends become `gpu:N`.
pub(super) fn device(value: &str) -> FlagOutcome {
    if value.contains(',') {
        let problem =
            "a process uses one GPU: --partition divides a model among several processes (docs/hosts.md)";
        return FlagOutcome::Refused(problem.into());
    }
    if value == "none" {
        return FlagOutcome::flag("--device", "cpu");
    }
    // llama.cpp names devices by backend and index: CUDA0, Vulkan1, ROCm0. A Metal device may have
    // no index.
    let letters = value.trim_end_matches(|c: char| c.is_ascii_digit());
    let known = ["cuda", "vulkan", "rocm", "hip", "sycl", "metal", "mtl"];
    if known.contains(&letters.to_ascii_lowercase().as_str()) {
        let index = Some(&value[letters.len()..]).filter(|index| !index.is_empty()).unwrap_or("0");
        return FlagOutcome::flag("--device", format!("gpu:{index}"));
    }
    FlagOutcome::flag("--device", value)
}

/// `--main-gpu`.
pub(super) fn main_gpu(value: &str) -> FlagOutcome {
    match value {
        "0" => FlagOutcome::Ignored("the first GPU is used"),
        value => FlagOutcome::flag("--device", format!("gpu:{value}")),
    }
}

/// `--split-mode`.
pub(super) fn split_mode(value: &str) -> FlagOutcome {
    match value {
        "none" | "layer" => FlagOutcome::Ignored("one GPU is used"),
        "row" | "tensor" => FlagOutcome::Refused(
            "a process uses one GPU: --partition tensor=N divides a model among N processes (docs/hosts.md)"
                .into(),
        ),
        _ => FlagOutcome::Refused("expected none, layer, row or tensor".into()),
    }
}

/// `--spec-type`.
pub(super) fn spec_type(value: &str) -> FlagOutcome {
    match value {
        "none" => FlagOutcome::flag("--draft", "none"),
        "draft-mtp" => FlagOutcome::flag("--draft", "mtp"),
        _ if value.starts_with("ngram-") => FlagOutcome::Ignored("n-gram drafts are on by default"),
        _ => FlagOutcome::Refused("draft models are not supported: draft-mtp, ngram-simple or none".into()),
    }
}

/// `--embd-normalize`.
pub(super) fn embd_normalize(value: &str) -> FlagOutcome {
    match value {
        // llama.cpp's norms: 2 is Euclidean, 1 taxicab, 0 the maximum, −1 none.
        "2" => FlagOutcome::Ignored("embeddings have length 1"),
        _ => FlagOutcome::Refused("embeddings have length 1 (2)".into()),
    }
}

/// `--sleep-idle-seconds`.
pub(super) fn sleep_idle(value: &str) -> FlagOutcome {
    match value {
        "-1" => FlagOutcome::flag("--unload-idle", "never"),
        value => FlagOutcome::flag("--unload-idle", format!("{value}s")),
    }
}

/// `--cors-origins`: a comma-separated list.
pub(super) fn cors_origins(value: &str) -> FlagOutcome {
    let origins = value.split(',').map(str::trim).filter(|origin| !origin.is_empty());
    FlagOutcome::Words(origins.flat_map(|origin| ["--cors".to_owned(), origin.to_owned()]).collect())
}

/// `--allowed-origins`: a list in JSON.
pub(super) fn allowed_origins(value: &str) -> FlagOutcome {
    let Ok(Value::Array(list)) = serde_json::from_str(value) else {
        return FlagOutcome::Refused(
            "expected a list in JSON, such as [\"https://chat.example.org\"]".into(),
        );
    };
    let origins: Vec<&str> = list.iter().filter_map(Value::as_str).collect();
    cors_origins(&origins.join(","))
}

/// `--verbosity`.
pub(super) fn verbosity(value: &str) -> FlagOutcome {
    // llama.cpp's levels: 0 is output alone, 1 errors, 2 warnings, 3 information, 4 debugging.
    let level = match value.parse::<i64>() {
        Ok(..=1) => "error",
        Ok(2) => "warn",
        Ok(3) => "info",
        Ok(4) => "debug",
        Ok(5..) => "trace",
        Err(_) => return FlagOutcome::Refused("expected a number from 0 to 5".into()),
    };
    FlagOutcome::flag("--log", level)
}

/// `--uvicorn-log-level`.
pub(super) fn uvicorn_log_level(value: &str) -> FlagOutcome {
    let level = match value {
        // Python's logging has this level above `error`.
        "critical" => "error",
        "warning" => "warn",
        other => other,
    };
    FlagOutcome::flag("--log", level)
}

/// `--task` and `--runner`.
pub(super) fn task(value: &str) -> FlagOutcome {
    match value {
        "auto" | "generate" => FlagOutcome::Ignored("models generate text, and embed texts"),
        _ => FlagOutcome::Refused("models generate text, and embed texts (generate, auto)".into()),
    }
}

/// `--max-model-len`.
pub(super) fn max_model_len(value: &str) -> FlagOutcome {
    match value {
        "auto" | "-1" => FlagOutcome::Ignored("the context is what the model has and what fits into memory"),
        value => FlagOutcome::flag("--ctx-size", value),
    }
}

/// `--max-num-batched-tokens`.
pub(super) fn batched_tokens(value: &str) -> FlagOutcome {
    // vLLM's usual values (16384 for a GPU) exceed Latent's maximum and are reduced.
    let rows = value.parse::<u64>().map(|tokens| tokens.min(MAX_BATCH).to_string());
    FlagOutcome::flag("--batch-size", rows.unwrap_or_else(|_| value.to_owned()))
}

/// `--kv-cache-dtype`.
pub(super) fn kv_cache_dtype(value: &str) -> FlagOutcome {
    let ty = match value {
        "auto" => return FlagOutcome::Ignored("the cache has its default type"),
        "bfloat16" => "bf16",
        "float16" | "half" => "f16",
        "float32" | "float" => "f32",
        "fp8" | "fp8_e4m3" => "fp8",
        // The other FP8 variants become int8: Latent's fp8 is E4M3 alone.
        fp8 if fp8.starts_with("fp8") => "int8",
        other => other,
    };
    FlagOutcome::flag("--cache-type", ty)
}

/// `--tensor-parallel-size`.
pub(super) fn tensor_parallel(value: &str) -> FlagOutcome {
    ranks(value, "tensor")
}

/// `--pipeline-parallel-size`.
pub(super) fn pipeline_parallel(value: &str) -> FlagOutcome {
    ranks(value, "pipeline")
}

fn ranks(value: &str, kind: &str) -> FlagOutcome {
    match value.parse::<u32>() {
        Ok(1) => FlagOutcome::Ignored("one process runs the model"),
        Ok(ranks) => FlagOutcome::Refused(format!(
            "start {ranks} processes: mpirun -n {ranks} latent serve … --partition {kind}={ranks} (docs/hosts.md)"
        )),
        Err(_) => FlagOutcome::Refused("expected a number".into()),
    }
}

/// `--data-parallel-size`.
pub(super) fn data_parallel(value: &str) -> FlagOutcome {
    match value {
        "1" => FlagOutcome::Ignored("one process runs the model"),
        _ => FlagOutcome::Refused("start several servers behind a load balancer".into()),
    }
}

/// `--generation-config`.
pub(super) fn generation_config(value: &str) -> FlagOutcome {
    match value {
        "auto" => FlagOutcome::Ignored("sampling is what the model recommends"),
        "vllm" => FlagOutcome::Words(vec!["--no-model-sampling".into()]),
        _ => FlagOutcome::Refused(
            "the model's own generation_config.json is read: expected auto or vllm".into(),
        ),
    }
}
