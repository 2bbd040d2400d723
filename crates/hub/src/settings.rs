//! Settings from the environment: hub, token and cache folder, with the names of Hugging Face's own
//! tools.

use crate::error::HubError;
use latent_files::{InputError, input_file};
use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The default of `HF_ENDPOINT`.
pub const ENDPOINT: &str = "https://huggingface.co";

/// The default of `LATENT_MIN_SPEED`, in bytes per second.
pub const MIN_SPEED: u64 = 1000;

/// Maximum bytes of a token.
const MAX_TOKEN: u64 = 4096;

// `Debug` is written by hand, so that settings can be logged.
/// An access token, which is never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

impl Token {
    /// The secret itself.
    pub(crate) fn secret(&self) -> &str {
        &self.0
    }

    /// A token from the variable or file `name`; `None` if it is empty.
    ///
    /// # Errors
    /// Characters other than printable ASCII. A line end would let the token inject HTTP headers.
    pub fn new(name: &str, text: &str) -> Result<Option<Token>, HubError> {
        let text = text.trim();
        if text.len() as u64 > MAX_TOKEN || !text.bytes().all(|b| b.is_ascii_graphic()) {
            let problem = "it has characters that are invalid in a token: copy it again from \
                           https://huggingface.co/settings/tokens";
            return Err(HubError::Setting { name: name.into(), problem: problem.into() });
        }
        Ok((!text.is_empty()).then(|| Token(text.into())))
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

/// Address of the hub, the user's token, and the cache folder.
#[derive(Clone, Debug)]
pub struct HubSettings {
    /// Scheme, host and optionally a path, without a slash at the end.
    pub endpoint: String,
    /// The user's access token.
    pub token: Option<Token>,
    /// Never use the network.
    pub offline: bool,
    /// Latent's cache folder; models are in its folder `hub`.
    pub cache: PathBuf,
    /// The cache folder of Hugging Face's own tools, which is only read.
    pub hf_cache: Option<PathBuf>,
    /// Maximum time without bytes from a server.
    pub idle: Duration,
    /// Minimum speed in bytes per second, averaged over [`idle`](Self::idle). A slower attempt
    /// fails.
    pub min_speed: u64,
    /// Maximum number of consecutive attempts without progress.
    pub attempts: u32,
    /// Wait before the second attempt. It doubles with each further attempt.
    pub backoff: Duration,
}

impl HubSettings {
    /// Settings from the environment: `LATENT_CACHE`, `XDG_CACHE_HOME`, `HF_ENDPOINT`, `HF_TOKEN`,
    /// `HF_TOKEN_PATH`, `HF_HOME`, `HF_HUB_CACHE`, `HF_HUB_OFFLINE`, `HF_HUB_DOWNLOAD_TIMEOUT`,
    /// `LATENT_MIN_SPEED`, `HF_HUB_DISABLE_IMPLICIT_TOKEN`. (ureq itself reads `HTTPS_PROXY`,
    /// `ALL_PROXY` and `NO_PROXY`.)
    ///
    /// # Errors
    /// An invalid variable; a missing home folder.
    pub fn from_env() -> Result<HubSettings, HubError> {
        HubSettings::from_variables(&|name| std::env::var_os(name).filter(|value| !value.is_empty()))
    }

    /// Settings from given variables.
    ///
    /// # Errors
    /// Like [`from_env`](Self::from_env).
    pub fn from_variables(variable: &dyn Fn(&str) -> Option<OsString>) -> Result<HubSettings, HubError> {
        // A relative home would put gigabytes into the working directory.
        let home =
            variable("HOME").map(PathBuf::from).or_else(std::env::home_dir).filter(|home| home.is_absolute());
        let folder = |name: &str| variable(name).map(PathBuf::from);
        // The XDG specification requires relative paths to be ignored.
        let xdg = folder("XDG_CACHE_HOME").filter(|path| path.is_absolute());
        let caches = xdg.or_else(|| home.as_ref().map(|home| home.join(".cache")));
        let cache = match (folder("LATENT_CACHE"), &caches) {
            (Some(cache), _) => absolute(&cache)?,
            (None, Some(caches)) => caches.join("latent"),
            (None, None) => {
                let problem = "it is not set, but the user has no home folder: set it to a folder for models";
                return Err(HubError::Setting { name: "LATENT_CACHE".into(), problem: problem.into() });
            }
        };
        // The defaults of huggingface_hub, so that its token and cached models are found.
        let hf_home = folder("HF_HOME").or_else(|| caches.map(|caches| caches.join("huggingface")));
        let word = |name: &str| variable(name).map(|value| value.to_string_lossy().trim().to_owned());
        Ok(HubSettings {
            endpoint: endpoint(word("HF_ENDPOINT"))?,
            token: token(variable, hf_home.as_deref())?,
            offline: word("HF_HUB_OFFLINE").is_some_and(|value| is_true(&value)),
            cache,
            hf_cache: folder("HF_HUB_CACHE").or_else(|| hf_home.map(|home| home.join("hub"))),
            idle: idle(word("HF_HUB_DOWNLOAD_TIMEOUT"))?,
            min_speed: min_speed(word("LATENT_MIN_SPEED"))?,
            attempts: 6,
            backoff: Duration::from_secs(1),
        })
    }

    /// The folder with one folder per owner.
    pub(crate) fn hub(&self) -> PathBuf {
        self.cache.join("hub")
    }
}

fn absolute(path: &Path) -> Result<PathBuf, HubError> {
    std::path::absolute(path).map_err(HubError::io(path))
}

// The same values as in huggingface_hub.
fn is_true(value: &str) -> bool {
    ["1", "true", "yes", "on"].contains(&value.to_ascii_lowercase().as_str())
}

/// The address of the hub. An address with a password is rejected, because messages show addresses.
fn endpoint(value: Option<String>) -> Result<String, HubError> {
    let Some(value) = value.filter(|value| !value.is_empty()) else { return Ok(ENDPOINT.into()) };
    let rest = value.strip_prefix("https://").or_else(|| value.strip_prefix("http://"));
    let plain = |rest: &str| {
        let host = rest.split('/').next().unwrap_or_default();
        !host.is_empty()
            && rest.bytes().all(|b| b.is_ascii_graphic())
            && !rest.contains(['@', '?', '#', '\\'])
    };
    if !rest.is_some_and(plain) || value.parse::<ureq::http::Uri>().is_err() {
        let problem = "expected an address such as https://huggingface.co or http://localhost:8080, without user, query or fragment";
        return Err(HubError::Setting { name: "HF_ENDPOINT".into(), problem: problem.into() });
    }
    // Paths are appended with a slash.
    Ok(value.trim_end_matches('/').to_owned())
}

fn idle(value: Option<String>) -> Result<Duration, HubError> {
    let Some(value) = value else { return Ok(Duration::from_secs(30)) };
    match value.parse::<f64>() {
        // The range also excludes NaN, infinity and negative numbers, on which `from_secs_f64`
        // panics.
        Ok(seconds) if (0.01..=86400.0).contains(&seconds) => Ok(Duration::from_secs_f64(seconds)),
        _ => Err(HubError::Setting {
            name: "HF_HUB_DOWNLOAD_TIMEOUT".into(),
            problem: format!("{value:?}: expected seconds, such as 30"),
        }),
    }
}

fn min_speed(value: Option<String>) -> Result<u64, HubError> {
    let Some(value) = value else { return Ok(MIN_SPEED) };
    value.parse().map_err(|_| HubError::Setting {
        name: "LATENT_MIN_SPEED".into(),
        problem: format!("{value:?}: expected bytes per second, such as {MIN_SPEED}; 0 disables the check"),
    })
}

/// The token, from a variable or from the file of `hf auth login`.
fn token(
    variable: &dyn Fn(&str) -> Option<OsString>,
    hf_home: Option<&Path>,
) -> Result<Option<Token>, HubError> {
    let implicit = variable("HF_HUB_DISABLE_IMPLICIT_TOKEN");
    if implicit.is_some_and(|value| is_true(&value.to_string_lossy())) {
        return Ok(None);
    }
    // The second name is the older one.
    for name in ["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"] {
        if let Some(value) = variable(name)
            && let Some(token) = Token::new(name, &value.to_string_lossy())?
        {
            return Ok(Some(token));
        }
    }
    let path =
        variable("HF_TOKEN_PATH").map(PathBuf::from).or_else(|| hf_home.map(|home| home.join("token")));
    let Some(path) = path else { return Ok(None) };
    let name = path.display().to_string();
    // Two more bytes for a line end.
    match input_file::read_text(&path, MAX_TOKEN + 2) {
        Ok(text) => Token::new(&name, &text),
        // Most users have no such file.
        Err(InputError::Io { .. }) => Ok(None),
        Err(error) => Err(HubError::Setting { name: "token".into(), problem: error.to_string() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    fn settings(pairs: &[(&str, &str)]) -> Result<HubSettings, HubError> {
        let map: HashMap<String, OsString> = pairs.iter().map(|&(k, v)| (k.into(), v.into())).collect();
        HubSettings::from_variables(&|name| map.get(name).cloned())
    }

    #[test]
    fn folders_follow_the_environment() {
        let usual = settings(&[("HOME", "/home/me")]).unwrap();
        assert_eq!(usual.cache, Path::new("/home/me/.cache/latent"));
        assert_eq!(usual.hf_cache.as_deref(), Some(Path::new("/home/me/.cache/huggingface/hub")));
        assert_eq!(usual.endpoint, ENDPOINT);
        assert!(!usual.offline && usual.token.is_none());
        let xdg = settings(&[("HOME", "/h"), ("XDG_CACHE_HOME", "/x"), ("HF_HUB_OFFLINE", "YES")]).unwrap();
        assert_eq!(xdg.cache, Path::new("/x/latent"));
        assert_eq!(xdg.hf_cache.as_deref(), Some(Path::new("/x/huggingface/hub")));
        assert!(xdg.offline);
        let named = settings(&[("HOME", "/h"), ("LATENT_CACHE", "/c"), ("HF_HOME", "/f")]).unwrap();
        assert_eq!(
            (named.cache.as_path(), named.hf_cache.as_deref()),
            (Path::new("/c"), Some(Path::new("/f/hub")))
        );
    }

    #[test]
    fn tokens_come_from_a_variable_or_a_file_and_are_never_shown() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("token"), "hf_file\n").unwrap();
        let home = folder.path().to_str().unwrap();
        let from = |pairs: &[(&str, &str)]| settings(&[&[("HOME", "/h"), ("HF_HOME", home)], pairs].concat());
        let secret = |s: HubSettings| s.token.map(|token| token.secret().to_owned());
        assert_eq!(secret(from(&[]).unwrap()).as_deref(), Some("hf_file"));
        assert_eq!(secret(from(&[("HF_TOKEN", " hf_variable ")]).unwrap()).as_deref(), Some("hf_variable"));
        assert_eq!(secret(from(&[("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1")]).unwrap()), None);
        assert!(!format!("{:?}", from(&[("HF_TOKEN", "hf_secret")]).unwrap()).contains("hf_secret"));
        let error = from(&[("HF_TOKEN", "hf_se\ncret: x")]).unwrap_err().to_string();
        assert!(error.contains("HF_TOKEN") && !error.contains("cret:"), "{error}");
    }

    #[test]
    fn invalid_addresses_and_passwords_are_rejected() {
        for bad in
            ["huggingface.co", "ftp://x", "https://", "https://me:pw@host", "https://x/?a", "http://a b"]
        {
            let error = settings(&[("HOME", "/h"), ("HF_ENDPOINT", bad)]).unwrap_err().to_string();
            assert!(error.contains("HF_ENDPOINT") && !error.contains("pw"), "{bad}: {error}");
        }
        let good = settings(&[("HOME", "/h"), ("HF_ENDPOINT", "http://localhost:80/hf/")]).unwrap();
        assert_eq!(good.endpoint, "http://localhost:80/hf");
        assert!(settings(&[("HOME", "/h"), ("HF_HUB_DOWNLOAD_TIMEOUT", "-1")]).is_err());
    }
}
