//! How the server is set up, and the file that may say so.

use crate::duration::parse_duration;
use crate::keys::ApiKeys;
use crate::limits::Limits;
use crate::spans::Otlp;
use latent_engine::DeviceLayers;
use latent_engine::cache::DiskCache;
use latent_engine::scheduler::SchedulerOptions;
use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;
use toml::{Table, Value};

/// How the server is set up.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// Address to listen at: a name or an IP address; or several with commas between.
    pub host: String,
    /// Port; 0: any that is free.
    pub port: u16,
    /// Keys that may ask; none: everybody may.
    pub keys: ApiKeys,
    /// Listen on addresses other than loopback without API keys.
    pub allow_unauthenticated: bool,
    /// Origins whose pages may ask, `localhost` for all of this machine, or `*`; none: only the server's own page.
    pub cors: Vec<String>,
    /// Pages that only `*` allows may send the browser's credentials.
    pub cors_credentials: bool,
    /// PEM files of a certificate chain and its key.
    pub tls: Option<(PathBuf, PathBuf)>,
    /// Whether `GET /slots` shows what runs.
    pub slots: bool,
    /// Folder of the files of `POST /slots/{id}`; none: these requests are refused.
    pub slot_save_path: Option<PathBuf>,
    /// Limits on connections and requests.
    pub limits: Limits,
    /// Whether cached prefixes are shared between keys.
    pub share_prefixes: bool,
    /// Where spans of requests are sent; none: nowhere.
    pub otlp: Option<Otlp>,
    /// How the jobs of each model are scheduled.
    pub scheduler: SchedulerOptions,
    /// Most models that are loaded at once; 0: as many as fit into memory.
    pub models_max: usize,
    /// Idle time after which a model is unloaded; none: when another model needs its memory.
    pub unload_idle: Option<Duration>,
    /// Whether even a model that is alone is loaded when a request names it: the list of models can grow.
    pub router: bool,
    /// Whether a request loads its model; otherwise only `POST /models/load` does.
    pub autoload: bool,
    /// Path below which all addresses are, such as `/llm`; empty: none.
    pub api_prefix: String,
    /// Whether the page for browsers is served.
    pub page: bool,
}

impl Default for ServerConfig {
    fn default() -> ServerConfig {
        ServerConfig {
            host: "127.0.0.1".into(),
            port: 8080,
            keys: ApiKeys::default(),
            allow_unauthenticated: false,
            cors: Vec::new(),
            cors_credentials: false,
            tls: None,
            slots: true,
            slot_save_path: None,
            limits: Limits::default(),
            share_prefixes: false,
            otlp: None,
            scheduler: SchedulerOptions { max_running: 16, ..SchedulerOptions::default() },
            models_max: 0,
            unload_idle: None,
            router: false,
            autoload: true,
            api_prefix: String::new(),
            page: true,
        }
    }
}

impl ServerConfig {
    /// Whether only this machine can reach the server.
    pub fn is_loopback(&self) -> bool {
        let local = |host: &str| {
            host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
        };
        self.hosts().all(local)
    }

    /// The addresses to listen at, without the brackets of IPv6.
    pub fn hosts(&self) -> impl Iterator<Item = &str> {
        self.host.split(',').map(|host| host.trim().trim_start_matches('[').trim_end_matches(']'))
    }
}

/// What a configuration file says. Whatever it leaves out comes from the environment, flags and defaults.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FileConfig {
    /// `model`: the model's file.
    pub model: Option<PathBuf>,
    /// The sections `[[models]]`: several models.
    pub models: Vec<FileModel>,
    /// `models_max`: most models that are loaded at once.
    pub models_max: Option<usize>,
    /// `unload_idle`: idle time after which a model is unloaded.
    pub unload_idle: Option<Duration>,
    /// `alias`: the name that requests use.
    pub alias: Option<String>,
    /// `host`.
    pub host: Option<String>,
    /// `port`.
    pub port: Option<u16>,
    /// `api_key_file`.
    pub api_key_file: Option<PathBuf>,
    /// `allow_unauthenticated`.
    pub allow_unauthenticated: Option<bool>,
    /// `cors`: an origin or a list of them.
    pub cors: Vec<String>,
    /// `cors_credentials`.
    pub cors_credentials: Option<bool>,
    /// `tls_cert`.
    pub tls_cert: Option<PathBuf>,
    /// `tls_key`.
    pub tls_key: Option<PathBuf>,
    /// `share_prefixes`.
    pub share_prefixes: Option<bool>,
    /// `parallel`: most requests that run at once.
    pub parallel: Option<usize>,
    /// `max_waiting`: most requests that wait.
    pub max_waiting: Option<usize>,
    /// `ctx_size`.
    pub ctx_size: Option<usize>,
    /// `threads`.
    pub threads: Option<u16>,
    /// `device`: what computes.
    pub device: Option<String>,
    /// `n_gpu_layers`: layers that a GPU has: a number, `all` or `auto`.
    pub n_gpu_layers: Option<DeviceLayers>,
    /// `gpu_fallback`: what goes on where a GPU fails.
    pub gpu_fallback: Option<Fallback>,
    /// `cache_disk`: a folder for cached prefixes.
    pub cache_disk: Option<PathBuf>,
    /// `cache_disk_size`: bytes that it may take.
    pub cache_disk_size: Option<u64>,
    /// `otlp_endpoint`: an OpenTelemetry collector.
    pub otlp_endpoint: Option<String>,
    /// `log`: error, warn, info, debug or trace.
    pub log: Option<String>,
    /// The section `[limits]`.
    pub limits: Limits,
}

/// What takes over a model whose GPU is missing, fails or is lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fallback {
    /// Nothing: it is loaded there again, or fails.
    #[default]
    None,
    /// The CPU.
    Cpu,
}

impl FromStr for Fallback {
    type Err = String;

    fn from_str(word: &str) -> Result<Fallback, String> {
        match word {
            "none" => Ok(Fallback::None),
            "cpu" => Ok(Fallback::Cpu),
            _ => Err(format!("{word:?} takes over nothing; expected cpu or none")),
        }
    }
}

/// A section `[[models]]`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FileModel {
    /// `name`: the name that requests use.
    pub name: String,
    /// `model`: its file.
    pub model: PathBuf,
    /// `ctx_size`.
    pub ctx_size: Option<usize>,
}

/// What is wrong with a configuration file.
#[derive(Debug, thiserror::Error)]
pub enum ServerConfigError {
    /// The file is not valid TOML.
    #[error("no valid TOML: {0}")]
    Toml(String),
    /// A key that is not known.
    #[error("unknown setting `{0}`; docs/serving.md lists the settings")]
    Unknown(String),
    /// A value of the wrong type or out of range.
    #[error("`{key}`: expected {expected}, found {found}")]
    Value {
        /// The key.
        key: String,
        /// What it takes.
        expected: &'static str,
        /// What is there.
        found: String,
    },
}

impl FileConfig {
    /// Reads the text of a configuration file.
    ///
    /// # Errors
    /// [`ServerConfigError`]: a setting that would be ignored is an error.
    pub fn parse(text: &str) -> Result<FileConfig, ServerConfigError> {
        let table: Table =
            text.parse().map_err(|error: toml::de::Error| ServerConfigError::Toml(error.to_string()))?;
        let mut config = FileConfig::default();
        for (key, value) in &table {
            config.set(key, value)?;
        }
        Ok(config)
    }

    fn set(&mut self, key: &str, value: &Value) -> Result<(), ServerConfigError> {
        match key {
            "model" => self.model = Some(text(key, value)?.into()),
            "models" => {
                let Value::Array(list) = value else {
                    return Err(wrong(key, "sections [[models]]", value));
                };
                self.models = list.iter().map(file_model).collect::<Result<_, _>>()?;
            }
            "models_max" => self.models_max = Some(number(key, value)?),
            "unload_idle" => {
                let time = match value {
                    Value::Integer(seconds) => u64::try_from(*seconds).ok().map(Duration::from_secs),
                    other => other.as_str().and_then(parse_duration),
                };
                self.unload_idle =
                    Some(time.ok_or_else(|| wrong(key, "seconds, or a time such as \"10m\"", value))?);
            }
            "alias" => self.alias = Some(text(key, value)?),
            "host" => self.host = Some(text(key, value)?),
            "port" => self.port = Some(number(key, value)?),
            "api_key_file" => self.api_key_file = Some(text(key, value)?.into()),
            "allow_unauthenticated" => self.allow_unauthenticated = Some(boolean(key, value)?),
            "cors" => {
                self.cors = match value {
                    Value::Array(list) => list.iter().map(|one| text(key, one)).collect::<Result<_, _>>()?,
                    one => vec![text(key, one)?],
                };
            }
            "cors_credentials" => self.cors_credentials = Some(boolean(key, value)?),
            "tls_cert" => self.tls_cert = Some(text(key, value)?.into()),
            "tls_key" => self.tls_key = Some(text(key, value)?.into()),
            "share_prefixes" => self.share_prefixes = Some(boolean(key, value)?),
            "parallel" => self.parallel = Some(number(key, value)?),
            "max_waiting" => self.max_waiting = Some(number(key, value)?),
            "ctx_size" => self.ctx_size = Some(number(key, value)?),
            "threads" => self.threads = Some(number(key, value)?),
            "device" => self.device = Some(text(key, value)?),
            "n_gpu_layers" => {
                let layers = match value {
                    Value::Integer(count) => usize::try_from(*count).ok().map(DeviceLayers::Count),
                    other => other.as_str().and_then(|word| word.parse().ok()),
                };
                let expected = "a number of layers, \"all\" or \"auto\"";
                self.n_gpu_layers = Some(layers.ok_or_else(|| wrong(key, expected, value))?);
            }
            "gpu_fallback" => {
                let fallback = value.as_str().and_then(|word| word.parse().ok());
                self.gpu_fallback = Some(fallback.ok_or_else(|| wrong(key, "\"cpu\" or \"none\"", value))?);
            }
            "cache_disk" => self.cache_disk = Some(text(key, value)?.into()),
            "cache_disk_size" => self.cache_disk_size = Some(number(key, value)?),
            "otlp_endpoint" => self.otlp_endpoint = Some(text(key, value)?),
            "log" => self.log = Some(text(key, value)?),
            "limits" => {
                let Value::Table(table) = value else { return Err(wrong(key, "a section", value)) };
                for (name, value) in table {
                    let full = format!("limits.{name}");
                    if !self.limits.set(name, number(&full, value)?) {
                        return Err(ServerConfigError::Unknown(full));
                    }
                }
            }
            _ => return Err(ServerConfigError::Unknown(key.to_owned())),
        }
        Ok(())
    }

    /// Where prefixes are kept on disk.
    pub fn disk(&self) -> Option<DiskCache> {
        let path = self.cache_disk.clone()?;
        Some(DiskCache { path, max_bytes: self.cache_disk_size.unwrap_or(DEFAULT_DISK_BYTES) })
    }
}

fn file_model(value: &Value) -> Result<FileModel, ServerConfigError> {
    let Value::Table(table) = value else { return Err(wrong("models", "sections [[models]]", value)) };
    let mut model = FileModel::default();
    for (key, value) in table {
        let full = format!("models.{key}");
        match key.as_str() {
            "name" => model.name = text(&full, value)?,
            "model" => model.model = text(&full, value)?.into(),
            "ctx_size" => model.ctx_size = Some(number(&full, value)?),
            _ => return Err(ServerConfigError::Unknown(full)),
        }
    }
    if model.name.is_empty() || model.model.as_os_str().is_empty() {
        return Err(wrong("models", "a `name` and a `model` in each section", value));
    }
    Ok(model)
}

/// Default maximum size of prefixes on disk, in bytes.
pub const DEFAULT_DISK_BYTES: u64 = 16 << 30;

fn wrong(key: &str, expected: &'static str, value: &Value) -> ServerConfigError {
    ServerConfigError::Value { key: key.to_owned(), expected, found: found(value) }
}

/// The value where it is short, else its type.
fn found(value: &Value) -> String {
    match value {
        Value::Integer(number) => number.to_string(),
        Value::Float(number) => number.to_string(),
        Value::Boolean(truth) => truth.to_string(),
        other => format!("a value of the type {}", other.type_str()),
    }
}

fn text(key: &str, value: &Value) -> Result<String, ServerConfigError> {
    value.as_str().map(str::to_owned).ok_or_else(|| wrong(key, "a string", value))
}

fn boolean(key: &str, value: &Value) -> Result<bool, ServerConfigError> {
    value.as_bool().ok_or_else(|| wrong(key, "true or false", value))
}

fn number<T: TryFrom<i64>>(key: &str, value: &Value) -> Result<T, ServerConfigError> {
    let number = value.as_integer().and_then(|number| T::try_from(number).ok());
    number.ok_or_else(|| wrong(key, "a whole number in range", value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_sets_what_it_names_and_nothing_is_ignored() {
        let text =
            "model = \"m.gguf\"\nport = 9000\ncors = [\"https://a.example\"]\n[limits]\nbody_bytes = 1000\n";
        let config = FileConfig::parse(text).unwrap();
        assert_eq!((config.port, config.limits.body_bytes), (Some(9000), 1000));
        assert_eq!(config.cors, ["https://a.example"]);
        let text = "unload_idle = \"10m\"\nmodels_max = 1\n[[models]]\nname = \"b\"\nmodel = \"b.gguf\"\nctx_size = 512\n\
                    [[models]]\nname = \"a\"\nmodel = \"hf:o/n\"\n";
        let config = FileConfig::parse(text).unwrap();
        assert_eq!((config.models_max, config.unload_idle), (Some(1), Some(Duration::from_secs(600))));
        let models: Vec<_> =
            config.models.iter().map(|model| (model.name.as_str(), model.ctx_size)).collect();
        assert_eq!(models, [("b", Some(512)), ("a", None)]);
        assert_eq!(FileConfig::parse("").unwrap(), FileConfig::default());
        for (word, layers) in [("17", DeviceLayers::Count(17)), ("\"all\"", DeviceLayers::All)] {
            let text = format!("device = \"gpu:1\"\nn_gpu_layers = {word}\ngpu_fallback = \"cpu\"");
            let config = FileConfig::parse(&text).unwrap();
            assert_eq!(config.device.as_deref(), Some("gpu:1"));
            assert_eq!((config.n_gpu_layers, config.gpu_fallback), (Some(layers), Some(Fallback::Cpu)));
        }
        for (text, word) in [
            ("prot = 1", "prot"),
            ("[limits]\nbody = 1", "limits.body"),
            ("port = 70000", "port"),
            ("port = \"80\"", "a whole number"),
            ("[limits]\nstop = -1", "limits.stop"),
            ("port =", "TOML"),
            ("[[models]]\nname = \"a\"", "`model`"),
            ("[[models]]\nname = \"a\"\nmodel = \"a.gguf\"\nctx = 1", "models.ctx"),
            ("unload_idle = \"soon\"", "unload_idle"),
            (
                "n_gpu_layers = -1",
                "`n_gpu_layers`: expected a number of layers, \"all\" or \"auto\", found -1",
            ),
            ("n_gpu_layers = \"some\"", "n_gpu_layers"),
            ("gpu_fallback = \"gpu\"", "\"cpu\" or \"none\""),
        ] {
            let error = FileConfig::parse(text).unwrap_err().to_string();
            assert!(error.contains(word), "{text}: {error}");
        }
    }

    #[test]
    fn loopback_has_many_names() {
        let at = |host: &str| ServerConfig { host: host.into(), ..ServerConfig::default() }.is_loopback();
        assert!(at("127.0.0.1") && at("127.1.2.3") && at("::1") && at("[::1]") && at("localhost"));
        assert!(at("127.0.0.1, ::1") && !at("127.0.0.1,0.0.0.0") && !at("127.0.0.1,"));
        assert!(!at("0.0.0.0") && !at("::") && !at("192.168.1.2") && !at("localhost.example.org"));
    }
}
