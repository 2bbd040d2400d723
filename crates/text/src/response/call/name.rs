//! Names of functions and parameters.

/// Maximum bytes of the text at the position of a name, and of a key.
pub(crate) const MAX_NAME_BYTES: usize = 512;

/// Whether a text can be a function's name.
pub(crate) fn is_name(name: &str) -> bool {
    // These characters occur in markers and JSON: the model wrote text about its format, or left a
    // marker out.
    let odd = |c: char| c.is_whitespace() || c.is_control() || "<>{}\"".contains(c);
    !name.is_empty() && name.len() <= 256 && !name.contains(odd)
}

/// Reverts the XML attribute escapes that Kimi-K3's template writes in names and keys.
pub(crate) fn unescape(text: &str) -> String {
    // `&amp;` last, so that `&amp;lt;` becomes `&lt;` and not `<`.
    text.replace("&quot;", "\"").replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
}
