//! `latent serve`: the model for many users, over HTTP.

use super::draw;
use super::sampling::Sampling;
use crate::args::{ModelArgs, ServeArgs, ServerArgs};
use crate::exit::Usage;
use crate::{interrupt, model, output};
use anyhow::{Context, Result};
use latent_engine::cache::DiskCache;
use latent_engine::{Engine, EngineOptions};
use latent_formats::{Checkpoint, input_file};
use latent_server::{
    AboutModel, DEFAULT_DISK_BYTES, Drawing, Extras, FileConfig, Keys, LoadedModel, Loader, ServeError,
    Server, ServerConfig,
};
use latent_text::Tokenizer;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tracing_subscriber::filter::LevelFilter;

/// Most bytes of a configuration file or a file of keys.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// How often signals are looked at.
const LOOK: Duration = Duration::from_millis(50);

/// Contexts that the KV cache holds where nobody says otherwise and memory allows.
const CONTEXTS: usize = 4;

/// Longest default of a request's context: a cache of several of the model's own limit would seldom fit.
const DEFAULT_CONTEXT: usize = 32_768;

pub(super) fn run(args: &ServeArgs) -> Result<()> {
    let file = read_config(args.server.config.as_deref())?;
    log(args, &file)?;
    let mut model_args = args.model.clone();
    model_args.model = model_args.model.or_else(|| file.model.clone());
    model_args.ctx_size = model_args.ctx_size.or(file.ctx_size);
    model_args.threads = model_args.threads.or(file.threads);
    let config = server_config(&args.server, &file)?;
    let checkpoint = model::open(model_args.model.as_deref())?;
    let alias = args.server.alias.clone().or_else(|| file.alias.clone());
    let about = about(args, &checkpoint, alias)?;
    let (name, drawing) = (about.id.clone(), drawing(&model_args));
    let extras = Extras { drawing: Some(drawing), ..Extras::default() };
    let loader = loader(checkpoint, model_args, about, args.server.cache_tokens, args.quiet)?;
    let server = Server::start(config, loader, extras).map_err(start_error)?;
    wait_loaded(&server)?;
    if !args.quiet {
        output::line(&format!("{name} at {}", server.url()))?;
    }
    while !interrupt::asked() && !server.is_finished() {
        std::thread::sleep(LOOK);
    }
    if !args.quiet {
        output::note("ending when the running requests have ended; once more ends at once");
    }
    server.stop();
    server.join();
    Ok(())
}

/// What is wrong with the flags is wrong usage.
fn start_error(error: ServeError) -> anyhow::Error {
    match error {
        ServeError::Unauthenticated(_) | ServeError::Tls(_) => Usage(error.to_string()).into(),
        other => other.into(),
    }
}

/// Waits until the model is loaded. A signal ends the program: there is nothing to keep.
fn wait_loaded(server: &Server) -> Result<()> {
    loop {
        interrupt::end_if_asked();
        match server.wait_loaded(LOOK) {
            None => {}
            Some(Ok(())) => return Ok(()),
            Some(Err(error)) => return Err(anyhow::Error::from_boxed(error)),
        }
    }
}

fn read_config(path: Option<&Path>) -> Result<FileConfig> {
    let Some(path) = path else { return Ok(FileConfig::default()) };
    let text =
        input_file::read_text(path, MAX_FILE_BYTES).map_err(|error| Usage(format!("--config: {error}")))?;
    let wrong = |error| Usage(format!("--config {}: {error}", path.display()));
    Ok(FileConfig::parse(&text).map_err(wrong)?)
}

/// Logs go to standard error, a line each.
fn log(args: &ServeArgs, file: &FileConfig) -> Result<()> {
    let word = args.server.log.as_deref().or(file.log.as_deref()).unwrap_or("warn");
    let level: LevelFilter = word
        .parse()
        .map_err(|_| Usage(format!("--log {word}: expected off, error, warn, info, debug or trace")))?;
    let subscriber =
        tracing_subscriber::fmt().with_max_level(level).with_ansi(false).with_writer(std::io::stderr);
    // a second server of one process keeps the first one's
    let _ = subscriber.try_init();
    Ok(())
}

/// Flags and environment before the file, and that before the defaults.
fn server_config(args: &ServerArgs, file: &FileConfig) -> Result<ServerConfig> {
    let defaults = ServerConfig::default();
    let mut scheduler = defaults.scheduler.clone();
    if let Some(parallel) = args.parallel.or(file.parallel) {
        scheduler.max_running = parallel.max(1);
    }
    if let Some(waiting) = args.max_waiting.or(file.max_waiting) {
        scheduler.max_waiting = waiting;
    }
    let disk = args.cache_disk.clone().or_else(|| file.cache_disk.clone());
    let size = args.cache_disk_size.or(file.cache_disk_size).unwrap_or(DEFAULT_DISK_BYTES);
    scheduler.disk = disk.map(|path| DiskCache { path, max_bytes: size });
    let certificate = args.tls_cert.clone().or_else(|| file.tls_cert.clone());
    let key = args.tls_key.clone().or_else(|| file.tls_key.clone());
    let tls = match (certificate, key) {
        (Some(certificate), Some(key)) => Some((certificate, key)),
        (None, None) => None,
        _ => return Err(Usage("TLS needs both a certificate and its key (tls_cert, tls_key)".into()).into()),
    };
    Ok(ServerConfig {
        host: args.host.clone().or_else(|| file.host.clone()).unwrap_or(defaults.host),
        port: args.port.or(file.port).unwrap_or(defaults.port),
        keys: keys(args.api_key_file.as_deref().or(file.api_key_file.as_deref()))?,
        allow_unauthenticated: args.allow_unauthenticated || file.allow_unauthenticated.unwrap_or(false),
        cors: if args.cors.is_empty() { file.cors.clone() } else { args.cors.clone() },
        tls,
        limits: file.limits.clone(),
        share_prefixes: args.share_prefixes || file.share_prefixes.unwrap_or(false),
        scheduler,
    })
}

/// Keys from a file, or from the environment: an argument could be read by everybody on the machine.
fn keys(path: Option<&Path>) -> Result<Keys> {
    if let Some(path) = path {
        let text = input_file::read_text(path, MAX_FILE_BYTES)
            .map_err(|error| Usage(format!("--api-key-file: {error}")))?;
        let wrong = |error| Usage(format!("--api-key-file {}: {error}", path.display()));
        return Ok(Keys::parse(&text).map_err(wrong)?);
    }
    match std::env::var("LATENT_API_KEY") {
        Ok(text) => Ok(Keys::parse(&text).map_err(|error| Usage(format!("LATENT_API_KEY: {error}")))?),
        Err(std::env::VarError::NotPresent) => Ok(Keys::default()),
        Err(_) => Err(Usage("LATENT_API_KEY: a key consists of visible ASCII characters".into()).into()),
    }
}

/// What requests and answers say about the model.
fn about(args: &ServeArgs, checkpoint: &Checkpoint, alias: Option<String>) -> Result<AboutModel> {
    let path = checkpoint.path();
    let stem = path.file_stem().map(|stem| stem.to_string_lossy().into_owned());
    let name = match args.model.model {
        None if stem.is_none() || checkpoint.display_name() == model::DEMO_NAME => {
            Some("latent-demo".to_owned())
        }
        _ => stem,
    };
    let bytes = std::fs::metadata(path).map_or(0, |file| file.len());
    Ok(AboutModel {
        id: alias.or(name).unwrap_or_else(|| "model".into()),
        path: checkpoint.display_name(),
        chat_template: model::chat_template(checkpoint)?.map(str::to_owned),
        response_template: model::response_template(checkpoint).cloned(),
        sampling: Sampling::new(&args.sampling, checkpoint)?.params,
        bytes,
    })
}

/// What loads the model, the first time and after a fault.
fn loader(
    checkpoint: Arc<Checkpoint>,
    args: ModelArgs,
    about: AboutModel,
    cache_tokens: Option<usize>,
    quiet: bool,
) -> Result<Loader> {
    let tokenizer = Arc::new(Tokenizer::from_checkpoint(&checkpoint).context(checkpoint.display_name())?);
    let mut first = true;
    Ok(Box::new(move |progress| {
        let engine = load(&checkpoint, &args, cache_tokens, progress)?;
        if std::mem::take(&mut first) && !quiet {
            model::describe_load(&engine);
        }
        Ok(LoadedModel { engine, tokenizer: Arc::clone(&tokenizer), about: about.clone() })
    }))
}

/// Loads the model with room for several contexts where nobody says otherwise and memory allows, else with one.
fn load(
    checkpoint: &Arc<Checkpoint>,
    args: &ModelArgs,
    cache_tokens: Option<usize>,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Engine> {
    let circuit = model::circuit(args.circuit.as_deref())?.map(Arc::new);
    let backend = args.backend()?;
    let mut options = EngineOptions { circuit, cache_tokens, ..args.options() };
    let limit = latent_graph::ModelConfig::from_checkpoint(checkpoint)?.context_length;
    let context = args.ctx_size.unwrap_or(limit.min(DEFAULT_CONTEXT));
    if cache_tokens.is_none() {
        let several = EngineOptions {
            context: Some(context),
            cache_tokens: Some(CONTEXTS * context),
            ..options.clone()
        };
        match Engine::load(&*backend, checkpoint, &several, progress) {
            Err(latent_engine::EngineError::Memory(_)) => {}
            loaded => return Ok(loaded?),
        }
    }
    options.context = args.ctx_size;
    Ok(Engine::load(&*backend, checkpoint, &options, progress)?)
}

/// The drawing of `latent graph --html`.
fn drawing(args: &ModelArgs) -> Drawing {
    let args = args.clone();
    Arc::new(move || draw::page_of(&args).map_err(|error| format!("{error:#}")))
}
