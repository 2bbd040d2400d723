//! `latent rm`: removes cached models.

use crate::args::RmArgs;
use crate::{hub, output};
use anyhow::Result;
use latent_hub::{HubSettings, pulled_reference};
use latent_types::format_bytes;

pub(super) fn run(args: &RmArgs) -> Result<()> {
    let settings = HubSettings::from_env()?;
    for text in &args.models {
        let model = pulled_reference(&settings, text).map_err(hub::usage)?;
        let removed = latent_hub::remove(&settings, &model)?;
        let models = removed.models.join(", ");
        output::line(&format!("removed {models}: {} freed", format_bytes(removed.freed)))?;
    }
    Ok(())
}
