//! The list of rules.

use crate::output;
use anyhow::Result;
use latent_graph::audit::Code;

/// Prints every rule: code, what must hold, what to look at.
pub(super) fn print(json: bool) -> Result<()> {
    let rules: Vec<_> = Code::ALL.iter().map(|code| code.rule()).collect();
    if json {
        return output::json(&serde_json::to_value(rules)?);
    }
    let (mut family, mut text) = ("", String::new());
    for rule in rules {
        if rule.family != family {
            family = rule.family;
            text.push_str(&format!("{family}\n"));
        }
        text.push_str(&format!("  {}  {}\n", rule.code, rule.holds));
    }
    output::lines(&text)
}
