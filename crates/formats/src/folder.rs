//! Model folders in Hugging Face's form: config.json, tokenizer, and the list of safetensors files.

use crate::absent::RequiredFiles;
use crate::error::FormatError;
use crate::index::SafetensorsIndex;
use crate::sniff::PICKLE;
use crate::{json, limits, mistral};
use latent_files::OpenFileGuard;
use latent_files::input_file;
use serde_json::{Map, Value};
use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The contents of a model folder other than its tensors.
#[derive(Clone, Debug, Default)]
pub struct HfSource {
    /// config.json. In a folder without it, params.json converted to the keys of config.json.
    pub config: Map<String, Value>,
    /// Whether `config` was converted from params.json (Mistral's own folders).
    pub from_params: bool,
    /// tokenizer.json, tiktoken.model, tokenizer.model or tekken.json, if any.
    pub tokenizer: Option<TokenizerFile>,
    /// tokenizer_config.json.
    pub tokenizer_config: Option<Value>,
    /// The chat template, from chat_template.jinja or tokenizer_config.json.
    pub chat_template: Option<String>,
    /// generation_config.json.
    pub generation_config: Option<Value>,
}

/// A tokenizer's vocabulary. The file is read only when a tokenizer is built.
#[derive(Clone, Debug)]
pub struct TokenizerFile {
    pub kind: TokenizerKind,
    pub place: TokenizerPlace,
}

/// The format of a folder's vocabulary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenizerKind {
    /// tokenizer.json: vocabulary and rules.
    Json,
    /// tiktoken.model: byte strings in rank order. A Python file of the model has the rules.
    Tiktoken,
    /// tokenizer.model: SentencePiece's pieces and scores.
    SentencePiece,
    /// tekken.json: byte strings in rank order, special tokens and the pattern that splits text
    /// (Mistral).
    Tekken,
}

/// Location of a vocabulary's bytes.
#[derive(Clone, Debug)]
pub enum TokenizerPlace {
    File(PathBuf),
    /// In memory, from a packed file.
    Held(Arc<[u8]>),
}

impl TokenizerKind {
    // tokenizer.json is first, because it has the rules too. Folders may hold tokenizer.model as
    // well.
    /// All kinds. If a folder has several files, the first one is used.
    pub(crate) const ALL: [TokenizerKind; 4] =
        [TokenizerKind::Json, TokenizerKind::Tiktoken, TokenizerKind::SentencePiece, TokenizerKind::Tekken];

    /// The name of the file in a folder.
    pub fn file_name(self) -> &'static str {
        match self {
            TokenizerKind::Json => "tokenizer.json",
            TokenizerKind::Tiktoken => "tiktoken.model",
            TokenizerKind::SentencePiece => "tokenizer.model",
            TokenizerKind::Tekken => "tekken.json",
        }
    }
}

impl TokenizerFile {
    /// The bytes of the file.
    ///
    /// # Errors
    /// An I/O error, or a file larger than [`limits::MAX_TOKENIZER_BYTES`]. The error names the
    /// file.
    pub fn read(&self) -> Result<Cow<'_, [u8]>, FormatError> {
        match &self.place {
            TokenizerPlace::File(path) => {
                Ok(Cow::Owned(input_file::read(path, limits::MAX_TOKENIZER_BYTES)?))
            }
            TokenizerPlace::Held(bytes) => Ok(Cow::Borrowed(bytes)),
        }
    }

    /// The tokenizer file of a folder, if any.
    fn in_folder(folder: &Path) -> Option<TokenizerFile> {
        TokenizerKind::ALL.into_iter().find_map(|kind| {
            let path = folder.join(kind.file_name());
            path.is_file().then_some(TokenizerFile { kind, place: TokenizerPlace::File(path) })
        })
    }
}

/// The small files of a model folder. A packed file contains copies of them.
pub(crate) const FILES: [&str; 6] = [
    "config.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "generation_config.json",
    "params.json",
    "hf_quant_config.json",
];

/// Guards that mark the files of the model in `folder` other than weights as open.
pub(crate) fn in_use(folder: &Path) -> Vec<OpenFileGuard> {
    let names = FILES.into_iter().chain(TokenizerKind::ALL.map(TokenizerKind::file_name));
    let names = names.chain(WEIGHT_FILES.map(|[index, _]| index));
    names.filter_map(|name| OpenFileGuard::at(&folder.join(name))).collect()
}

/// The index of a model in several files, and the file of a model in one: Hugging Face's names,
/// then Mistral's.
const WEIGHT_FILES: [[&str; 2]; 2] = [
    ["model.safetensors.index.json", "model.safetensors"],
    ["consolidated.safetensors.index.json", "consolidated.safetensors"],
];

/// Reads a file of a folder: takes its name and its maximum size, and returns its text if it
/// exists.
pub(crate) type FolderTextReader<'a> = dyn Fn(&str, u64) -> Result<Option<String>, FormatError> + 'a;

/// Default rows and columns of an FP8 matrix that share a scale: those of DeepSeek-V3.
pub(crate) const FP8_BLOCK: (usize, usize) = (128, 128);

/// Maximum side of such a block. Kernels accumulate this many products before they apply the scale.
const MAX_SIDE: u64 = 1 << 16;

impl HfSource {
    /// The name of the file that `config` is from.
    pub fn config_file(&self) -> &'static str {
        if self.from_params { "params.json" } else { "config.json" }
    }

    /// `quantization_config`. Multimodal models may have it in `text_config`.
    pub(crate) fn quantization_config(&self) -> Option<&Map<String, Value>> {
        let places = [Some(&self.config), self.config.get("text_config").and_then(Value::as_object)];
        // `compression_config` is the older name of compressed-tensors.
        let names = ["quantization_config", "compression_config"];
        let mut found = places.into_iter().flatten().flat_map(|keys| names.map(|name| keys.get(name)));
        found.find_map(|value| value?.as_object())
    }

    /// Rows and columns of an FP8 matrix that share a scale:
    /// `quantization_config.weight_block_size`.
    ///
    /// # Errors
    /// The value found, if it is not two multiples of sixteen up to 65536.
    pub fn fp8_block(&self) -> Result<(usize, usize), String> {
        let Some((key, size)) = self.quantization_config().and_then(block_size) else { return Ok(FP8_BLOCK) };
        let side = |i: usize| {
            // Multiples of 16, so that the sixteen rows of a tile share their scales.
            let side =
                size.get(i)?.as_u64().filter(|n| (1..=MAX_SIDE).contains(n) && n.is_multiple_of(16))?;
            usize::try_from(side).ok()
        };
        match (size.as_array().map(Vec::len), side(0), side(1)) {
            (Some(2), Some(rows), Some(cols)) => Ok((rows, cols)),
            _ => Err(format!(
                "quantization_config: {key} is {size}, expected two multiples of 16 up to {MAX_SIDE}"
            )),
        }
    }

    /// Reads everything but the tensors.
    pub(crate) fn read(folder: &Path) -> Result<HfSource, FormatError> {
        let text = |name: &str, limit| json::read_text(&folder.join(name), limit);
        let tokenizer = TokenizerFile::in_folder(folder);
        let missing = || FormatError::NotAModel { path: folder.to_owned(), what: no_config(folder) };
        HfSource::from_files(folder, &text, tokenizer)?.ok_or_else(missing)
    }

    /// Like [`read`](Self::read), with a function that reads the files of [`FILES`]. `None` without
    /// config.json.
    pub(crate) fn from_files(
        folder: &Path,
        text: &FolderTextReader<'_>,
        tokenizer: Option<TokenizerFile>,
    ) -> Result<Option<HfSource>, FormatError> {
        let [config, tokenizer_config, template, generation_config, params, modelopt] = FILES;
        let json = |name: &str| -> Result<Option<Value>, FormatError> {
            let Some(text) = text(name, limits::MAX_JSON_BYTES)? else { return Ok(None) };
            json::parse(&text).map(Some).map_err(|problem| json::failed(&folder.join(name), &text, problem))
        };
        let object = |name: &str| match json(name)? {
            Some(Value::Object(object)) => Ok(Some(object)),
            Some(_) => {
                let problem = "it must contain a JSON object".into();
                Err(FormatError::Json { path: folder.join(name), problem })
            }
            None => Ok(None),
        };
        // Mistral's repositories may have both files. config.json has priority, as its weights do.
        let (mut config, from_params) = match object(config)? {
            Some(config) => (config, false),
            None => match object(params)? {
                Some(params) => (mistral::config(params), true),
                None => return Ok(None),
            },
        };
        // Older versions of ModelOpt write hf_quant_config.json instead of `quantization_config`.
        if config.get("quantization_config").is_none_or(Value::is_null)
            && let Some(Value::Object(mut settings)) =
                object(modelopt)?.and_then(|mut object| object.remove("quantization"))
        {
            settings.insert("quant_method".into(), "modelopt".into());
            config.insert("quantization_config".into(), settings.into());
        }
        let tokenizer_config = json(tokenizer_config)?;
        // transformers reads the file before the key too.
        let chat_template = match text(template, limits::MAX_STRING_BYTES)? {
            Some(text) => Some(text),
            None => tokenizer_config.as_ref().and_then(template_in),
        };
        let generation_config = json(generation_config)?;
        Ok(Some(HfSource {
            config,
            from_params,
            tokenizer,
            tokenizer_config,
            chat_template,
            generation_config,
        }))
    }
}

/// The key with the size of FP8 blocks and its value: DeepSeek's, or that of compressed-tensors.
fn block_size(keys: &Map<String, Value>) -> Option<(&'static str, &Value)> {
    let set = |value: &&Value| !value.is_null();
    if let Some(size) = keys.get("weight_block_size").filter(set) {
        return Some(("weight_block_size", size));
    }
    let groups = keys.get("config_groups").and_then(Value::as_object)?;
    groups.values().find_map(|group| {
        let weights = group.get("weights")?;
        let blocks = weights.get("strategy").and_then(Value::as_str) == Some("block");
        Some(("block_structure", weights.get("block_structure").filter(|size| blocks && !size.is_null())?))
    })
}

/// `chat_template` of tokenizer_config.json: a string, or a list of named templates, of which
/// `default` is used.
fn template_in(config: &Value) -> Option<String> {
    match config.get("chat_template")? {
        Value::String(text) => Some(text.clone()),
        Value::Array(list) => {
            // Command R has `tool_use` and `rag` too.
            let named = list.iter().find(|t| t.get("name").and_then(Value::as_str) == Some("default"));
            named?.get("template")?.as_str().map(str::to_owned)
        }
        _ => None,
    }
}

/// The safetensors files of a folder: those of the index, or the only one. Files that `needed`
/// requires must exist.
pub(crate) fn tensor_files(
    folder: &Path,
    needed: RequiredFiles,
) -> Result<(Vec<PathBuf>, Option<SafetensorsIndex>), FormatError> {
    for [index, single] in WEIGHT_FILES {
        let (path, single) = (folder.join(index), folder.join(single));
        if let Some(mut index) = SafetensorsIndex::read(&path)? {
            let paths = index.paths(&path, folder, needed)?;
            // The index has the names of its files. Tensors are renamed everywhere alike.
            if mistral::names_tensors(&path) {
                index.tensors.iter_mut().for_each(|(name, _)| {
                    if let Some(plain) = mistral::plain_name(name) {
                        *name = plain.into_boxed_str();
                    }
                });
            }
            return Ok((paths, Some(index)));
        }
        if single.exists() {
            return Ok((vec![single], None));
        }
    }
    // A file with another name is used if it is the only one. Of several without an index, some may
    // be missing, or be of another model.
    let names = names_ending(folder, &[".safetensors"]);
    match names.as_slice() {
        [only] => Ok((vec![folder.join(only)], None)),
        [] => Err(FormatError::NotAModel { path: folder.to_owned(), what: no_tensors(folder) }),
        [first, .., last] => {
            let what = format!(
                "it holds {} .safetensors files ({first} to {last}) but no model.safetensors.index.json; the download is incomplete",
                names.len()
            );
            Err(FormatError::NotAModel { path: folder.to_owned(), what })
        }
    }
}

/// Names in a folder with one of these endings, sorted.
fn names_ending(folder: &Path, endings: &[&str]) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let names = entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
    let mut names: Vec<String> = names.filter(|name| endings.iter().any(|end| name.ends_with(end))).collect();
    // `read_dir` has no fixed order, and messages should not vary.
    names.sort_unstable();
    names
}

fn no_config(folder: &Path) -> String {
    match names_ending(folder, &[".gguf"]).first() {
        Some(name) => {
            format!("it has GGUF files but no config.json; pass the path of one file, such as {name}")
        }
        None => "it has no config.json; a model folder needs config.json (or Mistral's params.json) and \
                 .safetensors files"
            .into(),
    }
}

fn no_tensors(folder: &Path) -> String {
    match names_ending(folder, &OTHER_WEIGHTS).first() {
        Some(name) if name.ends_with(".gguf") => {
            format!("its weights are in a GGUF file; pass its path: {name}")
        }
        Some(name) => format!("its weights are in {name}: {PICKLE}"),
        None => "it holds config.json, but no .safetensors file; the download is incomplete".into(),
    }
}

/// Extensions of weight files that are not read from a folder.
const OTHER_WEIGHTS: [&str; 4] = [".gguf", ".bin", ".pt", ".pth"];

/// Whether a folder contains no weight file of any format.
pub(crate) fn has_no_weights(folder: &Path) -> bool {
    names_ending(folder, &OTHER_WEIGHTS).is_empty() && names_ending(folder, &[".safetensors"]).is_empty()
}
