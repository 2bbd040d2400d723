//! Results on the screen and as JSON.

use crate::args::ResultArgs;
use crate::output;
use anyhow::Result;
use latent_engine::Engine;
use latent_evaluate::Estimate;
use serde::Serialize;
use serde_json::{Value, json};

/// `1.7345 ± 0.0123`.
pub(super) fn with_error(estimate: Estimate, digits: usize) -> String {
    format!("{:.digits$} ± {:.digits$}", estimate.value, estimate.error)
}

/// `83.0 ± 2.2 %`.
pub(super) fn percent(share: Estimate, digits: usize) -> String {
    format!("{} %", with_error(Estimate { value: 100.0 * share.value, error: 100.0 * share.error }, digits))
}

/// Prints a result.
pub(super) fn show(
    args: &ResultArgs,
    engine: &Engine,
    evaluation: &str,
    found: &impl Serialize,
    lines: &[String],
) -> Result<()> {
    if !args.json {
        return lines.iter().try_for_each(|line| output::line(line));
    }
    let mut object = json!({ "evaluation": evaluation, "model": model(engine) });
    if let (Value::Object(object), Value::Object(found)) = (&mut object, serde_json::to_value(found)?) {
        object.extend(found);
    }
    output::json(&object)
}

/// What was measured: the model, and all settings that change its numbers.
fn model(engine: &Engine) -> Value {
    let s = engine.summary();
    let bind = engine.bind();
    json!({
        "name": s.name,
        "parameters": s.parameters,
        "weight_bytes": s.weight_bytes,
        "precision": bind.precision.to_string(),
        "isa": s.tier.name(),
        "cache": s.cache.name(),
        "threads": s.placement.threads(),
        "version": env!("CARGO_PKG_VERSION"),
    })
}
