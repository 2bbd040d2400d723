//! The list of rules.

use crate::output;
use anyhow::Result;
use graph::audit::Code;

/// Prints every rule: code, what must hold, what to look at.
pub(super) fn print(json: bool) -> Result<()> {
    let rules: Vec<_> = Code::ALL.iter().map(|code| code.rule()).collect();
    if json {
        return output::json(&serde_json::to_value(rules)?);
    }
    let mut family = "";
    for rule in rules {
        if rule.family != family {
            family = rule.family;
            output::line(family)?;
        }
        output::line(&format!("  {}  {}", rule.code, rule.holds))?;
    }
    Ok(())
}
