//! Flags whose value decides what they mean.

use super::flag::Outcome;
use serde_json::Value;

/// The largest `--batch-size`.
const MAX_BATCH: u64 = super::super::limits::MAX_STEP_ROWS;

/// `--parallel`: −1 leaves the number to the program.
pub(super) fn parallel(value: &str) -> Outcome {
    match value {
        "-1" => Outcome::Ignored("the number of requests is Latent's default"),
        value => Outcome::flag("--parallel", value),
    }
}

/// `--prio`.
pub(super) fn priority(value: &str) -> Outcome {
    match value {
        "0" => Outcome::Ignored("the priority is that of the process"),
        _ => Outcome::Refused("start the server with `nice` or `chrt`".into()),
    }
}

/// `--numa`.
pub(super) fn numa(value: &str) -> Outcome {
    match value {
        "distribute" => Outcome::flag("--pin", "nodes"),
        "numactl" => Outcome::Ignored("the affinity of the process always holds"),
        "isolate" => Outcome::Refused("start the server with `numactl --cpunodebind=0 --membind=0`".into()),
        _ => Outcome::Refused("expected distribute, isolate or numactl".into()),
    }
}

/// `--device`: names of Latent pass through, those of llama.cpp's backends become `gpu:N`.
pub(super) fn device(value: &str) -> Outcome {
    if value.contains(',') {
        let problem =
            "a process uses one GPU: --partition divides a model among several processes (docs/hosts.md)";
        return Outcome::Refused(problem.into());
    }
    if value == "none" {
        return Outcome::flag("--device", "cpu");
    }
    let letters = value.trim_end_matches(|c: char| c.is_ascii_digit());
    let known = ["cuda", "vulkan", "rocm", "hip", "sycl", "metal", "mtl"];
    if known.contains(&letters.to_ascii_lowercase().as_str()) {
        let index = Some(&value[letters.len()..]).filter(|index| !index.is_empty()).unwrap_or("0");
        return Outcome::flag("--device", format!("gpu:{index}"));
    }
    Outcome::flag("--device", value)
}

/// `--main-gpu`.
pub(super) fn main_gpu(value: &str) -> Outcome {
    match value {
        "0" => Outcome::Ignored("the first GPU is used"),
        value => Outcome::flag("--device", format!("gpu:{value}")),
    }
}

/// `--split-mode`.
pub(super) fn split_mode(value: &str) -> Outcome {
    match value {
        "none" | "layer" => Outcome::Ignored("one GPU is used"),
        "row" | "tensor" => Outcome::Refused(
            "a process uses one GPU: --partition tensor=N divides a model among N processes (docs/hosts.md)"
                .into(),
        ),
        _ => Outcome::Refused("expected none, layer, row or tensor".into()),
    }
}

/// `--spec-type`.
pub(super) fn spec_type(value: &str) -> Outcome {
    match value {
        "none" => Outcome::flag("--draft", "none"),
        "draft-mtp" => Outcome::flag("--draft", "mtp"),
        _ => Outcome::Refused("only the model's own MTP layer drafts: draft-mtp, or none".into()),
    }
}

/// `--embd-normalize`.
pub(super) fn embd_normalize(value: &str) -> Outcome {
    match value {
        "2" => Outcome::Ignored("embeddings have the length 1"),
        _ => Outcome::Refused("embeddings have the length 1 (2)".into()),
    }
}

/// `--sleep-idle-seconds`.
pub(super) fn sleep_idle(value: &str) -> Outcome {
    match value {
        "-1" => Outcome::flag("--unload-idle", "never"),
        value => Outcome::flag("--unload-idle", format!("{value}s")),
    }
}

/// `--cors-origins`: a list with commas.
pub(super) fn cors_origins(value: &str) -> Outcome {
    let origins = value.split(',').map(str::trim).filter(|origin| !origin.is_empty());
    Outcome::Words(origins.flat_map(|origin| ["--cors".to_owned(), origin.to_owned()]).collect())
}

/// `--allowed-origins`: a list in JSON.
pub(super) fn allowed_origins(value: &str) -> Outcome {
    let Ok(Value::Array(list)) = serde_json::from_str(value) else {
        return Outcome::Refused("expected a list in JSON, such as [\"https://chat.example.org\"]".into());
    };
    let origins: Vec<&str> = list.iter().filter_map(Value::as_str).collect();
    cors_origins(&origins.join(","))
}

/// `--verbosity`.
pub(super) fn verbosity(value: &str) -> Outcome {
    let level = match value.parse::<i64>() {
        Ok(..=1) => "error",
        Ok(2) => "warn",
        Ok(3) => "info",
        Ok(4) => "debug",
        Ok(5..) => "trace",
        Err(_) => return Outcome::Refused("expected a number from 0 to 5".into()),
    };
    Outcome::flag("--log", level)
}

/// `--uvicorn-log-level`.
pub(super) fn uvicorn_log_level(value: &str) -> Outcome {
    let level = match value {
        "critical" => "error",
        "warning" => "warn",
        other => other,
    };
    Outcome::flag("--log", level)
}

/// `--task` and `--runner`.
pub(super) fn task(value: &str) -> Outcome {
    match value {
        "auto" | "generate" => Outcome::Ignored("models generate text, and embed texts"),
        _ => Outcome::Refused("models generate text, and embed texts (generate, auto)".into()),
    }
}

/// `--max-model-len`.
pub(super) fn max_model_len(value: &str) -> Outcome {
    match value {
        "auto" | "-1" => Outcome::Ignored("the context is what the model has and what fits into memory"),
        value => Outcome::flag("--ctx-size", value),
    }
}

/// `--max-num-batched-tokens`: larger numbers are usual there.
pub(super) fn batched_tokens(value: &str) -> Outcome {
    let rows = value.parse::<u64>().map(|tokens| tokens.min(MAX_BATCH).to_string());
    Outcome::flag("--batch-size", rows.unwrap_or_else(|_| value.to_owned()))
}

/// `--kv-cache-dtype`.
pub(super) fn kv_cache_dtype(value: &str) -> Outcome {
    let ty = match value {
        "auto" => return Outcome::Ignored("the cache has its default type"),
        "bfloat16" => "bf16",
        "float16" | "half" => "f16",
        "float32" | "float" => "f32",
        fp8 if fp8.starts_with("fp8") => "int8",
        other => other,
    };
    Outcome::flag("--cache-type", ty)
}

/// `--tensor-parallel-size`.
pub(super) fn tensor_parallel(value: &str) -> Outcome {
    ranks(value, "tensor")
}

/// `--pipeline-parallel-size`.
pub(super) fn pipeline_parallel(value: &str) -> Outcome {
    ranks(value, "pipeline")
}

fn ranks(value: &str, kind: &str) -> Outcome {
    match value.parse::<u32>() {
        Ok(1) => Outcome::Ignored("one process runs the model"),
        Ok(ranks) => Outcome::Refused(format!(
            "start {ranks} processes: mpirun -n {ranks} latent serve … --partition {kind}={ranks} (docs/hosts.md)"
        )),
        Err(_) => Outcome::Refused("expected a number".into()),
    }
}

/// `--data-parallel-size`.
pub(super) fn data_parallel(value: &str) -> Outcome {
    match value {
        "1" => Outcome::Ignored("one process runs the model"),
        _ => Outcome::Refused("start several servers behind a load balancer".into()),
    }
}

/// `--generation-config`.
pub(super) fn generation_config(value: &str) -> Outcome {
    match value {
        "auto" => Outcome::Ignored("sampling is what the model recommends"),
        "vllm" => Outcome::Words(vec!["--no-model-sampling".into()]),
        _ => Outcome::Refused("the model's own generation_config.json is read: expected auto or vllm".into()),
    }
}
