//! Reads a config past its errors: each error is recorded and a plausible value filled in.

use super::missing::{MissingItem, MissingKind};
use crate::circuit::TensorNaming;
use crate::config::{
    ConfigError, ConfigTensors, ImpliedShapes, MetadataKeys, MetadataValue, ModelConfig, OutlineFile, lacks,
};
use latent_formats::{CheckpointSource, Outline, OutlineData};
use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};

/// Maximum number of attempts.
// More than any file has errors in its keys.
const MAX_READS: usize = 64;

/// The readable part of a config.
pub(super) struct RecoveredConfig {
    pub(super) architecture: String,
    /// With every missing or wrong value filled in; `None` if that did not help.
    pub(super) config: Option<ModelConfig>,
    /// Whether some value is not from the file.
    pub(super) filled: bool,
    pub(super) missing: Vec<MissingItem>,
    pub(super) unread: Vec<String>,
    /// Number of keys of the file that were read.
    pub(super) asked: usize,
    /// Number of these that select a computation by a word or a flag.
    pub(super) choices: usize,
    /// Unreadable keys with their values, and whether the value is a word or a flag.
    pub(super) wrong: Vec<(String, bool)>,
    /// Whether the architecture has no circuit.
    pub(super) unsupported: bool,
}

/// Reads the config of an outline, as one of architecture `stand_in` if given.
pub(super) fn read_as(outline: &Outline, naming: TensorNaming, stand_in: Option<&str>) -> RecoveredConfig {
    let file = OutlineFile(outline);
    let keys = FilledKeys::new(&file);
    let mut read = RecoveredConfig {
        architecture: architecture(&file, naming),
        config: None,
        filled: false,
        missing: Vec::new(),
        unread: Vec::new(),
        asked: 0,
        choices: 0,
        wrong: Vec::new(),
        unsupported: false,
    };
    if let Some(name) = stand_in {
        keys.stand_in(naming, &read.architecture, name);
    }
    // A file's own tensors first; implied ones if there are none, or if they do not fit the keys.
    let mut implied = outline.data() == OutlineData::Config;
    // Readers stop at the first error. Each attempt replaces one value and reads again from the
    // start.
    for _ in 0..MAX_READS {
        let from_keys = ImpliedShapes { keys: &keys, naming };
        let tensors: &dyn ConfigTensors = if implied { &from_keys } else { &file };
        let result = match naming {
            TensorNaming::Gguf => ModelConfig::from_gguf(&keys, tensors),
            TensorNaming::HuggingFace => ModelConfig::from_config(&keys, tensors),
        };
        match result {
            Ok(config) => {
                read.config = Some(config);
                break;
            }
            Err(error) => {
                if !read.fill(error, &keys, naming, (&mut implied, outline.names_all_tensors())) {
                    break;
                }
            }
        }
    }
    // Keys that no reader asked for. Complete only if a config could be read.
    read.unread = unread(outline, &keys);
    let asked = keys.asked.borrow();
    // A model's names are not compared, and an object is compared by its keys.
    let names = ["general.architecture", "general.name", "model_type", "_name_or_path", "architectures"];
    let fields: Vec<MetadataValue> = asked
        .iter()
        .filter(|key| !names.contains(&key.rsplit("text_config.").next().unwrap_or(key)))
        .filter_map(|key| file.field(key))
        .filter(|field| !matches!(field, MetadataValue::Object(_)))
        .collect();
    read.asked = fields.len();
    read.choices = fields.iter().filter(|field| chooses(field)).count();
    read
}

/// Whether a value selects a computation instead of a size.
fn chooses(field: &MetadataValue) -> bool {
    matches!(field, MetadataValue::Text(_) | MetadataValue::Flag(_))
}

impl RecoveredConfig {
    /// Records an error and fills in a value. Returns whether another attempt may help.
    fn fill(
        &mut self,
        error: ConfigError,
        keys: &FilledKeys<'_>,
        naming: TensorNaming,
        (implied, all_named): (&mut bool, bool),
    ) -> bool {
        let (what, problem, wrong) = match error {
            ConfigError::Unsupported { architecture, known, .. } => {
                let problem =
                    format!("no circuit runs it{}; supported: {}", lacks(&architecture), known.join(", "));
                self.missing.push(MissingItem::new(MissingKind::Architecture, &architecture, problem));
                self.unsupported = true;
                return false;
            }
            ConfigError::Missing { what, hint, .. } => (what, format!("it is missing: {hint}"), false),
            ConfigError::Wrong { what, value, expected, .. }
            | ConfigError::NotComputed { what, value, expected, .. } => {
                (what, format!("it is {value}, expected {expected}"), true)
            }
        };
        let Some(key) = what.strip_prefix("key ") else {
            // All tensors are checked later. A missing tensor is recorded here only for its reason.
            if *implied || !wrong && all_named {
                let what = what.strip_prefix("tensor ").unwrap_or(&what);
                self.missing.push(MissingItem::new(MissingKind::Tensor, what, problem));
            }
            return !std::mem::replace(implied, true);
        };
        self.filled = true;
        let key = keys.spelled(key);
        // An error about a filled-in value is not the file's.
        if !keys.replaced.borrow().contains_key(&key) {
            if let Some(field) = keys.keys.field(&key).filter(|_| wrong) {
                self.wrong.push((format!("{key} = {field}"), chooses(&field)));
            }
            self.missing.push(MissingItem::new(MissingKind::Key, &key, problem));
        }
        // When no value helps, try once more with the shapes that the keys imply.
        keys.replace(&key, naming) || !std::mem::replace(implied, true)
    }
}

fn architecture(keys: &dyn MetadataKeys, naming: TensorNaming) -> String {
    let key = if naming == TensorNaming::Gguf { "general.architecture" } else { "model_type" };
    match keys.field(key) {
        Some(MetadataValue::Text(name)) => name,
        _ => format!("(no {key})"),
    }
}

/// Keys of config.json (or of its text part) or of a GGUF file's architecture that no reader uses,
/// without those for tokens and versions.
fn unread(outline: &Outline, keys: &FilledKeys<'_>) -> Vec<String> {
    const UNUSED_GGUF: [&str; 6] = [
        "attention.head_count_kv",
        "attention.key_length",
        "attention.value_length",
        "nextn_predict_layers",
        "rope.scaling.finetuned",
        "vocab_size",
    ];
    const UNUSED: [&str; 22] = [
        "architectures",
        "auto_map",
        "transformers_version",
        "torch_dtype",
        "dtype",
        "use_cache",
        "initializer_range",
        "pretraining_tp",
        "attention_dropout",
        "num_key_value_heads",
        "head_dim",
        "model_type",
        "text_config",
        "vision_config",
        "quantization_config",
        "name_or_path",
        "output_router_logits",
        "router_aux_loss_coef",
        "aux_loss_alpha",
        "seq_aux",
        "ep_size",
        "tie_word_embeddings",
    ];
    let asked = keys.asked.borrow();
    let source = match outline.source() {
        CheckpointSource::HuggingFace(source) => source,
        CheckpointSource::Gguf(source) => {
            let prefix = format!("{}.", architecture(keys.keys, TensorNaming::Gguf));
            let entries = source.metadata.entries().iter().filter(|(key, value)| {
                // Keys of other prefixes (`tokenizer.`, `general.`) do not choose a computation.
                let unused = key.strip_prefix(&prefix).is_none_or(|key| UNUSED_GGUF.contains(&key));
                // A flag that is false asks for no computation.
                let says = !matches!(value, latent_formats::gguf::Value::Bool(false));
                !unused && says && !asked.contains(key)
            });
            return entries.map(|(key, value)| format!("{key} = {}", value.describe())).collect();
        }
    };
    let inner = source.config.get("text_config").and_then(serde_json::Value::as_object);
    let of = |object: &serde_json::Map<String, serde_json::Value>, prefix: &str| -> Vec<String> {
        let names = object.iter().filter(|(key, value)| {
            let unused = UNUSED.contains(&key.as_str()) || key.ends_with("token_id") || key.starts_with('_');
            let says = !value.is_null() && **value != serde_json::Value::Bool(false);
            !unused
                && says
                && !asked
                    .iter()
                    .any(|a| *a == format!("{prefix}{key}") || a.starts_with(&format!("{prefix}{key}.")))
        });
        names.map(|(key, value)| format!("{prefix}{key} = {}", shown(value))).collect()
    };
    match inner {
        Some(inner) => of(inner, "text_config."),
        None => of(&source.config, ""),
    }
}

fn shown(value: &serde_json::Value) -> String {
    let text = value.to_string();
    if text.chars().count() > 40 { format!("{}…", text.chars().take(39).collect::<String>()) } else { text }
}

/// Keys of a file with replacements. Records the keys that were read.
pub(super) struct FilledKeys<'a> {
    keys: &'a dyn MetadataKeys,
    replaced: RefCell<HashMap<String, Option<MetadataValue>>>,
    /// In GGUF: the prefix that readers ask for, and the file's.
    prefix: RefCell<Option<(String, String)>>,
    asked: RefCell<BTreeSet<String>>,
}

impl FilledKeys<'_> {
    fn new(keys: &dyn MetadataKeys) -> FilledKeys<'_> {
        FilledKeys {
            keys,
            replaced: RefCell::default(),
            prefix: RefCell::default(),
            asked: RefCell::default(),
        }
    }

    /// The key with the file's own prefix.
    fn spelled(&self, key: &str) -> String {
        match &*self.prefix.borrow() {
            Some((asked, own)) => {
                key.strip_prefix(asked.as_str()).map_or_else(|| key.to_owned(), |rest| format!("{own}{rest}"))
            }
            None => key.to_owned(),
        }
    }

    /// Reads the file as if it were of another architecture.
    fn stand_in(&self, naming: TensorNaming, own: &str, other: &str) {
        let text = || Some(MetadataValue::Text(other.to_owned()));
        let mut replaced = self.replaced.borrow_mut();
        match naming {
            TensorNaming::Gguf => {
                replaced.insert("general.architecture".into(), text());
                *self.prefix.borrow_mut() = Some((format!("{other}."), format!("{own}.")));
            }
            TensorNaming::HuggingFace => {
                replaced.insert("model_type".into(), text());
                replaced.insert("text_config.model_type".into(), text());
            }
        }
    }

    /// Replaces `key` by a usual value, and the second time removes it. False if both were tried.
    fn replace(&self, key: &str, naming: TensorNaming) -> bool {
        let mut replaced = self.replaced.borrow_mut();
        match replaced.get(key) {
            None => {
                let name = match naming {
                    TensorNaming::Gguf => key.split_once('.').map_or(key, |(_, rest)| rest),
                    TensorNaming::HuggingFace => key.rsplit('.').next().unwrap_or(key),
                };
                replaced.insert(key.to_owned(), usual(name));
                true
            }
            Some(Some(_)) => {
                replaced.insert(key.to_owned(), None);
                true
            }
            Some(None) => false,
        }
    }
}

impl MetadataKeys for FilledKeys<'_> {
    fn file(&self) -> String {
        self.keys.file()
    }

    fn field(&self, key: &str) -> Option<MetadataValue> {
        let key = self.spelled(key);
        self.asked.borrow_mut().insert(key.clone());
        match self.replaced.borrow().get(&key) {
            Some(field) => field.clone(),
            None => self.keys.field(&key),
        }
    }

    fn mentions(&self, key: &str) -> bool {
        let key = self.spelled(key);
        match self.replaced.borrow().get(&key) {
            Some(field) => field.is_some(),
            None => self.keys.mentions(&key),
        }
    }
}

/// A value with which reading can continue. `None` to remove the key.
// From DeepSeek-V2-Lite, which is small and has every feature.
fn usual(name: &str) -> Option<MetadataValue> {
    const INTEGERS: [(&str, i128); 32] = [
        ("block_count", 27),
        ("context_length", 163_840),
        ("embedding_length", 2048),
        ("feed_forward_length", 10_944),
        ("attention.head_count", 16),
        ("attention.head_count_kv", 1),
        ("attention.kv_lora_rank", 512),
        ("attention.key_length", 192),
        ("attention.value_length", 128),
        ("attention.key_length_mla", 192),
        ("attention.value_length_mla", 128),
        ("rope.dimension_count", 64),
        ("expert_count", 64),
        ("expert_used_count", 6),
        ("expert_feed_forward_length", 1408),
        ("hidden_size", 2048),
        ("intermediate_size", 10_944),
        ("num_hidden_layers", 27),
        ("num_attention_heads", 16),
        ("vocab_size", 102_400),
        ("max_position_embeddings", 163_840),
        ("kv_lora_rank", 512),
        ("qk_nope_head_dim", 128),
        ("qk_rope_head_dim", 64),
        ("v_head_dim", 128),
        ("n_routed_experts", 64),
        ("num_experts_per_tok", 6),
        ("moe_intermediate_size", 1408),
        ("n_group", 1),
        ("topk_group", 1),
        ("dim_model_base", 256),
        ("moe_layer_freq", 1),
    ];
    const REALS: [(&str, f64); 6] = [
        ("attention.layer_norm_rms_epsilon", 1e-6),
        ("rms_norm_eps", 1e-6),
        ("rope_theta", 10_000.0),
        ("routed_scaling_factor", 1.0),
        ("scale_emb", 1.0),
        ("scale_depth", 1.0),
    ];
    match name {
        "norm_topk_prob" => return Some(MetadataValue::Flag(true)),
        // Without scaling, no further keys of it are read.
        "rope_type" | "type" | "rope.scaling.type" => return Some(MetadataValue::Text("none".into())),
        _ => {}
    }
    let integer =
        INTEGERS.iter().find(|(key, _)| *key == name).map(|(_, value)| MetadataValue::Integer(*value));
    integer
        .or_else(|| REALS.iter().find(|(key, _)| *key == name).map(|(_, value)| MetadataValue::Real(*value)))
}
