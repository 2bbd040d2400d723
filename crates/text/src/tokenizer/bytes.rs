//! GPT-2's byte-level alphabet: printable Latin-1 maps to itself, other bytes to U+0100 and up.

use std::collections::HashMap;
use std::sync::OnceLock;

/// The character of each byte.
pub(super) fn characters() -> &'static [char; 256] {
    static TABLE: OnceLock<[char; 256]> = OnceLock::new();
    TABLE.get_or_init(|| {
        let mut table = ['\0'; 256];
        let mut moved = 0;
        for (byte, c) in table.iter_mut().enumerate() {
            let stands = matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
            let code = if stands { byte as u32 } else { 0x100 + moved };
            moved += u32::from(!stands);
            *c = char::from_u32(code).unwrap_or('\0');
        }
        table
    })
}

/// Maps bytes to characters.
pub(super) fn mapped(text: &[u8]) -> String {
    let table = characters();
    // The exact capacity: characters from U+0080 need two bytes of UTF-8, the others one.
    let moved = text.iter().filter(|byte| table[usize::from(**byte)] as u32 >= 0x80).count();
    let mut mapped = String::with_capacity(text.len() + moved);
    mapped.extend(text.iter().map(|byte| table[usize::from(*byte)]));
    mapped
}

/// Maps characters back to bytes. A character outside the alphabet becomes its UTF-8 bytes: added
/// tokens are written as plain text.
pub(super) fn unmapped(text: &str) -> Vec<u8> {
    static INVERSE: OnceLock<HashMap<char, u8>> = OnceLock::new();
    let inverse =
        INVERSE.get_or_init(|| characters().iter().enumerate().map(|(b, c)| (*c, b as u8)).collect());
    let mut bytes = Vec::with_capacity(text.len());
    for c in text.chars() {
        match inverse.get(&c) {
            Some(byte) => bytes.push(*byte),
            None => bytes.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_has_its_own_character() {
        let text: String = characters().iter().collect();
        assert_eq!(unmapped(&text), (0..=255).collect::<Vec<u8>>());
        assert_eq!(mapped("a é\n".as_bytes()), "aĠÃ©Ċ");
        assert_eq!((characters()[b' ' as usize], characters()[b'\n' as usize]), ('Ġ', 'Ċ'));
    }
}
