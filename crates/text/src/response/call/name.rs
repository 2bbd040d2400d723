//! Names of functions and of their parameters.

/// Bytes of what stands where the name is, and of keys.
pub(crate) const MAX_NAME_BYTES: usize = 512;

/// Whether a text can be a function's name.
pub(crate) fn is_name(name: &str) -> bool {
    let odd = |c: char| c.is_whitespace() || c.is_control() || "<>{}\"".contains(c);
    !name.is_empty() && name.len() <= 256 && !name.contains(odd)
}

/// Undoes the escapes of XML's attributes that templates write.
pub(crate) fn unescape(text: &str) -> String {
    text.replace("&quot;", "\"").replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
}
