//! `latent ls`: lists the cached models.

use crate::args::LsArgs;
use crate::output;
use anyhow::Result;
use latent_hub::{HubSettings, ListedModel, ShortName};
use latent_types::format_bytes;
use serde_json::{Value, json};
use std::time::{SystemTime, UNIX_EPOCH};

pub(super) fn run(args: &LsArgs) -> Result<()> {
    if args.short_names {
        return short_names(args.json);
    }
    let settings = HubSettings::from_env()?;
    let all = latent_hub::list(&settings);
    if args.json {
        return output::json(&Value::Array(all.iter().map(described).collect()));
    }
    // On standard error: a script that reads the list gets no lines.
    if all.is_empty() {
        let cache = settings.cache.display();
        output::note(&format!(
            "no models in {cache} yet: run latent pull hf:OWNER/NAME[:QUANT], or use a name from `latent ls \
             --short-names`"
        ));
        return Ok(());
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
    let mut rows = vec![["MODEL", "FILES", "SIZE", "PULLED", "PATH"].map(str::to_owned)];
    rows.extend(all.iter().map(|listed| row(listed, now)));
    let [a, b, c, d] = widths(&rows);
    let line = |[model, files, size, pulled, path]: &[String; 5]| {
        format!("{model:a$}  {files:>b$}  {size:>c$}  {pulled:d$}  {path}")
    };
    let lines: Vec<String> = rows.iter().map(line).collect();
    output::items(&lines)
}

/// The widths of the first four columns.
fn widths(rows: &[[String; 5]]) -> [usize; 4] {
    [0, 1, 2, 3].map(|column| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0))
}

/// Lists the short names.
fn short_names(json: bool) -> Result<()> {
    let all = latent_hub::short_names();
    if json {
        let described = |entry: &ShortName| {
            json!({
                "name": entry.name,
                "size": entry.size,
                "reference": format!("{}{}:{}", latent_hub::PREFIX, entry.repo, entry.quant),
                "bytes": entry.bytes,
                "unsupported": entry.unsupported,
            })
        };
        return output::json(&Value::Array(all.iter().map(described).collect()));
    }
    let mut rows = vec![["NAME", "SIZE", "QUANT", "ABOUT", "REPOSITORY"].map(str::to_owned)];
    rows.extend(all.iter().map(|entry| {
        let note = entry.unsupported.as_ref().map_or_else(String::new, |why| format!("  ({why})"));
        let repo = format!("{}{note}", entry.repo);
        [entry.name.clone(), entry.size.clone(), entry.quant.clone(), format_bytes(entry.bytes), repo]
    }));
    let [a, b, c, d] = widths(&rows);
    let line = |[name, size, quant, bytes, repo]: &[String; 5]| {
        format!("{name:a$}  {size:>b$}  {quant:c$}  {bytes:>d$}  {repo}")
    };
    let lines: Vec<String> = rows.iter().map(line).collect();
    output::items(&lines)
}

fn row(listed: &ListedModel, now: u64) -> [String; 5] {
    // Saturating: the clock may have been set back since the download.
    let pulled = if listed.complete { ago(now.saturating_sub(listed.pulled)) } else { "incomplete".into() };
    [
        listed.reference.clone(),
        listed.files.to_string(),
        format_bytes(listed.model.bytes),
        pulled,
        listed.model.path.display().to_string(),
    ]
}

fn described(listed: &ListedModel) -> Value {
    json!({
        "model": listed.reference,
        "name": listed.model.name,
        "revision": listed.revision,
        "commit": listed.model.commit,
        "files": listed.files,
        "bytes": listed.model.bytes,
        "pulled": listed.pulled,
        "complete": listed.complete,
        "path": listed.model.path.display().to_string(),
    })
}

/// `just now`, `5 minutes ago`, `3 days ago`.
fn ago(seconds: u64) -> String {
    let (n, unit) = match seconds {
        0..60 => return "just now".into(),
        60..3600 => (seconds / 60, "minute"),
        3600..86400 => (seconds / 3600, "hour"),
        _ => (seconds / 86400, "day"),
    };
    format!("{n} {unit}{} ago", if n == 1 { "" } else { "s" })
}
