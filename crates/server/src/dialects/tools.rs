//! What of a model's own tokens may stand before its tool calls.

use latent_text::ToolGrammar;

/// Of the control tokens in the format's markers, those that text before the calls may hold: those that are no part of a call.
pub(super) fn free_tokens(format: &ToolGrammar, control: &[String]) -> Vec<String> {
    let markers =
        [&format.section_open, &format.open, &format.name_close, &format.close, &format.section_close];
    let in_call = |name: &&String| markers.iter().any(|marker| marker.contains(name.as_str()));
    control.iter().filter(|name| !in_call(name)).cloned().collect()
}
