//! Every flag of every command has an effect or is refused. The table has an entry for each, which
//! says how the effect is observed; a flag without an entry fails the test.

use crate::support;
use crate::support::latent;
use Effect::{Clashes, Fails, Loaded, Shows, Speed, Tested, With, Writes};
use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// How the effect of a flag is observed. `BASES` has the base call of each command.
#[derive(Clone, Copy)]
enum Effect {
    /// The base prints this text with these arguments, and not without them.
    Shows(&'static str, &'static str),
    /// The base prints the text with the second arguments, which contain the flag, and not with the
    /// first.
    With(&'static str, &'static str, &'static str),
    /// The base fails with this error: the value was used.
    Fails(&'static str, &'static str),
    /// The flag conflicts with or requires another one: wrong usage.
    Clashes(&'static str),
    /// The flag affects only speed: a value out of range is refused.
    Speed(&'static str),
    /// With these arguments the command writes this file or folder, and not without them.
    Writes(&'static str, &'static str),
    /// The command passes its flags to `model::load`, as `run` does.
    Loaded,
    /// A test in this file below `crates` observes it. The file contains this text.
    Tested(&'static str, &'static str),
}

/// A quick call of each command: `{m}` is a tiny model, `{f}` one in F32, `{d}` the demo model,
/// `{t}` a text.
const BASES: &[(&str, &str)] = &[
    ("run", "-m {d} -t 1 -c 64 -n 2 -s 1"),
    ("chat", "-m {d} -t 1 -c 256 -n 2 -s 1"),
    ("serve", "-m {d} -t 1 -c 64 --port 0 --stop-at-eof"),
    ("logits", "-m {m} -t 1 --tokens 1,2,3,4"),
    ("inspect", "{m}"),
    ("check", "{m}"),
    ("graph", "{m}"),
    ("verify", "{m}"),
    ("tokenize", "-m {d}"),
    ("make-model", "tiny-dense F32 --layers 1 out.gguf"),
    ("pack", "-m {m} -t 1 -o out.latent"),
    ("convert", "{m} -o out"),
    ("quantize", "-m {f} -t 1 -o out.gguf Q8_0"),
    ("imatrix", "-m {f} -t 1 -f {t} --chunk-size 16 --chunks 1"),
    ("pull", "nowhere"),
    ("ls", ""),
    ("rm", "nowhere"),
    ("top", "--url http://127.0.0.1:9 --once"),
    ("bench", "-m {m} -t 1 -p 1 -n 1 -r 1"),
    ("profile", "-m {m} -t 1 -p 1 -n 1"),
    ("diff", "-m {m} -t 1 --tokens 1,2"),
    ("dump", "-m {m} -t 1 --tokens 1,2 out.st"),
    ("plan-hosts", "-m {m} {h}"),
    ("devices", ""),
    ("self-test", ""),
    ("man", "folder"),
    ("completions", "bash"),
    ("kernels test", "silu_mul portable"),
    ("kernels perf", "silu_mul --millis 1 --memory 1"),
    ("kernels count", "silu_mul"),
    ("kernels support", "silu_mul"),
    ("eval perplexity", "-m {m} -t 1 -c 64 {t}"),
    ("eval kl", "-m {m} -t 1 -c 64 {t}"),
    ("eval choice", "-m {d} -t 1 {choice}"),
    ("eval questions", "-m {d} -t 1 -n 1 {questions}"),
    ("eval retrieval", "-m {d} -t 1 --lengths 64 --depths 0 --trials 1 -n 1"),
    ("eval routing", "-m {d} -t 1 -c 64 {t}"),
    ("eval weights", "-m {m} -t 1 --base-model {f}"),
    ("eval report", "out.html {result}"),
];

/// Commands that load a model and print how it runs. Flags are observed with them.
const LOADS: &[&str] = &["run", "chat", "serve", "logits"];

/// Commands that take longer and pass the same flags to the same function.
const LOAD_ALIKE: &[&str] = &[
    "bench",
    "profile",
    "imatrix",
    "eval perplexity",
    "eval kl",
    "eval choice",
    "eval questions",
    "eval retrieval",
    "eval routing",
];

/// Flags, the commands that have them, and the effects there. The first entry of a command and a
/// flag counts.
const TABLE: &[(&[&str], &str, Effect)] = &[
    // the model and its engine
    (
        &["plan-hosts"],
        "ctx_size n_gpu_layers precision mla sparse_attention isa expanded_cache cache_type batch_size threads device draft partition pin force",
        Tested("cli/src/commands/plan_hosts/measure.rs", "args.model.engine.options()"),
    ),
    (&["run", "chat"], "draft", With("-n 9", "-n 9 --draft mtp", "drafts accepted")),
    (&["serve", "eval questions", "eval retrieval"], "draft", Speed("--draft x")),
    (
        ANY,
        "state_cache",
        Tested("engine/tests/engine/kda.rs", "fn a_budget_of_states_decides_how_many_snapshots_stay"),
    ),
    (&["run", "bench"], "hosts_file", Fails("--hosts-file x", "--hosts-file needs several ranks")),
    (ANY, "hung_after", Tested("mpi/tests/faults.rs", "hung_after")),
    (
        &["inspect"],
        "cache_type precision",
        With("--cache-type bf16", "--cache-type f32 --precision exact", ""),
    ),
    (&["inspect"], "mla", Fails("--expanded-cache --mla absorbed", "")),
    (&["check", "graph", "verify"], "cache_type", Speed("--cache-type x")),
    (&["check", "graph"], "mla", Speed("--mla x")),
    (&["check", "graph"], "expanded_cache", Tested("cli/src/args/model.rs", "self.expanded_cache")),
    (&["inspect", "check", "graph", "verify", "dump", "kernels test"], "isa", Speed("--isa avx9")),
    (&["kernels perf"], "threads", Speed("-t 0")),
    (&["diff", "dump"], "precision", Shows("--precision exact", "")),
    (ANY, "mla", With("--expanded-cache --mla absorbed", "--expanded-cache --mla naive", "")),
    (&["run", "chat"], "dry_allowed_length", Speed("--dry-allowed-length x")),
    (&["tokenize"], "no_special", Tested("cli/src/commands/tokenize.rs", "args.no_special")),
    (&["tokenize"], "plain", Tested("cli/src/commands/tokenize.rs", "args.plain")),
    (&["convert"], "imatrix json", Shows("--imatrix /nowhere --json", "")),
    (&["convert"], "pre", Tested("cli/src/commands/convert.rs", "args.pre")),
    (
        &["eval questions"],
        "system_prompt",
        Tested("cli/src/commands/eval/asking.rs", "system_message(template)"),
    ),
    (&["eval retrieval"], "depths", Speed("--depths 101")),
    (&["eval retrieval"], "n_predict", Speed("-n 0")),
    (&["kernels count"], "json", Tested("cli/src/commands/kernels/count.rs", "args.json")),
    (&["devices"], "json", Shows("--json", "[")),
    (&["self-test"], "json", Tested("cli/tests/cli/self_test.rs", "--json")),
    (&["ls"], "short_names", Shows("--short-names", "glm-4.7-flash")),
    (&["eval routing"], "chunks", Speed("--chunks 0")),
    (
        &["inspect", "check", "graph", "verify"],
        "model",
        Tested("cli/src/args/tests.rs", "the_first_positional_argument_is_the_model"),
    ),
    (ANY, "model", Fails("-m /nowhere.gguf", "/nowhere.gguf")),
    (ANY, "models", Fails("-m /nowhere.gguf", "/nowhere.gguf")),
    (&["serve"], "ctx_size", With("-c 32", "-c 33", "context 33")),
    (&["inspect"], "ctx_size", With("-c 32", "-c 33", "for 33 tokens")),
    (&["plan-hosts"], "ctx_size", Fails("-c 9999999", "9999999")),
    (&["eval kl"], "ctx_size", With("-c 32", "-c 9999999", "exceeds the model's limit")),
    (ANY, "ctx_size", Shows("-c 9999999", "exceeds the model's limit")),
    (LOAD_ALIKE, "threads batch_size cache_type precision n_gpu_layers verbose mla isa pin", Loaded),
    (LOADS, "threads", Shows("-t 3", "3 threads")),
    (&["diff"], "threads", Shows("-t 3", "3 threads")),
    (&["kernels perf"], "threads", Shows("-t 3", "3 threads")),
    (ANY, "threads", Speed("-t 0")),
    (LOADS, "batch_size", With("-v", "-v -b 33", "at most 33 tokens per step")),
    (ANY, "batch_size", Speed("-b 9k")),
    (LOADS, "cache_type", With("-v", "-v --cache-type bf16", "bf16 KV cache")),
    (&["inspect", "diff"], "cache_type", Shows("--cache-type bf16", "bf16")),
    (
        ANY,
        "cache_type",
        Fails("--mla naive --expanded-cache --cache-type int8", "cache of int8 supports latents only"),
    ),
    (LOADS, "precision", With("-v", "-v --precision exact", "f32 KV cache")),
    (ANY, "precision", Shows("--precision exact", "f32")),
    (ANY, "device", Fails("--device nowhere", "unknown device")),
    (ANY, "n_gpu_layers", Shows("--device cpu -ngl 7", "--n-gpu-layers 7 is ignored")),
    (ANY, "draft", Fails("--draft mtp", "MTP")),
    (
        &["inspect", "check", "verify", "diff", "dump", "imatrix"],
        "partition",
        Fails("--partition pipeline=2", "works on the whole model"),
    ),
    (&["graph"], "partition", Shows("--partition pipeline=2", "")),
    (ANY, "partition", Fails("--partition pipeline=2", "pipeline=2")),
    (ANY, "hosts_file", Fails("--hosts-file /nowhere.toml", "/nowhere.toml")),
    (ANY, "wire", Tested("cli/tests/cli/mpi_commands.rs", "--wire")),
    (ANY, "hung_after", Tested("hosts/tests", "hung")),
    (ANY, "force", Tested("engine/tests/engine/circuits.rs", "force: true")),
    (ANY, "verbose", Shows("-v", "kernels: ")),
    (ANY, "mla", With("--expanded-cache --mla auto", "--expanded-cache --mla absorbed", "")),
    (&["inspect", "check", "graph", "verify"], "sparse_attention", Speed("--sparse-attention x")),
    (ANY, "sparse_attention", Fails("--sparse-attention x", "expected on or off")),
    (ANY, "expanded_cache", Fails("--expanded-cache", "--mla naive")),
    (LOADS, "isa", With("-v", "-v --isa portable", "kernels: portable")),
    (ANY, "isa", Shows("--isa portable", "portable")),
    (&["diff"], "pin", Shows("-t 1 --pin cores", "a core each")),
    (&["dump", "plan-hosts"], "pin", Speed("--pin nowhere")),
    (ANY, "pin", Shows("-t 1 --pin cores", "a core each")),
    (ANY, "circuit", Fails("--circuit /nowhere.json", "/nowhere.json")),
    // sampling
    (ANY, "temp", Fails("--temp 101", "temperature is 101")),
    (ANY, "top_p", Fails("--top-p 2", "top_p is 2")),
    (ANY, "min_p", Fails("--min-p 2", "min_p is 2")),
    (ANY, "typical", Fails("--typical 2", "typical_p is 2")),
    (ANY, "repeat_penalty", Fails("--repeat-penalty 101", "repeat_penalty is 101")),
    (ANY, "presence_penalty", Fails("--presence-penalty 101", "presence_penalty is 101")),
    (ANY, "frequency_penalty", Fails("--frequency-penalty 101", "frequency_penalty is 101")),
    (ANY, "dry_multiplier", Fails("--dry-multiplier 101", "dry_multiplier is 101")),
    (ANY, "dry_base", Fails("--dry-base 101", "dry_base is 101")),
    (ANY, "xtc_probability", Fails("--xtc-probability 2", "xtc_probability is 2")),
    (ANY, "xtc_threshold", Fails("--xtc-threshold 2", "xtc_threshold is 2")),
    (ANY, "top_n_sigma", Fails("--top-n-sigma nan", "top_n_sigma is NaN")),
    (ANY, "dynatemp_range", Fails("--dynatemp-range 101", "dynatemp_range is 101")),
    (ANY, "dynatemp_exp", Fails("--dynatemp-exp 101", "dynatemp_exponent is 101")),
    (ANY, "mirostat", Fails("--mirostat 3", "mirostat is 3")),
    (ANY, "mirostat_lr", Fails("--mirostat-lr 11", "mirostat_eta is 11")),
    (ANY, "mirostat_ent", Fails("--mirostat-ent 101", "mirostat_tau is 101")),
    (ANY, "adaptive_target", Fails("--adaptive-target 2", "adaptive_target is 2")),
    (ANY, "adaptive_decay", Fails("--adaptive-decay 1", "adaptive_decay is 1")),
    (
        &["run", "chat"],
        "min_keep",
        With("-n 20 --temp 9 --top-k 0 --top-p 0", "-n 20 --temp 9 --top-k 0 --top-p 0 --min-keep 99", ""),
    ),
    (
        &["run", "chat"],
        "samplers",
        With("-n 20 --temp 9 --top-k 1", "-n 20 --temp 9 --top-k 1 --samplers temperature", ""),
    ),
    (
        &["run", "chat"],
        "sampler_seq",
        With("-n 20 --temp 9 --top-k 1", "-n 20 --temp 9 --top-k 1 --sampler-seq t", ""),
    ),
    (
        &["run", "chat"],
        "dry_penalty_last_n dry_sequence_breaker",
        Tested(
            "engine/src/sampling/tests_of_chains.rs",
            "fn breakers_of_several_tokens_bound_repetitions_of_dry",
        ),
    ),
    (&["run", "chat"], "ignore_eos", Tested("cli/tests/cli/chat.rs", "--ignore-eos")),
    (ANY, "logit_bias", Fails("--logit-bias 99999=1", "token 99999")),
    (&["run", "chat"], "n_predict", With("-n 2", "-n 5", "")),
    (
        &["run", "chat"],
        "seed",
        With(
            "-n 20 --temp 9 --top-k 0 --top-p 1 --min-p 0 -s 1",
            "-n 20 --temp 9 --top-k 0 --top-p 1 --min-p 0 -s 2",
            "",
        ),
    ),
    (&["run", "chat"], "stop", With("-n 20", "-n 20 --stop e", "")),
    (&["run"], "logprobs", With("--json", "--json --logprobs 2", "\"logprob\"")),
    (
        &["run", "chat"],
        "top_k",
        With(
            "-n 20 --temp 9 --top-k 0 --top-p 1 --min-p 0",
            "-n 20 --temp 9 --top-k 1 --top-p 1 --min-p 0",
            "",
        ),
    ),
    (
        &["run", "chat"],
        "repeat_last_n",
        With("-n 40 --repeat-penalty 50", "-n 40 --repeat-penalty 50 --repeat-last-n 0", ""),
    ),
    (
        &["run", "chat"],
        "dry_allowed_length",
        With("-n 40 --dry-multiplier 50", "-n 40 --dry-multiplier 50 --dry-allowed-length 0", ""),
    ),
    (&["run", "chat"], "no_model_sampling", Tested("cli/src/commands/sampling.rs", "args.no_model_sampling")),
    (
        &["serve"],
        "n_predict seed stop logprobs top_k repeat_last_n dry_allowed_length dry_penalty_last_n dry_sequence_breaker min_keep samplers \
         sampler_seq ignore_eos no_model_sampling",
        Tested("cli/tests/cli/serve.rs", "fn defaults_of_requests_come_from_flags"),
    ),
    // metadata in place of the file's
    (&["run"], "rope_freq_base", With("-n 20 --temp 0", "-n 20 --temp 0 --rope-freq-base 20", "")),
    (&["run"], "rope_scale", With("-n 20 --temp 0", "-n 20 --temp 0 --rope-scale 8", "")),
    (ANY, "override_kv", Fails("--override-kv x", "KEY=TYPE:VALUE")),
    (&["run"], "without", Shows("--without fold_norms", "plans are made without fold_norms")),
    (
        ANY,
        "without",
        Fails("--without lower_mla", "lower_mla is required for every plan; the optional passes"),
    ),
    (&["run", "graph"], "tuned", Tested("cli/tests/cli/tuned.rs", "--tuned")),
    (ANY, "tuned", Fails("--tuned /nowhere.json", "/nowhere.json")),
    (ANY, "pack_cache", Fails("--pack-cache --device gpu:9", "--pack-cache cannot be used with a GPU")),
    (ANY, "lora", Fails("--lora /nowhere.gguf", "/nowhere.gguf")),
    (&["serve"], "lora_init_without_apply", Fails("--lora-init-without-apply", "--lora")),
    (ANY, "rope_scaling", Fails("--rope-scaling x", "possible values: none, linear")),
    (ANY, "rope_scale", Fails("--rope-scale 0.5", "at least 1")),
    (ANY, "rope_freq_base", Fails("--rope-freq-base x", "expected a number")),
    (ANY, "rope_freq_scale", Fails("--rope-freq-scale x", "expected a number")),
    (ANY, "yarn_orig_ctx", Fails("--yarn-orig-ctx x", "--yarn-orig-ctx")),
    (ANY, "yarn_attn_factor", Fails("--yarn-attn-factor x", "expected a number")),
    (ANY, "yarn_beta_fast", Fails("--yarn-beta-fast x", "expected a number")),
    (ANY, "yarn_beta_slow", Fails("--yarn-beta-slow x", "expected a number")),
    (ANY, "yarn_ext_factor", Fails("--yarn-ext-factor 2", "from 0 to 1")),
    // prompts and output
    (&["run", "tokenize"], "prompt", With("-p a", "-p b", "")),
    (&["chat"], "prompt", Shows("-p Hello", "")),
    (&["chat"], "timeout", Tested("cli/tests/cli/chat_url.rs", "--timeout")),
    (&["top"], "timeout", Tested("cli/tests/cli/top.rs", "--timeout")),
    (&["tokenize", "imatrix"], "file", Fails("-f /nowhere", "/nowhere")),
    (&["run"], "files", With("-f {t} --json", "-f {t} -f {t} --json", "")),
    (&["run"], "messages", Fails("--messages /nowhere", "/nowhere")),
    (ANY, "system_prompt_file", Fails("--system-prompt-file /nowhere", "/nowhere")),
    (&["run", "logits", "diff", "dump"], "tokens", Fails("--tokens 99999", "99999")),
    (&["run", "eval questions"], "system_prompt", With("--json", "--json --system-prompt Brief", "")),
    (&["chat"], "system_prompt", Shows("--system-prompt Brief", "")),
    (
        &["eval retrieval"],
        "system_prompt",
        Tested("cli/src/commands/eval/asking.rs", "system_message(template)"),
    ),
    (ANY, "think", Fails("--think", "chat template does not support it")),
    (ANY, "no_think", Fails("--no-think", "chat template does not support it")),
    (ANY, "tools", Fails("--tools /nowhere", "--tools")),
    (ANY, "allow_special", Tested("cli/tests/cli/program.rs", "--allow-special")),
    (&["run", "chat"], "context_shift", With("-n 300 -c 12", "-n 300 -c 12 --context-shift", "")),
    (&["run", "chat"], "keep", Clashes("--keep 1")),
    (&["run", "chat"], "prompt_cache", Writes("--prompt-cache out.kv", "out.kv")),
    (&["run", "chat"], "prompt_cache_ro", Clashes("--prompt-cache-ro")),
    (&["run", "chat"], "restore", Fails("--restore /nowhere", "/nowhere")),
    (&["run"], "save", Writes("--save out.kv", "out.kv")),
    (ANY, "json_schema", Fails("--json-schema {", "--json-schema")),
    (ANY, "grammar", Fails("--grammar /nowhere", "/nowhere")),
    (&["run"], "raw", With("--json", "--json --raw", "")),
    (&["chat"], "url", Clashes("--url http://127.0.0.1:9")),
    (&["chat"], "api_key_file", Clashes("--api-key-file x")),
    (&["chat"], "plain", Tested("cli/tests/cli/pty.rs", "--plain")),
    (&["chat"], "no_history", Tested("cli/tests/cli/pty.rs", "--no-history")),
    (&["run", "chat", "serve"], "quiet", Shows("-q", "")),
    (&["pull"], "quiet", Tested("cli/tests/cli/hub.rs", "-q")),
    (&["pull", "ls"], "json", Tested("cli/tests/cli/hub.rs", "--json")),
    // the server
    (&["serve"], "host", Fails("--host 256.1.1.1", "256.1.1.1")),
    (&["serve"], "port", Fails("--port 99999", "99999")),
    (&["serve"], "alias", Shows("--alias zebra", "zebra at http")),
    (&["serve"], "chat_template", Fails("--chat-template /nowhere", "/nowhere")),
    (&["serve"], "chat_template_kwargs", Fails("--chat-template-kwargs [", "--chat-template-kwargs")),
    (
        &["serve"],
        "reasoning reasoning_effort special no_prefill_assistant tags api_prefix no_ui pooling",
        Tested("cli/tests/cli/serve.rs", "fn flags_of_llama_server_have_their_effects"),
    ),
    (&["serve"], "no_cache_prompt", Tested("cli/tests/cli/serve.rs", "--no-cache-prompt")),
    (&["serve"], "reasoning_budget", Fails("--reasoning-budget -2", "-2 is not in")),
    (&["serve"], "reasoning_budget_message", Fails("--reasoning-budget-message x", "--reasoning-budget")),
    (&["serve"], "reasoning_format", Fails("--reasoning-format x", "deepseek")),
    (&["serve"], "timeout", Tested("cli/src/commands/serve/mod.rs", "fn timeout_bounds_both_directions")),
    (&["serve"], "models_dir", Fails("--models-dir /nowhere", "/nowhere")),
    (
        &["serve"],
        "models_preset",
        Tested("cli/tests/cli/router.rs", "fn presets_are_models_with_their_own_settings"),
    ),
    (
        &["serve"],
        "models_cache",
        Tested("cli/tests/cli/router.rs", "fn models_are_pulled_and_removed_while_the_server_runs"),
    ),
    (
        &["serve"],
        "no_models_autoload",
        Tested("cli/tests/cli/serve.rs", "fn a_folder_is_served_and_requests_load_nothing"),
    ),
    (&["serve"], "offline", Tested("cli/tests/cli/hub.rs", "--offline")),
    (&["serve"], "hf_repo", Clashes("--hf-repo o/n")),
    (&["serve"], "hf_file", Clashes("--hf-file x")),
    (&["serve"], "cache_type_v", Fails("--cache-type f16 --cache-type-v f32", "differ")),
    (&["serve"], "n_cpu_moe", Tested("cli/src/commands/serve/load.rs", "fn first_layers_stay_on_the_cpu")),
    (&["serve"], "cpu_moe", Clashes("--cpu-moe --n-cpu-moe 1")),
    (&["serve"], "api_key", Shows("--api-key secret-number-1", "other users of this machine")),
    (&["serve"], "models_max unload_idle", Tested("cli/tests/cli/serve.rs", "models_max")),
    (
        &["serve"],
        "parallel cache_tokens",
        Tested("cli/tests/cli/serve.rs", "fn defaults_of_requests_come_from_flags"),
    ),
    (&["serve"], "max_waiting", Tested("server/tests/server/hostile.rs", "max_waiting")),
    (&["serve"], "gpu_fallback", Fails("--gpu-fallback x", "expected cpu or none")),
    (&["serve"], "api_key_file", Fails("--api-key-file /nowhere", "/nowhere")),
    (
        &["serve"],
        "allow_unauthenticated",
        With("--host 0.0.0.0", "--host 0.0.0.0 --allow-unauthenticated", ""),
    ),
    (&["serve"], "cors", Tested("server/tests/server/auth.rs", "cors")),
    (&["serve"], "cors_credentials", Tested("server/tests/server/auth.rs", "cors_credentials")),
    (&["serve"], "no_slots", Tested("server/tests/server/llama_cpp.rs", "slots: false")),
    (&["serve"], "context_shift", Tested("cli/tests/cli/serve.rs", "\"--context-shift\"")),
    (&["serve"], "keep", Tested("cli/tests/cli/serve.rs", "--keep 5")),
    (&["serve"], "slot_save_path", Writes("--slot-save-path folder", "folder")),
    (&["serve"], "tls_cert", Clashes("--tls-cert x")),
    (&["serve"], "tls_key", Clashes("--tls-key x")),
    (&["serve"], "share_prefixes", Tested("server/src/keys.rs", "b\"secret-number-1\", true")),
    (&["serve"], "cache_disk", Writes("--cache-disk folder", "folder")),
    (&["serve"], "cache_disk_size", Clashes("--cache-disk-size 1G")),
    (&["serve"], "otlp_endpoint", Tested("cli/tests/cli/serve.rs", "--otlp-endpoint")),
    (&["serve"], "restart", Clashes("--restart")),
    (&["serve"], "launch", Clashes("--launch x")),
    (&["serve"], "stop_at_eof", Tested("cli/tests/cli/serve.rs", "--stop-at-eof")),
    (&["serve"], "config", Fails("--config /nowhere", "/nowhere")),
    (&["serve"], "log", Fails("--log loud", "loud")),
    (&["top"], "url", Fails("--url http://127.0.0.1:7", "127.0.0.1:7")),
    (&["top"], "api_key_file", Fails("--api-key-file /nowhere", "/nowhere")),
    (&["top"], "interval", Speed("--interval 0")),
    (&["top"], "once json", Tested("cli/tests/cli/top.rs", "--json")),
    // descriptions
    (&["inspect"], "tensors", Shows("--tensors", "blk.0.")),
    (&["inspect"], "metadata", Shows("--metadata", "general.architecture")),
    (&["inspect"], "contract", Shows("--contract", "")),
    (&["graph"], "after", Shows("--after nowhere", "nowhere")),
    (&["graph"], "rows", Shows("--rows 0", "expected 1 to 8192")),
    (&["graph"], "format", With("", "--format dot", "digraph")),
    (&["graph"], "layers", Fails("--layers 7..9", "7..9")),
    (&["graph"], "rank", Clashes("--rank 1")),
    (&["graph"], "html", Writes("--html out.html", "out.html")),
    (&["graph"], "emit_c", Writes("--emit-c out", "out")),
    (&["graph"], "profile", Fails("--html out.html --profile /nowhere", "/nowhere")),
    (&["graph"], "weights", Fails("--html out.html --weights /nowhere", "/nowhere")),
    (&["graph"], "parity", Fails("--html out.html --parity /nowhere", "/nowhere")),
    (&["graph"], "against", Fails("--html out.html --against /nowhere", "/nowhere")),
    (&["verify"], "weights", Shows("--weights", "")),
    (&["verify"], "edges", Shows("--edges", "")),
    (&["verify"], "rules", Shows("--rules", "A01")),
    (&["tokenize"], "no_special", Tested("cli/tests/cli/program.rs", "--no-special")),
    (&["tokenize"], "plain", Tested("cli/tests/cli/program.rs", "--plain")),
    // values
    (&["logits"], "rows", With("--rows 0", "--rows 7", "row 7")),
    (
        &["logits", "eval perplexity"],
        "kl_divergence_base",
        Fails("--kl-divergence-base /nowhere/x", "/nowhere/x"),
    ),
    (&["logits"], "kl_chunk", Clashes("--kl-chunk 8")),
    (&["diff"], "a", Fails("--a x=1", "--a x=1")),
    (&["diff"], "b", Fails("--b x=1", "--b x=1")),
    (&["diff"], "model_b", Fails("--model-b /nowhere", "/nowhere")),
    (&["diff"], "dump", Fails("--dump /nowhere", "/nowhere")),
    (&["diff", "dump"], "layers", Fails("--layers 7..9", "7..9")),
    (&["diff"], "tolerance", Shows("--tolerance 0.25", "tolerance 2e-1")),
    (&["diff"], "growth", Shows("--growth 3", "or 3 times")),
    (&["diff"], "all", Shows("--all", "")),
    // measurements
    (&["bench"], "n_prompt", With("-p 1", "-p 3", "pp3")),
    (&["bench"], "n_gen", With("-n 1", "-n 3", "tg3")),
    (&["bench"], "n_depth", Shows("-d 5", "@ d5")),
    (&["bench"], "sequences", Shows("--sequences 2", "× 2")),
    (&["bench"], "busy", Shows("--busy 1", "+ 1 busy")),
    (&["bench"], "verify", Clashes("--verify 1")),
    (&["bench"], "repetitions", With("-r 1", "-r 0", "")),
    (&["bench"], "save", Writes("--save out.json", "out.json")),
    (&["bench"], "compare", Fails("--compare /nowhere", "/nowhere")),
    (&["bench"], "fail_below", Clashes("--fail-below 0.9")),
    (&["bench"], "output", Shows("-o csv", "build_commit")),
    (&["profile"], "n_prompt", With("-p 1 --json", "-p 3 --json", "\"rows\": 3")),
    (&["profile"], "n_gen", With("-n 1 --json", "-n 0 --json", "")),
    (&["profile"], "n_depth", With("--json", "--json -d 5", "\"cached\": 5")),
    (&["profile"], "trace", Writes("--trace out.json", "out.json")),
    (&["profile"], "simulate", Fails("--simulate cores=64,discs=2", "unknown key `discs`")),
    (&["profile"], "sequences", With("--json", "--json --sequences 2", "\"sequences\": 2")),
    (
        &["kernels test", "kernels perf", "kernels count", "kernels support"],
        "device",
        Fails("--device nowhere", "unknown device"),
    ),
    (&["kernels test"], "isa", Fails("--isa avx9", "avx9")),
    (&["kernels perf"], "isa", Shows("--isa portable", "portable")),
    (&["kernels test"], "cases", Shows("--cases", "")),
    (&["kernels perf"], "all", Shows("--all", "portable")),
    (&["kernels perf"], "memory", Fails("--memory 0", "--memory")),
    (&["kernels perf"], "millis", Speed("--millis 0")),
    (&["kernels perf"], "save", Fails("--save out.json", "--save stores times of matrix products")),
    (&["kernels perf"], "force", Clashes("--force")),
    (
        &["plan-hosts"],
        "measure at_once n_prompt sequences in_flight past json",
        Tested("cli/tests/cli/program.rs", "plan-hosts"),
    ),
    // evaluations
    (&["eval perplexity", "eval kl", "eval routing"], "chunks", With("--chunks 1", "--chunks 2", "")),
    (ANY, "base_model", Fails("--base-model /nowhere", "/nowhere")),
    (&["eval kl"], "kl_divergence_base", Clashes("--kl-divergence-base x --chunks 1")),
    (&["eval kl"], "base", Fails("--base x=1", "--base x=1")),
    (&["eval choice", "eval questions"], "limit", With("--limit 1 --json", "--limit 2 --json", "")),
    (&["eval questions", "eval retrieval"], "n_predict", With("-n 1 --json", "-n 9 --json", "")),
    (&["eval retrieval"], "lengths", Fails("--lengths 99999", "99999")),
    (&["eval retrieval"], "depths", With("--depths 0 --json", "--depths 50 --json", "")),
    (&["eval retrieval"], "trials", With("--trials 1 --json", "--trials 2 --json", "")),
    (&["eval retrieval"], "haystack", Fails("--haystack /nowhere", "/nowhere")),
    (&["eval routing"], "rows", With("--rows 1", "--rows 1,7", "")),
    (ANY, "html", Writes("--html out.html", "out.html")),
    // writing
    (&["make-model"], "list", Shows("--list", "tiny-v3")),
    (&["make-model"], "layers", With("--layers 1", "--layers 2", "")),
    (&["make-model"], "legacy", Shows("--legacy", "")),
    (&["make-model"], "mtp", Shows("--mtp", "")),
    (&["make-model"], "kvb", Shows("--kvb Q8_0", "")),
    (&["make-model"], "tensor_type", Fails("--tensor-type x", "--tensor-type")),
    (&["make-model"], "seed", Shows("--seed 7", "")),
    (&["make-model"], "shards", Writes("--shards 2", "out-00001-of-00002.gguf")),
    (&["make-model"], "header_only", Shows("--header-only", "")),
    (&["make-model"], "sparse", Clashes("--sparse --header-only")),
    (&["pack"], "out", Writes("-o other.latent", "other.latent")),
    (&["convert"], "base_model", Fails("--base-model /nowhere", "/nowhere")),
    (&["check"], "draft_circuit", Fails("--draft-circuit draft.json", "the architecture is known")),
    (&["convert"], "out", Writes("-o other", "other")),
    (&["quantize"], "out", Writes("-o other.gguf", "other.gguf")),
    (&["imatrix"], "out", Writes("-o other.gguf", "other.gguf")),
    (&["convert"], "ty", Fails("--type Q9_9", "Q9_9")),
    (&["quantize", "convert"], "imatrix", Fails("--imatrix /nowhere", "/nowhere")),
    (&["quantize", "convert"], "tensor_type", Fails("--tensor-type x", "REGEX=TYPE")),
    (&["quantize", "convert"], "output_tensor_type", Fails("--output-tensor-type x", "x")),
    (&["quantize", "convert"], "token_embedding_type", Fails("--token-embedding-type x", "x")),
    (&["quantize", "convert"], "pure", Clashes("--pure --target-size 1G")),
    (&["quantize", "convert"], "allow_requantize dry_run", Tested("cli/tests/cli/written.rs", "--dry-run")),
    (&["quantize", "convert"], "target_size", Fails("--target-size x", "16GB")),
    (&["quantize"], "target_kl", Clashes("--target-kl 1")),
    (&["quantize"], "file", Fails("--file {t}", "--target-kl")),
    (&["quantize"], "chunk_size", Clashes("--chunk-size 8")),
    (&["quantize"], "chunks", Clashes("--chunks 8")),
    (&["quantize"], "method", Fails("--method gptq", "--hessians FILE")),
    (&["quantize"], "hessians", Fails("--method gptq --hessians /nowhere", "/nowhere")),
    (&["quantize"], "damping", Fails("--damping 0", "above 0")),
    (&["quantize"], "act_order", Tested("cli/tests/cli/written.rs", "--act-order")),
    (&["quantize"], "merge_lora", Fails("--merge-lora /nowhere", "/nowhere")),
    (&["imatrix"], "hessians", Writes("--hessians other.gguf", "other.gguf")),
    (&["convert"], "split_max_size", Fails("--split-max-size x", "20G")),
    (&["convert"], "pre", Tested("cli/tests/cli/written.rs", "--pre")),
    (&["imatrix"], "chunk_size", Fails("--chunk-size 1", "--chunk-size")),
    (&["imatrix"], "chunks", Fails("--chunks 0", "--chunks")),
    (&["imatrix"], "process_output", Tested("cli/src/commands/imatrix.rs", "process_output")),
    (ANY, "force", Tested("cli/tests/cli/written.rs", "--force")),
    (&["bench", "run", "logits"], "json", Shows("--json", "{")),
    (ANY, "json", Shows("--json", "\": ")),
];

/// Every command that has the flag.
const ANY: &[&str] = &[];

/// A command without subcommands, and its path.
struct Leaf {
    path: String,
    command: clap::Command,
}

fn leaves(command: &clap::Command, path: &str, found: &mut Vec<Leaf>) {
    for inner in command.get_subcommands() {
        let path = format!("{path} {}", inner.get_name()).trim_start().to_owned();
        if inner.has_subcommands() {
            leaves(inner, &path, found);
        } else {
            found.push(Leaf { path, command: inner.clone() });
        }
    }
}

/// The entry of a flag.
fn effect(path: &str, id: &str) -> Option<Effect> {
    let own = |commands: &[&str]| commands.is_empty() || commands.contains(&path);
    TABLE
        .iter()
        .find(|(commands, ids, _)| own(commands) && ids.split(' ').any(|one| one == id))
        .map(|row| row.2)
}

/// Files that base calls need.
struct Files {
    folder: tempfile::TempDir,
    /// Names in braces and their values.
    names: BTreeMap<&'static str, String>,
    number: AtomicUsize,
    /// The output of base calls.
    known: Mutex<BTreeMap<Vec<String>, CommandOutput>>,
}

#[derive(Clone)]
struct CommandOutput {
    code: Option<i32>,
    text: String,
    /// The files that it has written: names and hashes.
    files: BTreeMap<String, u64>,
}

impl CommandOutput {
    /// The part of the output that is equal in all runs.
    fn seen(&self) -> (Option<i32>, String, &BTreeMap<String, u64>) {
        (self.code, steady(&self.text), &self.files)
    }

    /// Whether it has printed this text. Lines may be broken between any two words.
    fn says(&self, words: &str) -> bool {
        let one_line = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        self.text.contains(words) || one_line(&self.text).contains(&one_line(words))
    }
}

impl Files {
    fn new() -> Files {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, text).unwrap();
            path.display().to_string()
        };
        let model = |name: &str, ty: &str| {
            let path = folder.path().join(name).display().to_string();
            latent(&["make-model", "tiny-dense", ty, &path, "--layers", "1"]).assert().success();
            path
        };
        let choice = r#"{"ctx": "Once upon", "endings": [" a time", " a fox"], "label": 0}"#;
        let question = r#"{"prompt": "Hi", "expected": "x"}"#;
        let names = BTreeMap::from([
            ("{m}", model("m.gguf", "Q8_0")),
            ("{f}", model("f.gguf", "F32")),
            ("{d}", support::demo().display().to_string()),
            ("{t}", file("text", &"a word of a text ".repeat(120))),
            ("{choice}", file("choice", &format!("{choice}\n{choice}\n"))),
            ("{questions}", file("questions", &format!("{question}\n{question}\n"))),
            ("{h}", file("hosts.toml", "[[host]]\nname = \"a\"\nread_gb_per_s = 9\n")),
            ("{result}", file("result", "{}")),
        ]);
        Files { folder, names, number: AtomicUsize::new(0), known: Mutex::default() }
    }

    /// The words of a call: the base without the flags that `args` sets, and these.
    fn words(&self, path: &str, args: &str) -> Vec<String> {
        let base =
            BASES.iter().find(|(name, _)| *name == path).unwrap_or_else(|| panic!("no base of {path}")).1;
        let set: Vec<&str> = args.split_whitespace().filter(|word| is_flag(word)).collect();
        let mut words: Vec<&str> = path.split(' ').collect();
        let mut rest = base.split_whitespace().peekable();
        while let Some(word) = rest.next() {
            if !set.contains(&word) {
                words.push(word);
            } else if rest.peek().is_some_and(|next| !is_flag(next)) {
                rest.next();
            }
        }
        words.extend(args.split_whitespace());
        let named = |word: &&str| self.names.get(*word).cloned().unwrap_or_else(|| (*word).to_owned());
        words.iter().map(named).collect()
    }

    fn run(&self, path: &str, args: &str) -> CommandOutput {
        let words = self.words(path, args);
        if let Some(known) = self.known.lock().unwrap().get(&words) {
            return known.clone();
        }
        let line: Vec<&str> = ["latent"].into_iter().chain(words.iter().map(String::as_str)).collect();
        if let Err(text) = latent_cli::read_line(&line, &[]) {
            // Wrong usage is detected in this process: starting the program is a thousand times
            // slower.
            let printed = CommandOutput { code: Some(64), text, files: BTreeMap::new() };
            self.known.lock().unwrap().insert(words, printed.clone());
            return printed;
        }
        let folder = self.folder.path().join(self.number.fetch_add(1, Ordering::Relaxed).to_string());
        std::fs::create_dir(&folder).unwrap();
        let args: Vec<&str> = words.iter().map(String::as_str).collect();
        let input = if ["run", "chat", "tokenize"].contains(&path) { "Hi\n" } else { "" };
        let mut command = latent(&args);
        command.env_remove("LATENT_API_KEY").env("LATENT_CACHE", &folder).env("HF_HUB_OFFLINE", "1");
        let output = command.current_dir(&folder).write_stdin(input).output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let hash = |entry: std::fs::DirEntry| {
            let mut hasher = std::hash::DefaultHasher::new();
            std::fs::read(entry.path()).unwrap_or_default().hash(&mut hasher);
            (entry.file_name().to_string_lossy().into_owned(), hasher.finish())
        };
        let printed = CommandOutput {
            code: output.status.code(),
            text: text(&output.stdout) + &text(&output.stderr),
            files: std::fs::read_dir(&folder).unwrap().map(|entry| hash(entry.unwrap())).collect(),
        };
        assert!(matches!(printed.code, Some(0 | 1 | 2 | 64)), "{words:?}: {}", printed.text);
        self.known.lock().unwrap().insert(words, printed.clone());
        printed
    }

    /// The problem of a flag, if any.
    fn problem(&self, path: &str, effect: Effect) -> Option<String> {
        let differs = |without: &str, with: &str, text: &str| {
            let (before, after) = (self.run(path, without), self.run(path, with));
            let seen = match text {
                "" => before.seen() != after.seen(),
                text => !before.says(text) && after.says(text),
            };
            (!seen).then(|| {
                format!("{with}: expected {text:?}\n-- without: {}\n-- with: {}", before.text, after.text)
            })
        };
        match effect {
            Shows(args, text) => differs("", args, text),
            With(without, with, text) => differs(without, with, text),
            Fails(args, text) => {
                let after = self.run(path, args);
                (after.code == Some(0))
                    .then(|| format!("{args} does not fail"))
                    .or_else(|| differs("", args, text))
            }
            Clashes(args) | Speed(args) => {
                let after = self.run(path, args);
                (after.code != Some(64)).then(|| format!("{args} is not refused: {}", after.text))
            }
            Writes(args, file) => {
                let (before, after) = (self.run(path, ""), self.run(path, args));
                (before.files.contains_key(file) || !after.files.contains_key(file))
                    .then(|| format!("{args} does not write {file}: {}", after.text))
            }
            Loaded => lacks(
                &format!("cli/src/commands/{}.rs", path.replace(' ', "/")),
                "model::load(&checkpoint, &engine_args",
            ),
            Tested(file, text) => lacks(file, text),
        }
    }
}

/// The problem of a source file below `crates`, if any.
fn lacks(file: &str, text: &str) -> Option<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(file);
    let source = std::fs::read_to_string(path).unwrap_or_default();
    (!source.contains(text)).then(|| format!("{file} has no {text:?}"))
}

/// Whether a word is a flag, and not a negative number.
fn is_flag(word: &str) -> bool {
    word.starts_with('-') && !word[1..].starts_with(|c: char| c.is_ascii_digit())
}

/// A text without parts that differ between runs: numbers with a point (times and speeds), and
/// ports.
fn steady(text: &str) -> String {
    let varies = |word: &str| {
        word.contains(|c: char| c.is_ascii_digit()) && (word.contains('.') || word.contains("e-"))
    };
    text.split_whitespace().filter(|word| !varies(word)).collect::<Vec<_>>().join(" ")
}

/// A call with a flag that the command omits must be refused.
fn refused(files: &Files, path: &str, flag: &clap::Arg) -> Option<String> {
    let long = flag.get_long()?;
    let value = match flag.get_id().as_str() {
        "wire" => " bf16",
        "precision" => " exact",
        "mla" => " naive",
        "draft" => " mtp",
        "pin" => " cores",
        "without" => " fold_norms",
        "override_kv" => " a=int:1",
        "rope_scaling" => " yarn",
        _ if flag.is_require_equals_set() => "=1",
        _ if flag.get_num_args().is_some_and(|count| count.takes_values()) => " 1",
        _ => "",
    };
    let after = files.run(path, &format!("--{long}{value}"));
    let expected = format!("--{long} has no effect on `latent {path}`");
    (after.code != Some(64) || !after.text.contains(&expected)).then_some(after.text)
}

#[test]
fn every_flag_has_an_effect_or_is_refused() {
    let mut command = latent_cli::command();
    command.build();
    let mut found = Vec::new();
    leaves(&command, "", &mut found);
    let files = Files::new();
    let mut cases = Vec::new();
    let mut missing = Vec::new();
    for Leaf { path, command } in &found {
        for flag in command.get_arguments().filter(|arg| !arg.is_positional()) {
            let id = flag.get_id().as_str();
            match effect(path, id) {
                _ if matches!(id, "help" | "version") || path.starts_with("help") => {}
                _ if latent_cli::is_absent(path, id) => cases.push((path, flag, None)),
                Some(effect) => cases.push((path, flag, Some(effect))),
                None => missing.push(format!("{path}: {id}")),
            }
        }
    }
    assert!(missing.is_empty(), "flags without an entry in the table: {missing:#?}");
    assert!(cases.len() > 300, "only {} flags", cases.len());
    let (next, problems) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some((path, flag, effect)) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let problem = match effect {
                        Some(effect) => files.problem(path, *effect),
                        None => refused(&files, path, flag),
                    };
                    if let Some(problem) = problem {
                        problems.lock().unwrap().push(format!("latent {path}, {}: {problem}", flag.get_id()));
                    }
                }
            });
        }
    });
    let problems = problems.into_inner().unwrap();
    assert!(problems.is_empty(), "{} of {}:\n{}", problems.len(), cases.len(), problems.join("\n"));
}
