//! How the server is set up, and the file that may say so.

use crate::keys::Keys;
use crate::limits::Limits;
use latent_engine::cache::DiskCache;
use latent_engine::scheduler::SchedulerOptions;
use std::net::IpAddr;
use std::path::PathBuf;
use toml::{Table, Value};

/// How the server is set up.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// Address to listen at: a name or an IP address.
    pub host: String,
    /// Port; 0: any that is free.
    pub port: u16,
    /// Keys that may ask; none: everybody may.
    pub keys: Keys,
    /// Listen at other addresses than loopback although there are no keys.
    pub allow_unauthenticated: bool,
    /// Origins whose pages may ask, or `*`; none: only the server's own page.
    pub cors: Vec<String>,
    /// PEM files of a certificate chain and its key.
    pub tls: Option<(PathBuf, PathBuf)>,
    /// Limits on connections and requests.
    pub limits: Limits,
    /// Whether cached prefixes are shared between keys.
    pub share_prefixes: bool,
    /// How jobs are scheduled.
    pub scheduler: SchedulerOptions,
}

impl Default for ServerConfig {
    fn default() -> ServerConfig {
        ServerConfig {
            host: "127.0.0.1".into(),
            port: 8080,
            keys: Keys::default(),
            allow_unauthenticated: false,
            cors: Vec::new(),
            tls: None,
            limits: Limits::default(),
            share_prefixes: false,
            scheduler: SchedulerOptions { max_running: 16, ..SchedulerOptions::default() },
        }
    }
}

impl ServerConfig {
    /// Whether only this machine can reach the server.
    pub fn is_loopback(&self) -> bool {
        let host = self.host.trim_start_matches('[').trim_end_matches(']');
        host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
    }
}

/// What a configuration file says. Whatever it leaves out comes from the environment, flags and defaults.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FileConfig {
    /// `model`: the model's file.
    pub model: Option<PathBuf>,
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
    /// `cache_disk`: a folder for cached prefixes.
    pub cache_disk: Option<PathBuf>,
    /// `cache_disk_size`: bytes that it may take.
    pub cache_disk_size: Option<u64>,
    /// `log`: error, warn, info, debug or trace.
    pub log: Option<String>,
    /// The section `[limits]`.
    pub limits: Limits,
}

/// What is wrong with a configuration file.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// It is no TOML.
    #[error("no valid TOML: {0}")]
    Toml(String),
    /// A key that is not known.
    #[error("`{0}` is no setting; docs/serving.md lists them")]
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
    /// [`ConfigError`]: a setting that would be ignored is an error.
    pub fn parse(text: &str) -> Result<FileConfig, ConfigError> {
        let table: Table =
            text.parse().map_err(|error: toml::de::Error| ConfigError::Toml(error.to_string()))?;
        let mut config = FileConfig::default();
        for (key, value) in &table {
            config.set(key, value)?;
        }
        Ok(config)
    }

    fn set(&mut self, key: &str, value: &Value) -> Result<(), ConfigError> {
        match key {
            "model" => self.model = Some(text(key, value)?.into()),
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
            "tls_cert" => self.tls_cert = Some(text(key, value)?.into()),
            "tls_key" => self.tls_key = Some(text(key, value)?.into()),
            "share_prefixes" => self.share_prefixes = Some(boolean(key, value)?),
            "parallel" => self.parallel = Some(number(key, value)?),
            "max_waiting" => self.max_waiting = Some(number(key, value)?),
            "ctx_size" => self.ctx_size = Some(number(key, value)?),
            "threads" => self.threads = Some(number(key, value)?),
            "cache_disk" => self.cache_disk = Some(text(key, value)?.into()),
            "cache_disk_size" => self.cache_disk_size = Some(number(key, value)?),
            "log" => self.log = Some(text(key, value)?),
            "limits" => {
                let Value::Table(table) = value else { return Err(wrong(key, "a section", value)) };
                for (name, value) in table {
                    let full = format!("limits.{name}");
                    if !self.limits.set(name, number(&full, value)?) {
                        return Err(ConfigError::Unknown(full));
                    }
                }
            }
            _ => return Err(ConfigError::Unknown(key.to_owned())),
        }
        Ok(())
    }

    /// Where prefixes are kept on disk.
    pub fn disk(&self) -> Option<DiskCache> {
        let path = self.cache_disk.clone()?;
        Some(DiskCache { path, max_bytes: self.cache_disk_size.unwrap_or(DEFAULT_DISK_BYTES) })
    }
}

/// Bytes of prefixes on disk where nobody says how many.
pub const DEFAULT_DISK_BYTES: u64 = 16 << 30;

fn wrong(key: &str, expected: &'static str, value: &Value) -> ConfigError {
    ConfigError::Value { key: key.to_owned(), expected, found: found(value) }
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

fn text(key: &str, value: &Value) -> Result<String, ConfigError> {
    value.as_str().map(str::to_owned).ok_or_else(|| wrong(key, "a string", value))
}

fn boolean(key: &str, value: &Value) -> Result<bool, ConfigError> {
    value.as_bool().ok_or_else(|| wrong(key, "true or false", value))
}

fn number<T: TryFrom<i64>>(key: &str, value: &Value) -> Result<T, ConfigError> {
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
        assert_eq!(FileConfig::parse("").unwrap(), FileConfig::default());
        for (text, word) in [
            ("prot = 1", "prot"),
            ("[limits]\nbody = 1", "limits.body"),
            ("port = 70000", "port"),
            ("port = \"80\"", "a whole number"),
            ("[limits]\nstop = -1", "limits.stop"),
            ("port =", "TOML"),
        ] {
            let error = FileConfig::parse(text).unwrap_err().to_string();
            assert!(error.contains(word), "{text}: {error}");
        }
    }

    #[test]
    fn loopback_has_many_names() {
        let at = |host: &str| ServerConfig { host: host.into(), ..ServerConfig::default() }.is_loopback();
        assert!(at("127.0.0.1") && at("127.1.2.3") && at("::1") && at("[::1]") && at("localhost"));
        assert!(!at("0.0.0.0") && !at("::") && !at("192.168.1.2") && !at("localhost.example.org"));
    }
}
