//! Base64 (RFC 4648), for tiktoken.model and tekken.json.

/// Decodes a padded text. Returns `None` if it is not the canonical encoding of any bytes.
pub(crate) fn decode(text: &str) -> Option<Vec<u8>> {
    let (groups, []) = text.as_bytes().as_chunks::<4>() else { return None };
    let mut out = Vec::with_capacity(groups.len() * 3);
    for (i, group) in groups.iter().enumerate() {
        let padding = if i + 1 == groups.len() {
            group.iter().rev().take_while(|&&byte| byte == b'=').count()
        } else {
            0
        };
        let mut bits = 0u32;
        for &byte in &group[..4usize.checked_sub(padding.min(3))?] {
            bits = bits << 6 | value(byte)?;
        }
        // Bits beyond the last byte must be zero. Otherwise two texts would stand for the same
        // token.
        let (bytes, unused) = match padding {
            0 => (bits, 0),
            1 => (bits << 6, bits & 0b11),
            2 => (bits << 12, bits & 0b1111),
            _ => return None,
        };
        if unused != 0 {
            return None;
        }
        out.extend_from_slice(&bytes.to_be_bytes()[1..4 - padding]);
    }
    Some(out)
}

/// The six bits of a character.
fn value(byte: u8) -> Option<u32> {
    Some(match byte {
        b'A'..=b'Z' => u32::from(byte - b'A'),
        b'a'..=b'z' => u32::from(byte - b'a') + 26,
        b'0'..=b'9' => u32::from(byte - b'0') + 52,
        b'+' => 62,
        b'/' => 63,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_vectors_of_the_standard() {
        let texts = ["", "Zg==", "Zm8=", "Zm9v", "Zm9vYg==", "Zm9vYmE=", "Zm9vYmFy"];
        for (length, text) in texts.iter().enumerate() {
            assert_eq!(decode(text).unwrap(), b"foobar"[..length], "{text}");
        }
        assert_eq!(decode("+/+/").unwrap(), [0xfb, 0xff, 0xbf]);
        for wrong in
            ["Z", "Zg", "Zg=", "Zg===", "====", "Zh==", "Zm9=", "Zg==Zg==", "Z=g=", "Zm9v\n", "Zm-v", "Zmé="]
        {
            assert_eq!(decode(wrong), None, "{wrong:?}");
        }
    }
}
