//! The TOML file of `latent serve --config`: the flags of `serve` by their names, `[limits]`, and a
//! section `[[models]]` per model.

use super::compat::{Preset, PresetOption, PresetScope, PresetSection};
use clap::Command;
use latent_server::Limits;
use std::path::PathBuf;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// Flags that only the command line can set: they decide how the program starts.
const ONLY_FLAGS: [&str; 5] = ["config", "restart", "launch", "stop-at-eof", "help"];

/// The contents of a config file.
#[derive(Clone, Debug, Default)]
pub(crate) struct ConfigFile {
    /// Flags of the server and of all its models.
    pub(crate) options: Vec<PresetOption>,
    /// Notes about settings without effect.
    pub(crate) without_effect: Vec<String>,
    pub(crate) models: Vec<ConfigModel>,
    pub(crate) limits: Limits,
}

/// A section `[[models]]`.
#[derive(Clone, Debug)]
pub(crate) struct ConfigModel {
    /// The name that requests use.
    pub(crate) name: String,
    pub(crate) path: PathBuf,
    pub(crate) preset: Preset,
}

impl ConfigFile {
    /// Parses the text of a file. `serve` is the command whose flags it may set. A setting that
    /// would silently have no effect is an error.
    ///
    /// # Errors
    /// Text that is not TOML, an unknown setting, or a value of the wrong type, each with its line.
    /// Values are checked by [`ServeArgs::with_config`].
    pub(crate) fn parse(text: &str, serve: &Command) -> Result<ConfigFile, String> {
        let reader = ConfigReader { text, serve };
        // A tree with positions and not a struct: the keys are clap's flags, and errors name lines.
        let table = DeTable::parse(text).map_err(|error| reader.syntax(&error))?;
        let mut file = ConfigFile::default();
        // Errors about a section without a name mention no section.
        let mut top = PresetSection::new("", 1);
        for (key, value) in table.get_ref() {
            match (key.get_ref().as_ref(), value.get_ref()) {
                ("limits", DeValue::Table(limits)) => reader.limits(limits, &mut file.limits)?,
                ("limits", _) => return Err(reader.at(key, "expected a section [limits]")),
                ("models", DeValue::Array(sections)) => {
                    file.models = sections.iter().map(|one| reader.model(one)).collect::<Result<_, _>>()?;
                }
                ("models", _) => return Err(reader.at(key, "expected sections [[models]]")),
                _ => reader.add(&mut top, key, value)?,
            }
        }
        let preset = Preset::of_sections([&top], PresetScope::Server, reader.serve)?;
        if let Some(path) = preset.model() {
            if !file.models.is_empty() {
                return Err("use either `model` or sections [[models]]".into());
            }
            file.options.push(PresetOption::of_model(&path));
        }
        file.options.extend(preset.options);
        file.without_effect = preset.without_effect;
        Ok(file)
    }
}

struct ConfigReader<'a> {
    text: &'a str,
    serve: &'a Command,
}

impl ConfigReader<'_> {
    /// The line of a byte, from 1.
    fn line(&self, byte: usize) -> usize {
        1 + self.text.bytes().take(byte).filter(|&byte| byte == b'\n').count()
    }

    fn at<T: AsRef<str>>(&self, key: &Spanned<T>, problem: &str) -> String {
        format!("line {}: `{}`: {problem}", self.line(key.span().start), key.get_ref().as_ref())
    }

    // The position is a byte offset; users need the line.
    fn syntax(&self, error: &toml::de::Error) -> String {
        let line = error.span().map_or(1, |span| self.line(span.start));
        format!("line {line}: not valid TOML: {}", error.message())
    }

    /// Adds a setting to a section. Dashes and underscores in the key are equal.
    fn add<T: AsRef<str>>(
        &self,
        section: &mut PresetSection,
        key: &Spanned<T>,
        value: &Spanned<DeValue<'_>>,
    ) -> Result<(), String> {
        let name = key.get_ref().as_ref();
        if ONLY_FLAGS.contains(&name.replace('_', "-").as_str()) {
            return Err(self.at(key, "only the command line can set this"));
        }
        let values = match value.get_ref() {
            DeValue::Array(list) => list.iter().map(|one| scalar(one.get_ref())).collect(),
            one => scalar(one).map(|one| vec![one]),
        };
        let Some(values) = values else {
            let problem = format!("expected a value or a list, found a {}", value.get_ref().type_str());
            return Err(self.at(key, &problem));
        };
        section.add(name, values, self.line(key.span().start));
        Ok(())
    }

    fn limits(&self, table: &DeTable<'_>, limits: &mut Limits) -> Result<(), String> {
        for (key, value) in table {
            let number = match value.get_ref() {
                DeValue::Integer(number) => u64::from_str_radix(number.as_str(), number.radix()).ok(),
                _ => None,
            };
            let number = number.ok_or_else(|| self.at(key, "expected an integer"))?;
            if !limits.set(key.get_ref(), number) {
                return Err(self.at(key, "unknown limit; docs/serving.md lists the limits"));
            }
        }
        Ok(())
    }

    fn model(&self, section: &Spanned<DeValue<'_>>) -> Result<ConfigModel, String> {
        let line = self.line(section.span().start);
        let wrong = |problem: &str| format!("line {line}: [[models]]: {problem}");
        let DeValue::Table(table) = section.get_ref() else { return Err(wrong("expected a section")) };
        // Errors put the name into brackets: `[[models]]`.
        let (mut name, mut own) = (String::new(), PresetSection::new("[models]", line));
        for (key, value) in table {
            match (key.get_ref().as_ref(), value.get_ref()) {
                ("name", DeValue::String(text)) => name = text.clone().into_owned(),
                ("name", _) => return Err(self.at(key, "expected a string")),
                _ => self.add(&mut own, key, value)?,
            }
        }
        let preset = Preset::of_sections([&own], PresetScope::Model, self.serve)?;
        if let Some(problem) = preset.server_wide.first() {
            return Err(format!("{problem} outside [[models]]"));
        }
        match preset.model() {
            Some(path) if !name.is_empty() => Ok(ConfigModel { name, path, preset }),
            _ => Err(wrong("expected a `name` and a `model` in each section")),
        }
    }
}

/// A value in the form of a flag's value.
fn scalar(value: &DeValue<'_>) -> Option<String> {
    match value {
        DeValue::String(text) => Some(text.clone().into_owned()),
        DeValue::Boolean(truth) => Some(truth.to_string()),
        DeValue::Float(number) => Some(number.as_str().to_owned()),
        // TOML's hexadecimal, octal and binary integers and underscores become decimal digits,
        // which flags accept.
        DeValue::Integer(number) => {
            Some(i128::from_str_radix(number.as_str(), number.radix()).ok()?.to_string())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Cli, ServeArgs, of_serve};
    use latent_engine::sampling::SamplingParams;
    use std::time::Duration;

    fn read(line: &str, text: &str) -> Result<ServeArgs, String> {
        let words = ["latent", "serve"].into_iter().chain(line.split_whitespace()).map(Into::into);
        let cli = Cli::read_with(words, &|_| None).map_err(|error| error.to_string())?;
        let crate::args::Command::Serve(args) = cli.command else { unreachable!() };
        args.with_config(ConfigFile::parse(text, &of_serve())?)
    }

    fn temperature(args: &ServeArgs) -> f32 {
        let mut params = SamplingParams::default();
        args.sampling.numbers.apply(&mut params);
        params.temperature
    }

    #[test]
    fn flags_override_the_config_file() {
        let text = "model = \"m.gguf\"\nport = 9_000\ncors = [\"https://a.example\", \"https://b.example\"]\n\
                    unload-idle = 600\ntemp = 0.5\nallow_unauthenticated = false\nshare_prefixes = true\n\
                    cache_type = \"f16\"\nstop = [\"a,b\", \"c\"]\n[limits]\nbody_bytes = 0x10\n";
        let args = read("--temp 0.25", text).unwrap();
        assert_eq!((args.models.as_slice(), args.server.port), (&["m.gguf".to_owned()][..], Some(9000)));
        assert_eq!(args.server.cors, ["https://a.example", "https://b.example"]);
        assert_eq!(args.server.unload_idle.unwrap().0, Some(Duration::from_secs(600)));
        assert!(args.server.share_prefixes && !args.server.allow_unauthenticated);
        assert_eq!(args.sampling.stop, ["a,b", "c"]);
        assert_eq!((temperature(&args), args.file.limits.body_bytes), (0.25, 16));
        assert_eq!(read("x.gguf", text).unwrap().models, ["x.gguf"]);
        let none = read("", "").unwrap();
        assert!(none.models.is_empty() && none.file.models.is_empty());
    }

    #[test]
    fn models_in_a_config_file_override_its_flags() {
        let text = "ctx_size = 64\ntemp = 0.5\n[[models]]\nname = \"b\"\nmodel = \"b.gguf\"\nctx_size = 512\nload_on_startup = true\n\
                    [[models]]\nname = \"a\"\nmodel = \"hf:o/n\"\n";
        let own = |line: &str| {
            let args = read(line, text).unwrap();
            let models = args.file.models.clone();
            models.into_iter().map(move |model| {
                let own = args.with_preset(&model.preset.options).unwrap();
                (model.name, model.preset.load_on_startup, own.engine.ctx_size, temperature(&own))
            })
        };
        let all: Vec<_> = own("").collect();
        assert_eq!(all[0], ("b".into(), true, Some(512), 0.5));
        assert_eq!(all[1], ("a".into(), false, Some(64), 0.5));
        assert!(own("-c 128").all(|(_, _, context, _)| context == Some(128)));
    }

    #[test]
    fn errors_name_the_line() {
        for (text, expected) in [
            ("port = 80\nprot = 1", "line 2: `prot`: unknown key; a similar one is `port`"),
            ("[limits]\nbody = 1", "line 2: `body`: unknown limit"),
            ("\nport = 70000", "line 2: `port`: "),
            ("port = 1979-05-27", "line 1: `port`: expected a value or a list, found a datetime"),
            ("port = [1, 2]", "line 1: `port`: expected one value, found 2"),
            ("port = []", "line 1: `port`: expected one value, found 0"),
            ("[limits]\nstop = -1", "line 2: `stop`: expected an integer"),
            ("limits = 1", "expected a section [limits]"),
            ("models = 1", "expected sections [[models]]"),
            ("port =", "line 1: not valid TOML"),
            ("port = 1\nport = 2", "line 2: not valid TOML"),
            ("restart = true", "only the command line"),
            ("stop_at_eof = true", "only the command line"),
            ("special = 7", "expected true or false, found \"7\""),
            ("port = true", "line 1: `port`: "),
            ("[[models]]\nname = \"a\"", "line 1: [[models]]: expected a `name` and a `model`"),
            ("\n[[models]]\nname = \"a\"\nmodel = \"a.gguf\"\ncontxt = 1", "line 5: `contxt`"),
            ("[[models]]\nname = \"a\"\nmodel = \"a.gguf\"\nport = 1", "port applies to the whole server"),
            ("model = \"x\"\n[[models]]\nname = \"a\"\nmodel = \"a.gguf\"", "either `model` or sections"),
            ("unload_idle = \"soon\"", "unload_idle"),
            ("n_gpu_layers = \"some\"", "n_gpu_layers"),
            ("gpu_fallback = \"gpu\"", "cpu or none"),
        ] {
            let problem = read("", text).unwrap_err();
            assert!(problem.contains(expected), "{text}: {problem}");
        }
    }
}
