//! The configuration of a server.

use crate::keys::ApiKeys;
use crate::limits::Limits;
use crate::spans::Otlp;
use latent_engine::scheduler::SchedulerOptions;
use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

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

/// What takes over a model whose GPU is missing, fails or is lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fallback {
    /// Nothing: it is loaded there again, or fails.
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

/// Default maximum size of prefixes on disk, in bytes.
pub const DEFAULT_DISK_BYTES: u64 = 16 << 30;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_has_many_names() {
        let at = |host: &str| ServerConfig { host: host.into(), ..ServerConfig::default() }.is_loopback();
        assert!(at("127.0.0.1") && at("127.1.2.3") && at("::1") && at("[::1]") && at("localhost"));
        assert!(at("127.0.0.1, ::1") && !at("127.0.0.1,0.0.0.0") && !at("127.0.0.1,"));
        assert!(!at("0.0.0.0") && !at("::") && !at("192.168.1.2") && !at("localhost.example.org"));
    }
}
