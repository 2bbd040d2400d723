//! Query parameters.

use axum::http::Uri;

/// The decoded value of a query parameter.
pub(crate) fn parameter(uri: &Uri, name: &str) -> Option<String> {
    // `+` is a space in form encoding. It must be replaced before `%2B` is decoded.
    let pair = uri.query()?.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='))?;
    String::from_utf8(percent_decoded(&pair.replace('+', " "))?).ok()
}

/// Percent-decodes a text. Returns `None` for an incomplete or invalid escape.
pub(crate) fn percent_decoded(text: &str) -> Option<Vec<u8>> {
    let mut bytes = text.bytes();
    let mut decoded = Vec::with_capacity(text.len());
    while let Some(byte) = bytes.next() {
        if byte == b'%' {
            // Not `from_str_radix`, which accepts a sign: `%+f`.
            let mut digit = || char::from(bytes.next()?).to_digit(16);
            decoded.push((digit()? * 16 + digit()?) as u8);
        } else {
            decoded.push(byte);
        }
    }
    Some(decoded)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_found_and_decoded() {
        assert_eq!(percent_decoded("a%2Fb%"), None);
        assert_eq!(percent_decoded("%+f"), None);
        assert_eq!(percent_decoded("a%2Fb").unwrap(), b"a/b");
        let uri = "/props?autoload=1&model=a%2Fb+c".parse::<Uri>().unwrap();
        assert_eq!(parameter(&uri, "model").as_deref(), Some("a/b c"));
        assert_eq!(parameter(&uri, "mode"), None);
    }
}
