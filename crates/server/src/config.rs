//! The configuration of a server.

use crate::keys::ApiKeys;
use crate::limits::Limits;
use crate::spans::Otlp;
use latent_engine::scheduler::SchedulerOptions;
use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

/// The configuration of a server.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// Name or IP address to listen on, or several with commas between them.
    pub host: String,
    /// Port; 0: any free port.
    pub port: u16,
    /// Accepted API keys; empty: no key is required.
    pub keys: ApiKeys,
    /// Listen on addresses other than loopback without API keys.
    pub allow_unauthenticated: bool,
    /// Origins whose pages may send requests, `localhost` for all loopback origins, or `*`. Empty:
    /// only the server's own page.
    pub cors: Vec<String>,
    /// Whether pages that only `*` allows may send the browser's credentials.
    pub cors_credentials: bool,
    /// PEM files of a certificate chain and its key.
    pub tls: Option<(PathBuf, PathBuf)>,
    /// Whether `GET /slots` is enabled.
    pub slots: bool,
    /// Folder for the files of `POST /slots/{id}`; `None`: these requests are refused.
    pub slot_save_path: Option<PathBuf>,
    pub limits: Limits,
    /// Whether cached prefixes are shared between keys.
    pub share_prefixes: bool,
    /// Destination of OpenTelemetry spans; `None`: disabled.
    pub otlp: Option<Otlp>,
    /// Scheduler options of each model.
    pub scheduler: SchedulerOptions,
    /// Maximum number of loaded models; 0: as many as fit into memory.
    pub models_max: usize,
    /// Idle time before a model is unloaded; `None`: when another model needs its memory.
    pub unload_idle: Option<Duration>,
    /// Whether a single model is loaded on demand and only under its name, since the list can grow.
    pub router: bool,
    /// Whether a request loads its model; otherwise only `POST /models/load` does.
    pub autoload: bool,
    /// Path prefix of all routes, such as `/llm`; empty: no prefix.
    pub api_prefix: String,
    /// Whether the chat page is served.
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
    /// Whether all hosts are loopback addresses.
    pub fn is_loopback(&self) -> bool {
        // `localhost` is trusted without a lookup. Other names are not, since their addresses can
        // change.
        let local = |host: &str| {
            host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
        };
        self.hosts().all(local)
    }

    /// The hosts to listen on, without the brackets of IPv6 addresses.
    pub fn hosts(&self) -> impl Iterator<Item = &str> {
        self.host.split(',').map(|host| host.trim().trim_start_matches('[').trim_end_matches(']'))
    }
}

/// The device that replaces a GPU that is missing, fails or is lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fallback {
    /// None: the model is loaded on the same GPU again, or fails.
    #[default]
    None,
    Cpu,
}

impl FromStr for Fallback {
    type Err = String;

    fn from_str(word: &str) -> Result<Fallback, String> {
        match word {
            "none" => Ok(Fallback::None),
            "cpu" => Ok(Fallback::Cpu),
            _ => Err(format!("unknown fallback {word:?}; expected cpu or none")),
        }
    }
}

/// Default maximum size of the prefix cache on disk, in bytes.
pub const DEFAULT_DISK_BYTES: u64 = 16 << 30;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_loopback_names_are_recognized() {
        let at = |host: &str| ServerConfig { host: host.into(), ..ServerConfig::default() }.is_loopback();
        assert!(at("127.0.0.1") && at("127.1.2.3") && at("::1") && at("[::1]") && at("localhost"));
        assert!(at("127.0.0.1, ::1") && !at("127.0.0.1,0.0.0.0") && !at("127.0.0.1,"));
        assert!(!at("0.0.0.0") && !at("::") && !at("192.168.1.2") && !at("localhost.example.org"));
    }
}
