//! Positional arguments: a model, and the text or file that some commands take after it.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

/// Extensions of model files.
const MODEL_EXTENSIONS: [&str; 3] = [".gguf", ".safetensors", ".latent"];

/// The model of a command, and whether `-m` is on the command line. A positional argument overrides
/// the environment.
pub(super) struct ModelFlag<'a> {
    pub(super) model: &'a mut Option<PathBuf>,
    pub(super) given: bool,
}

/// Whether an argument names a model: an existing path, a model file's name, a reference to the
/// hub, or a short name.
pub(super) fn is_model(word: &OsStr) -> bool {
    let text = word.to_string_lossy();
    let ends = |ending: &&str| text.to_ascii_lowercase().ends_with(*ending);
    is_of_hub(&text) || MODEL_EXTENSIONS.iter().any(ends) || exists(word)
}

fn is_of_hub(text: &str) -> bool {
    text.starts_with("hf:") || latent_hub::short_name(text).is_some()
}

/// A tip for a word that is probably a misspelled short name.
fn spelling(word: &OsStr) -> Option<String> {
    let name = latent_hub::likely_short_name(word.to_str()?)?;
    Some(format!(
        "`{}` is not a model: did you mean {name}? (`latent ls --short-names` lists all)",
        word.display()
    ))
}

fn exists(word: &OsStr) -> bool {
    !word.is_empty() && Path::new(word).exists()
}

impl ModelFlag<'_> {
    fn twice(&self, word: &OsStr) -> String {
        let model = self.model.as_deref().unwrap_or(Path::new("")).display();
        format!("the model is given twice: -m {model} and {}", word.display())
    }

    /// Takes the model of a command without other positional arguments.
    pub(super) fn alone(self, words: Vec<OsString>) -> Result<(), String> {
        match words.as_slice() {
            [] => Ok(()),
            [word] if self.given => Err(self.twice(word)),
            [word] => {
                *self.model = Some(word.into());
                Ok(())
            }
            [_, more, ..] => Err(format!("unexpected argument '{}': one model is expected", more.display())),
        }
    }

    /// Takes the model of a command with another path after it, which is returned.
    pub(super) fn with_path(self, words: Vec<OsString>, name: &str) -> Result<Option<PathBuf>, String> {
        match words.as_slice() {
            [] => Ok(None),
            [word] if !self.given && is_model_alone(word) => {
                Err(format!("{name} is missing after the model `{}`", word.display()))
            }
            [word] => Ok(Some(word.into())),
            [word, _] if self.given => Err(self.twice(word)),
            [word, path] => {
                *self.model = Some(word.into());
                Ok(Some(path.into()))
            }
            [.., more] => {
                Err(format!("unexpected argument '{}': MODEL and {name} are expected", more.display()))
            }
        }
    }

    /// Takes the model of a command with a text after it, which is returned.
    pub(super) fn with_text(self, words: Vec<OsString>, command: &str) -> Result<Option<String>, String> {
        match words.as_slice() {
            [] => Ok(None),
            // The name of a file is hardly ever meant as a prompt. Running it as one would waste
            // minutes and look like a wrong answer.
            [word] if self.given && exists(word) => Err(format!(
                "`{0}` is a file or folder, but -m gives the model: use -f {0} to read the text from it, or \
                 -p {0} for the word itself",
                word.display()
            )),
            // One word is the text, unless it names a model.
            [word] if self.given || !is_model(word) => match spelling(word).filter(|_| !self.given) {
                Some(problem) => Err(format!("{problem}; use -p for the word itself")),
                None => Ok(Some(text(word)?)),
            },
            [word] => {
                *self.model = Some(word.into());
                Ok(None)
            }
            [word, last] if !self.given && is_model(word) => {
                *self.model = Some(word.into());
                Ok(Some(text(last)?))
            }
            // `latent run "Hello" model.gguf` in the wrong order.
            [first, last] if !self.given && is_model(last) => {
                Err(format!("the model comes first: latent {command} {} {}", last.display(), quoted(first)))
            }
            [word, _] if self.given && is_model(word) => Err(self.twice(word)),
            [first, _] if !self.given && spelling(first).is_some() => {
                Err(spelling(first).unwrap_or_default())
            }
            // `latent run model.gguf Why is the sky blue?` without quotes.
            [model, rest @ ..] if !self.given && is_model(model) => Err(format!(
                "put the text between quotes: latent {command} {} {}",
                model.display(),
                joined(rest)
            )),
            all => {
                let model = match &*self.model {
                    Some(model) if self.given => format!("-m {} ", model.display()),
                    _ => String::new(),
                };
                Err(format!(
                    "`{}` is not a model: put a text of several words between quotes: latent {command} {model}{}",
                    all[0].display(),
                    joined(all)
                ))
            }
        }
    }
}

/// Whether a word can only be a model: an existing path may be the other file of the command.
fn is_model_alone(word: &OsStr) -> bool {
    let text = word.to_string_lossy().to_ascii_lowercase();
    is_of_hub(&text) || text.ends_with(".gguf") || text.ends_with(".latent")
}

fn text(word: &OsStr) -> Result<String, String> {
    word.to_str().map(str::to_owned).ok_or_else(|| "the text is not UTF-8".into())
}

/// Joins words to one quoted argument.
fn joined(words: &[OsString]) -> String {
    let words: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
    quoted(OsStr::new(&words.join(" ")))
}

pub(super) fn quoted(word: &OsStr) -> String {
    format!("\"{}\"", word.to_string_lossy().replace('"', "\\\""))
}

/// `hf:OWNER/NAME:QUANT`, or `hf:OWNER/NAME/FILE` for a file.
pub(crate) fn hub_model(repo: &str, file: Option<&str>) -> String {
    let repo = repo.strip_prefix("hf:").unwrap_or(repo);
    match file {
        // A file makes the quant of the reference superfluous.
        Some(file) => format!("hf:{}/{file}", repo.split(':').next().unwrap_or(repo)),
        None => format!("hf:{repo}"),
    }
}
