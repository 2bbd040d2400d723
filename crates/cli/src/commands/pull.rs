//! `latent pull`: downloads a model of the hub.

use crate::args::PullArgs;
use crate::{hub, output};
use anyhow::Result;
use latent_hub::HubSettings;
use latent_types::format_bytes;
use serde_json::json;

pub(super) fn run(args: &PullArgs) -> Result<()> {
    let settings = HubSettings::from_env()?;
    let model = hub::wanted(&settings, &args.model)?;
    let pulled = hub::pull(&settings, &model, &hub::policy(Some(&args.model)), args.quiet)?;
    let local = pulled.model;
    if args.json {
        return output::json(&json!({
            "model": model.to_string(),
            "name": local.name,
            "commit": local.commit,
            "bytes": local.bytes,
            "path": local.path.display().to_string(),
            "up_to_date": pulled.up_to_date,
        }));
    }
    if !args.quiet {
        let what = if pulled.up_to_date { "up to date" } else { "pulled" };
        output::note(&format!("{model}: {what}, {}, {}", local.name, format_bytes(local.bytes)));
    }
    // The path is the only line of standard output: `latent run -m $(latent pull …)`.
    output::line(&local.path.display().to_string())
}
