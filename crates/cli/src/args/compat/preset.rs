//! Presets of models in INI files, in the format of `llama-server --models-preset`.

use super::flag::{CompatFlag, FlagOperand};
use super::table::flags;
use super::translate::{OFF, ON, Translation, apply, join};
use crate::args::words::hub_model;
use clap::Command;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

/// The section whose keys apply to all models.
const DEFAULTS: &str = "*";

/// The section of keys before the first header.
const UNNAMED: &str = "default";

/// Maximum number of sections.
const MAX_SECTIONS: usize = 4096;

/// A section of a file of presets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PresetSection {
    pub(crate) name: String,
    /// The line of its header, from 1.
    pub(crate) line: usize,
    keys: Vec<PresetKey>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct PresetKey {
    name: String,
    values: Vec<String>,
    line: usize,
}

/// The scope of a section's settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PresetScope {
    /// The server's, and those of all its models.
    Server,
    /// A model. Settings of the whole server are reported and ignored.
    Model,
}

/// The settings of one model.
#[derive(Clone, Debug, Default)]
pub(crate) struct Preset {
    /// File of the model.
    pub(crate) file: Option<String>,
    /// Model of the hub, `OWNER/NAME[:QUANT]`.
    pub(crate) hf_repo: Option<String>,
    /// File of it.
    pub(crate) hf_file: Option<String>,
    /// The hub's draft model in llama.cpp. It is not used, but hidden from lists.
    pub(crate) draft_repo: Option<String>,
    /// Whether it is loaded when the server starts.
    pub(crate) load_on_startup: bool,
    /// Whether the cached model that it uses is hidden from lists.
    pub(crate) dedup_cache_models: bool,
    /// Flags of `latent serve`.
    pub(crate) options: Vec<PresetOption>,
    /// Notes about keys without effect.
    pub(crate) without_effect: Vec<String>,
    /// Notes about keys that apply to the whole server.
    pub(crate) server_wide: Vec<String>,
}

/// A key of a preset as a flag of `latent serve`.
#[derive(Clone, Debug)]
pub(crate) struct PresetOption {
    /// The setting's name, independent of the spelling.
    setting: String,
    /// Empty if it has no effect.
    pub(crate) words: Vec<OsString>,
    /// The flag.
    pub(crate) flag: String,
    pub(crate) key: String,
    pub(crate) line: usize,
}

/// Parses a preset file.
///
/// # Errors
/// A line that is neither a section nor a key, a section that occurs twice, or too many sections.
pub(crate) fn sections(text: &str) -> Result<Vec<PresetSection>, String> {
    let mut sections: Vec<PresetSection> = Vec::new();
    // Notepad saves INI files with a byte-order mark.
    for (line, text) in text.trim_start_matches('\u{feff}').lines().enumerate() {
        // `;` and `#` begin a comment anywhere in a line.
        let (line, text) = (line + 1, text.split([';', '#']).next().unwrap_or_default().trim());
        if text.is_empty() {
            continue;
        }
        if let Some(rest) = text.strip_prefix('[') {
            let name = rest.strip_suffix(']').map(str::trim).filter(|name| !name.is_empty());
            let name = name.ok_or_else(|| format!("line {line}: expected [NAME], found {text:?}"))?;
            if let Some(other) = sections.iter().find(|other| other.name == name) {
                return Err(format!(
                    "line {line}: the section [{name}] occurs in line {} already",
                    other.line
                ));
            }
            if sections.len() >= MAX_SECTIONS {
                return Err(format!("line {line}: more than {MAX_SECTIONS} sections"));
            }
            sections.push(PresetSection::new(name, line));
            continue;
        }
        let pair = text.split_once('=').map(|(key, value)| (key.trim(), value.trim()));
        let Some((key, value)) = pair.filter(|(key, _)| is_key(key)) else {
            return Err(format!("line {line}: expected [NAME] or KEY = VALUE, found {text:?}"));
        };
        // llama.cpp reserves this key for the version of the format.
        if key == "version" {
            continue;
        }
        if sections.is_empty() {
            sections.push(PresetSection::new(UNNAMED, line));
        }
        if let Some(section) = sections.last_mut() {
            section.add(key, vec![value.to_owned()], line);
        }
    }
    Ok(sections)
}

fn is_key(key: &str) -> bool {
    !key.is_empty() && key.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
}

impl PresetSection {
    pub(crate) fn new(name: &str, line: usize) -> PresetSection {
        PresetSection { name: name.to_owned(), line, keys: Vec::new() }
    }

    /// Adds a key. A repeatable flag may have several values.
    pub(crate) fn add(&mut self, key: &str, values: Vec<String>, line: usize) {
        self.keys.push(PresetKey { name: key.to_owned(), values, line });
    }

    /// Whether its keys apply to all models.
    pub(crate) fn is_defaults(&self) -> bool {
        self.name == DEFAULTS
    }
}

impl PresetKey {
    /// Its value.
    fn value(&self) -> Result<&str, String> {
        match self.values.as_slice() {
            [value] => Ok(value),
            values => Err(format!("expected one value, found {}", values.len())),
        }
    }
}

impl PresetOption {
    /// The option of the model that a config file names.
    pub(crate) fn of_model(path: &Path) -> PresetOption {
        let (flag, words) = ("--model", vec![join("--model", Some(path.as_os_str()))]);
        PresetOption { setting: "model".into(), words, flag: flag.into(), key: "model".into(), line: 1 }
    }

    /// Combines options of two files. `own` overrides settings of `base`.
    pub(crate) fn layered<'a>(base: &'a [PresetOption], own: &'a [PresetOption]) -> Vec<&'a PresetOption> {
        let is_replaced = |one: &&PresetOption| own.iter().any(|other| other.setting == one.setting);
        base.iter().filter(|one| !is_replaced(one)).chain(own).collect()
    }
}

impl Preset {
    /// The settings of a model: those of all models, and its own.
    ///
    /// # Errors
    /// A key that is not known or not available, or a value that it cannot have.
    pub(crate) fn new(
        defaults: Option<&PresetSection>,
        own: Option<&PresetSection>,
        serve: &Command,
    ) -> Result<Preset, String> {
        Preset::of_sections(defaults.into_iter().chain(own), PresetScope::Model, serve)
    }

    /// The settings of sections. Later sections take precedence.
    pub(crate) fn of_sections<'a>(
        sections: impl IntoIterator<Item = &'a PresetSection>,
        scope: PresetScope,
        serve: &Command,
    ) -> Result<Preset, String> {
        let mut preset = Preset::default();
        for section in sections {
            let of = if section.name.is_empty() { String::new() } else { format!(" of [{}]", section.name) };
            for key in &section.keys {
                preset
                    .set(key, scope, serve)
                    .map_err(|problem| format!("line {}: `{}`{of}: {problem}", key.line, key.name))?;
            }
        }
        Ok(preset)
    }

    /// The model: a path, or a reference to the hub.
    pub(crate) fn model(&self) -> Option<PathBuf> {
        match (&self.hf_repo, &self.file) {
            (Some(repo), _) => Some(hub_model(repo, self.hf_file.as_deref()).into()),
            (None, Some(file)) => Some(file.into()),
            (None, None) => None,
        }
    }

    fn set(&mut self, key: &PresetKey, scope: PresetScope, serve: &Command) -> Result<(), String> {
        match key.name.replace('_', "-").as_str() {
            "load-on-startup" if scope == PresetScope::Model => {
                self.load_on_startup = truth(key.value()?)?;
                return Ok(());
            }
            "dedup-cache-models" if scope == PresetScope::Model => {
                self.dedup_cache_models = truth(key.value()?)?;
                return Ok(());
            }
            "stop-timeout" => {
                self.without_effect(key, "running answers end before a model is unloaded");
                return Ok(());
            }
            _ => {}
        }
        let (flag, inverted) = find(&key.name, serve).ok_or_else(|| unknown(&key.name, serve))?;
        let value = || key.value().map(|value| Some(value.to_owned()));
        match flag.long().as_str() {
            "--model" => self.file = value()?,
            "--hf-repo" => self.hf_repo = value()?,
            "--hf-file" => self.hf_file = value()?,
            // Drafts affect only the speed, so a draft model is not an error.
            "--hf-repo-draft" => {
                self.draft_repo = value()?;
                self.without_effect(key, "draft models are not supported");
            }
            "--model-draft" => self.without_effect(key, "draft models are not supported"),
            _ => return self.option(key, flag, inverted, (scope, serve)),
        }
        Ok(())
    }

    fn option(
        &mut self,
        key: &PresetKey,
        flag: Flag<'_>,
        inverted: bool,
        (scope, serve): (PresetScope, &Command),
    ) -> Result<(), String> {
        let long = flag.long();
        let setting = long.trim_start_matches('-').trim_start_matches("no-").to_owned();
        // `mmap` and `no-mmap` are one setting: a model's key replaces that of the defaults in
        // either spelling.
        self.options.retain(|option| option.setting != setting);
        let mut made = Translation::default();
        if flag.is_repeated(serve) {
            for value in &key.values {
                flag.apply(Some(OsStr::new(value)), &key.name, &mut made)?;
            }
        } else if flag.takes_value() {
            flag.apply(Some(OsStr::new(key.value()?)), &key.name, &mut made)?;
        } else if truth(key.value()?)? != inverted {
            flag.apply(None, &key.name, &mut made)?;
        } else if let Some((negation, _)) =
            find(&negated(&long), serve).filter(|(flag, _)| !flag.takes_value())
        {
            // `mmap = off` is the flag `--no-mmap`.
            negation.apply(None, &key.name, &mut made)?;
        }
        // `apply` writes notes about a command line. Here the line of the file replaces their
        // prefix.
        for note in made.notes {
            self.without_effect.push(format!("line {}: {}", key.line, note.trim_start_matches("note: ")));
        }
        let flag = made.words.first().map(|word| word.to_string_lossy().into_owned()).unwrap_or_default();
        let flag = flag.split('=').next().unwrap_or_default().to_owned();
        if scope == PresetScope::Model && is_server_wide(&flag, serve) {
            self.server_wide
                .push(format!("line {}: {} applies to the whole server: use {flag}", key.line, key.name));
            made.words.clear();
        }
        let (key, line) = (key.name.clone(), key.line);
        // Even without words: a model's `cpu-moe = off` then still replaces the `on` of a config
        // file.
        self.options.push(PresetOption { setting, words: made.words, flag, key, line });
        Ok(())
    }

    fn without_effect(&mut self, key: &PresetKey, reason: &str) {
        self.without_effect.push(format!("line {}: {} has no effect: {reason}", key.line, key.name));
    }
}

fn truth(value: &str) -> Result<bool, String> {
    let is = |words: &[&str]| words.iter().any(|word| value.eq_ignore_ascii_case(word));
    match value {
        "" => Ok(true),
        _ if is(&ON) => Ok(true),
        _ if is(&OFF) => Ok(false),
        _ => Err(format!("expected true or false, found {value:?}")),
    }
}

/// The name of the flag with the opposite meaning.
fn negated(long: &str) -> String {
    let name = long.trim_start_matches('-');
    name.strip_prefix("no-").map_or_else(|| format!("no-{name}"), str::to_owned)
}

/// A flag that a key names.
enum Flag<'a> {
    /// Of another server.
    Compat(&'static CompatFlag),
    /// Of Latent alone.
    Own(&'a clap::Arg),
}

impl Flag<'_> {
    fn long(&self) -> String {
        match self {
            Flag::Compat(flag) => flag.long().to_owned(),
            Flag::Own(arg) => format!("--{}", arg.get_long().unwrap_or_default()),
        }
    }

    fn takes_value(&self) -> bool {
        match self {
            Flag::Compat(flag) => flag.takes != FlagOperand::Nothing,
            Flag::Own(arg) => arg.get_action().takes_values(),
        }
    }

    /// Whether it can be given several times.
    fn is_repeated(&self, serve: &Command) -> bool {
        let long = self.long();
        let own = |arg: &&clap::Arg| is_called(arg, long.trim_start_matches('-'));
        let own = serve.get_arguments().find(own);
        own.is_some_and(|arg| matches!(arg.get_action(), clap::ArgAction::Append))
    }

    fn apply(&self, value: Option<&OsStr>, name: &str, made: &mut Translation) -> Result<(), String> {
        match self {
            Flag::Compat(flag) => apply(flag, name, value, made),
            Flag::Own(_) => {
                made.words.push(join(&self.long(), value));
                Ok(())
            }
        }
    }
}

/// The flag of a key, and whether a value that means "off" sets it. Keys may be flags with or
/// without dashes, underscores, short flags, or names of variables, as in llama-server.
fn find<'a>(key: &str, serve: &'a Command) -> Option<(Flag<'a>, bool)> {
    for flag in flags() {
        // Before the key is normalized below, because names of variables keep their underscores.
        let Some((variable, inverted)) = flag.variable() else { continue };
        if variable == key {
            return Some((Flag::Compat(flag), inverted));
        }
        // `LLAMA_ARG_NO_MMAP = 1` means the same as `LLAMA_ARG_MMAP = 0`.
        if inverted && variable.replacen("LLAMA_ARG_", "LLAMA_ARG_NO_", 1) == key {
            return Some((Flag::Compat(flag), false));
        }
    }
    let name = key.trim_start_matches('-').replace('_', "-");
    let is_compat = |flag: &&CompatFlag| flag.names().any(|own| own.trim_start_matches('-') == name);
    if let Some(flag) = flags().find(is_compat) {
        return Some((Flag::Compat(flag), false));
    }
    let own = serve.get_arguments().find(|arg| is_called(arg, &name))?;
    Some((Flag::Own(own), false))
}

fn is_called(arg: &clap::Arg, name: &str) -> bool {
    arg.get_long() == Some(name)
        || arg.get_all_aliases().is_some_and(|all| all.contains(&name))
        || arg.get_short().is_some_and(|short| name.chars().eq([short]))
}

/// Flags of the server's group that a model can set for itself.
const OF_MODELS: [&str; 6] = ["alias", "tags", "unload_idle", "parallel", "cache_tokens", "gpu_fallback"];

/// Flags of other groups that apply to the whole server.
const OF_THE_SERVER: [&str; 7] =
    ["api_key", "partition", "hosts_file", "wire", "hung_after", "quiet", "verbose"];

/// Whether a flag applies to the whole server.
fn is_server_wide(flag: &str, serve: &Command) -> bool {
    let name = flag.trim_start_matches('-');
    let Some(id) = serve.get_arguments().find(|arg| is_called(arg, name)).map(|arg| arg.get_id().as_str())
    else {
        return false;
    };
    let server = serve.get_groups().find(|group| group.get_id().as_str() == "ServerArgs");
    let in_group = server.is_some_and(|group| group.get_args().any(|own| own.as_str() == id));
    OF_THE_SERVER.contains(&id) || (in_group && !OF_MODELS.contains(&id))
}

/// The error of an unknown key, with the nearest known one.
fn unknown(key: &str, serve: &Command) -> String {
    let own = serve.get_arguments().filter_map(clap::Arg::get_long);
    let compat = flags().flat_map(CompatFlag::names).filter_map(|name| name.strip_prefix("--"));
    // Keys of presets that are not flags.
    let only = ["load-on-startup", "dedup-cache-models"];
    let near = own.chain(compat).chain(only).map(|name| (strsim::damerau_levenshtein(key, name), name));
    // A third of the letters may be wrong, at most three, as for names of commands.
    let near = near.filter(|(distance, name)| *distance <= name.len().max(key.len()).div_ceil(3).min(3));
    match near.min_by_key(|(distance, _)| *distance) {
        Some((_, name)) => format!("unknown key; a similar one is `{name}`"),
        None => "unknown key; `latent help serve` and docs/switching.md list the flags".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::of_serve;

    /// The words that the preset of the last section becomes.
    fn words(text: &str) -> Result<String, String> {
        let preset = preset(text)?;
        let words = preset.options.iter().flat_map(|option| &option.words);
        Ok(words.map(|word| word.to_str().unwrap()).collect::<Vec<_>>().join(" "))
    }

    fn preset(text: &str) -> Result<Preset, String> {
        let sections = sections(text)?;
        let own = sections.last().filter(|section| !section.is_defaults());
        Preset::new(sections.iter().find(|section| section.is_defaults()), own, &of_serve())
    }

    #[test]
    fn keys_are_flags_in_every_spelling() {
        for (text, expected) in [
            (
                "version = 1\n\n; a comment\n[m]\n# another\nc = 4096 ; behind\nmodel = x.gguf",
                "--ctx-size=4096",
            ),
            ("[m]\nctx-size=1\nctx_size = 2\n--ctx-size = 3\nLLAMA_ARG_CTX_SIZE = 4", "--ctx-size=4"),
            ("[*]\nc = 8192\nngl = 8\n[m]\nctx-size = 4096", "--n-gpu-layers=8 --ctx-size=4096"),
            ("[m]\nb = 2048\nub = 512", "--batch-size=2048 --batch-size=512"),
            ("[m]\njinja = true\nflash-attn = on\nmmap = 0\nno-mmap = 1", ""),
            ("[m]\nprefill-assistant = false", "--no-prefill-assistant"),
            ("[m]\nno-prefill-assistant = false", ""),
            ("[*]\nno-prefill-assistant = 1\n[m]\nprefill-assistant = 1", ""),
            ("[m]\nspecial", "line 2: expected [NAME] or KEY = VALUE, found \"special\""),
            ("[m]\nspecial = on\ncpu-moe = off", "--special"),
            ("[m]\nctk = q8_0\ntemp = 0.5\nr = -x", "--cache-type=q8_0 --temp=0.5 --stop=-x"),
            (
                "[m]\nsleep-idle-seconds = 90\nalias = a,b\nnp = 2",
                "--unload-idle=90s --alias=a,b --parallel=2",
            ),
            ("temp = 1\n", "--temp=1"),
            ("[m]\nchat-template-kwargs = {\"a\": 1}", "--chat-template-kwargs={\"a\": 1}"),
            ("\u{feff}[m]\r\nc = 1\r\n", "--ctx-size=1"),
        ] {
            let found = words(text).unwrap_or_else(|problem| problem);
            assert_eq!(found, expected, "{text}");
        }
    }

    #[test]
    fn errors_name_the_line() {
        for (text, expected) in [
            ("[m]\nctx-sise = 1", "line 2: `ctx-sise` of [m]: unknown key; a similar one is `ctx-size`"),
            ("[m]\nqqqqqqqqqqqqqqq = 1", "docs/switching.md"),
            (
                "[*]\n\ncontrol-vector = x\n[m]\n",
                "line 3: `control-vector` of [*]: control-vector is not available",
            ),
            ("[m]\nload-on-startup = soon", "expected true or false, found \"soon\""),
            ("[m]\nspecial = 7", "expected true or false"),
            ("[m\nc = 1", "line 1: expected [NAME]"),
            ("[ ]", "line 1: expected [NAME]"),
            ("[m]\n[n]\n[m]", "line 3: the section [m] occurs in line 1 already"),
            ("[m]\n= 1", "line 2"),
            ("[m]\na b = 1", "line 2"),
        ] {
            let problem = words(text).unwrap_err();
            assert!(problem.contains(expected), "{text}: {problem}");
        }
    }

    #[test]
    fn model_keys_and_preset_keys_are_not_flags() {
        let text = "[*]\ndedup-cache-models = 1\nload-on-startup = 1\n[m]\nhf-repo = o/n:Q8_0\nhf-file = x.gguf\nload-on-startup = 0\n\
                    spec-draft-hf = o/d\nstop-timeout = 5\nport = 80\nLLAMA_ARG_HOST = a\napi-key = b\nmodels-max = 1";
        let preset = preset(text).unwrap();
        assert_eq!(
            (preset.hf_repo.as_deref(), preset.hf_file.as_deref()),
            (Some("o/n:Q8_0"), Some("x.gguf"))
        );
        assert_eq!(preset.draft_repo.as_deref(), Some("o/d"));
        assert!(preset.dedup_cache_models && !preset.load_on_startup);
        assert!(preset.options.iter().all(|option| option.words.is_empty()), "{:?}", preset.options);
        assert_eq!((preset.server_wide.len(), preset.without_effect.len()), (4, 2), "{preset:?}");
        assert_eq!(preset.server_wide[0], "line 10: port applies to the whole server: use --port");
    }
}
