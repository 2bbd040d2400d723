//! `latent serve`: models over HTTP.

mod answers;
mod catalog;
mod folder;
mod load;
mod presets;
mod restart;
mod sources;
mod wait;
mod wanted;

use crate::args::{ServeArgs, ServerArgs};
use crate::exit::UsageError;
use crate::{output, ranks};
use anyhow::Result;
use catalog::Catalog;
use latent_engine::cache::DiskCache;
use latent_formats::input_file;
use latent_server::{
    ApiKeys, DEFAULT_DISK_BYTES, Extras, Limits, ModelCatalog, Otlp, ServeError, Server, ServerConfig,
};
use load::Setup;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tracing_subscriber::filter::LevelFilter;

pub(super) fn run(args: &ServeArgs) -> Result<()> {
    // Before --config is read: the ranks get the same arguments and read it themselves.
    if args.server.restart {
        return restart::run(args);
    }
    if args.server.launch.is_some() {
        return Err(UsageError("--launch needs --restart".into()).into());
    }
    let mut args = sources::with_config(args)?;
    // llama-server: load the adapters with scale 0; `POST /lora-adapters` applies them later.
    if args.server.lora_init_without_apply {
        args.engine.lora.iter_mut().for_each(|lora| lora.scale = 0.0);
    }
    let args = &args;
    if args.server.offline {
        crate::hub::stay_offline();
    }
    log(args)?;
    if args.engine.verbose {
        args.without_effect.iter().for_each(|line| output::note(line));
    }
    let config = server_config(args)?;
    let setup = Arc::new(Setup::new(args)?);
    // A following rank opens no port. It gets its steps from rank 0.
    if ranks::follows(args.engine.partition.as_ref())? {
        return sources::follow(args, &setup);
    }
    let models = sources::sources(args, &setup)?;
    let listed = models.iter().filter(|model| !model.settings.hidden);
    let names: Vec<String> = listed.map(|model| model.name.clone()).collect();
    let catalog = catalog::changes(args).then(|| Catalog::new(args, &setup));
    let catalog = catalog.map(|catalog| Arc::new(catalog) as Arc<dyn ModelCatalog>);
    let server =
        Server::start(config, models, Extras { catalog, ..Extras::default() }).map_err(start_error)?;
    // The address is printed when the server is ready: scripts wait for this line.
    wait::loaded(&server)?;
    if !args.quiet {
        let names = if names.is_empty() { "no models yet".to_owned() } else { names.join(", ") };
        output::line(&format!("{names} at {}", server.url()))?;
    }
    wait::ended(server, args)
}

/// Converts errors in flags to usage errors.
fn start_error(error: ServeError) -> anyhow::Error {
    match error {
        ServeError::Unauthenticated(_) | ServeError::Cors(_) | ServeError::Tls(_) | ServeError::Otlp(_) => {
            UsageError(error.to_string()).into()
        }
        other => other.into(),
    }
}

/// Sends logs to standard error, one line per event.
fn log(args: &ServeArgs) -> Result<()> {
    let word = args.server.log.as_deref().unwrap_or("warn");
    let level: LevelFilter = word
        .parse()
        .map_err(|_| UsageError(format!("--log {word}: expected off, error, warn, info, debug or trace")))?;
    let subscriber =
        // `output::Log` escapes control characters, so colours would show as text.
        tracing_subscriber::fmt().with_max_level(level).with_ansi(false).with_writer(|| output::Log);
    // Fails if the process has a subscriber already, which then stays.
    let _ = subscriber.try_init();
    Ok(())
}

fn server_config(all: &ServeArgs) -> Result<ServerConfig> {
    let args = &all.server;
    let defaults = ServerConfig::default();
    let mut scheduler = defaults.scheduler.clone();
    if let Some(parallel) = args.parallel {
        scheduler.max_running = parallel.max(1);
    }
    if let Some(waiting) = args.max_waiting {
        scheduler.max_waiting = waiting;
    }
    let max_bytes = args.cache_disk_size.unwrap_or(DEFAULT_DISK_BYTES);
    scheduler.disk = args.cache_disk.clone().map(|path| DiskCache { path, max_bytes });
    let tls = match (args.tls_cert.clone(), args.tls_key.clone()) {
        (Some(certificate), Some(key)) => Some((certificate, key)),
        (None, None) => None,
        _ => {
            return Err(UsageError(
                "TLS needs both a certificate and its key: --tls-cert and --tls-key".into(),
            )
            .into());
        }
    };
    Ok(ServerConfig {
        host: args.host.clone().unwrap_or(defaults.host),
        port: args.port.unwrap_or(defaults.port),
        keys: keys(&all.placement.api_key, args.api_key_file.as_deref())?,
        allow_unauthenticated: args.allow_unauthenticated,
        cors: args.cors.clone(),
        cors_credentials: args.cors_credentials,
        tls,
        slots: !args.no_slots,
        slot_save_path: args.slot_save_path.as_deref().map(slot_folder).transpose()?,
        limits: limits(args, &all.file.limits),
        share_prefixes: args.share_prefixes,
        otlp: otlp(args.otlp_endpoint.as_ref()),
        scheduler,
        models_max: args.models_max.unwrap_or(defaults.models_max),
        unload_idle: args.unload_idle.and_then(|idle| idle.0),
        router: wanted::is_router(all),
        autoload: !args.no_models_autoload,
        api_prefix: args.api_prefix.as_deref().map(prefix).transpose()?.unwrap_or_default(),
        page: !args.no_ui,
    })
}

/// The limits of the config file, with the times of `--timeout`.
fn limits(args: &ServerArgs, file: &Limits) -> Limits {
    let mut limits = file.clone();
    if let Some(seconds) = args.timeout {
        (limits.body_seconds, limits.write_seconds) = (seconds as u64, seconds as u64);
    }
    limits
}

/// The folder of `--slot-save-path`, created if missing.
fn slot_folder(path: &Path) -> Result<PathBuf> {
    std::fs::create_dir_all(path)
        .map_err(|error| UsageError(format!("--slot-save-path {}: {error}", path.display())))?;
    // An absolute path stays valid if the working directory changes.
    Ok(std::path::absolute(path)?)
}

/// A URL path without a final slash.
fn prefix(given: &str) -> Result<String> {
    let path = given.trim_end_matches('/');
    let plain = |c: char| c.is_ascii_alphanumeric() || "/-_.~".contains(c);
    if path.is_empty() || (path.starts_with('/') && path.chars().all(plain) && !path.contains("//")) {
        return Ok(path.to_owned());
    }
    let problem =
        format!("--api-prefix {given}: expected a path such as /llm, of letters, digits, - _ . ~ and /");
    Err(UsageError(problem).into())
}

/// The target of trace spans: `--otlp-endpoint`, or OpenTelemetry's own variables.
fn otlp(endpoint: Option<&String>) -> Option<Otlp> {
    let given = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    let named = ["OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"].into_iter().any(given);
    endpoint.map(|endpoint| Otlp::Endpoint(endpoint.clone())).or_else(|| named.then_some(Otlp::Environment))
}

/// API keys from arguments and a file, else from the environment.
fn keys(arguments: &[String], path: Option<&Path>) -> Result<ApiKeys> {
    let mut text = String::new();
    if !arguments.is_empty() {
        output::note(
            // `ps` and /proc/PID/cmdline show arguments to all users.
            "warning: --api-key: other users of this machine can read arguments: give --api-key-file FILE, or set LATENT_API_KEY",
        );
        text = arguments.join("\n");
        // Parsed alone first, so that an error names the flag and not the file.
        ApiKeys::parse(&text).map_err(|error| UsageError(format!("--api-key: {error}")))?;
    }
    if let Some(path) = path {
        let file = input_file::read_text(path, sources::MAX_FILE_BYTES)
            .map_err(|error| UsageError(format!("--api-key-file: {error}")))?;
        let wrong = |error| UsageError(format!("--api-key-file {}: {error}", path.display()));
        let keys = ApiKeys::parse(&file).map_err(wrong)?;
        if text.is_empty() {
            return Ok(keys);
        }
        text = format!("{text}\n{file}");
    }
    if !text.is_empty() {
        return Ok(ApiKeys::parse(&text).map_err(|error| UsageError(format!("--api-key: {error}")))?);
    }
    for name in ["LATENT_API_KEY", "LLAMA_API_KEY"] {
        let text = match std::env::var(name) {
            // llama-server separates keys by commas.
            Ok(text) if name == "LLAMA_API_KEY" => text.replace(',', "\n"),
            Ok(text) => text,
            Err(std::env::VarError::NotPresent) => continue,
            // A variable that is not UTF-8 must not count as "no key": the server would be open.
            Err(_) => {
                return Err(UsageError(format!(
                    "{name}: an API key may contain only visible ASCII characters"
                ))
                .into());
            }
        };
        return Ok(ApiKeys::parse(&text).map_err(|error| UsageError(format!("{name}: {error}")))?);
    }
    Ok(ApiKeys::default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct ServerFlags {
        #[command(flatten)]
        server: ServerArgs,
    }

    #[test]
    fn timeout_bounds_both_directions() {
        let limits = |words: &[&str]| {
            let line = ServerFlags::parse_from(["latent"].iter().chain(words));
            let limits = limits(&line.server, &Limits::default());
            (limits.body_seconds, limits.write_seconds)
        };
        assert_eq!((limits(&[]), limits(&["--timeout", "3600"])), ((20, 60), (3600, 3600)));
    }

    #[test]
    fn prefixes_are_paths_of_plain_segments() {
        for (given, expected) in [("/llm", "/llm"), ("/a/b/", "/a/b"), ("/", ""), ("", "")] {
            assert_eq!(prefix(given).unwrap(), expected);
        }
        for wrong in ["llm", "/a b", "/a?b", "//a", "http://x/a", "/ä"] {
            assert!(prefix(wrong).unwrap_err().to_string().contains("--api-prefix"), "{wrong}");
        }
    }
}
