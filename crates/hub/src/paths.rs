//! Checks of paths in a repository before they become paths on this machine.

use crate::error::HubError;
use std::path::{Path, PathBuf};

/// Maximum bytes of a path.
const MAX_PATH: usize = 1024;

/// Maximum bytes of one component. File systems allow 255, and `.part` is appended.
const MAX_PART: usize = 240;

/// Names of devices on Windows, with any extension.
const DEVICES: [&str; 6] = ["con", "prn", "aux", "nul", "conin$", "conout$"];

/// The path below `folder` for the path of a file on the hub. All systems apply the rules of all
/// systems, so that a repository works on each of them or on none.
///
/// # Errors
/// A path that leads out of the folder on any system, or that some systems cannot store.
pub(crate) fn below(folder: &Path, path: &str) -> Result<PathBuf, HubError> {
    check(path).map_err(|problem| HubError::UnsafePath { path: shortened(path), problem })?;
    Ok(path.split('/').fold(folder.to_owned(), |whole, part| whole.join(part)))
}

fn check(path: &str) -> Result<(), &'static str> {
    if path.len() > MAX_PATH {
        return Err("the path is too long");
    }
    if path.starts_with('/') {
        return Err("the path is absolute");
    }
    path.split('/').try_for_each(check_part)
}

fn check_part(part: &str) -> Result<(), &'static str> {
    match part {
        "" => return Err("the path has an empty component"),
        "." | ".." => return Err("the path leads out of the folder"),
        _ => {}
    }
    if part.len() > MAX_PART {
        return Err("a component of the path is too long");
    }
    // Windows separates components by backslashes too, and names drives and streams with colons.
    if part.chars().any(|c| c.is_control() || "\\:*?\"<>|".contains(c)) {
        return Err("the path has a backslash, a colon, or another character that is not portable");
    }
    // Windows drops dots and blanks at the end, so two names would be one file.
    if part.ends_with(['.', ' ']) || part.starts_with(' ') {
        return Err("a component of the path begins with a space, or ends with a dot or a space");
    }
    // `nul.gguf` is the device too.
    let stem = part.split('.').next().unwrap_or_default().to_ascii_lowercase();
    // Windows also reserves `COM¹` to `COM³`, so any single character counts as a number.
    let port = stem.strip_prefix("com").or_else(|| stem.strip_prefix("lpt"));
    if DEVICES.contains(&stem.as_str()) || port.is_some_and(|n| n.chars().count() == 1 && n != "0") {
        return Err("a component of the path is a device name on Windows");
    }
    Ok(())
}

fn shortened(path: &str) -> String {
    path.chars().take(200).collect()
}

/// Percent-encodes a path for an address. Characters in `keep` stay.
pub(crate) fn escaped(path: &str, keep: &str) -> String {
    let mut out = String::with_capacity(path.len());
    for byte in path.bytes() {
        let c = char::from(byte);
        if byte.is_ascii_alphanumeric() || "-._~".contains(c) || keep.contains(c) {
            out.push(c);
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_out_of_the_folder_are_rejected() {
        let folder = Path::new("/cache");
        for bad in [
            "../x",
            "a/../../x",
            "/etc/passwd",
            "a//b",
            "./a",
            "a/.",
            "..",
            "",
            "a\\..\\b",
            "C:x",
            "a\0b",
            "a\nb",
            "NUL",
            "nul.gguf",
            "a/com1.txt",
            "LPT9",
            "x.",
            "x ",
            " x",
            "a|b",
            "CONIN$",
        ] {
            let error = below(folder, bad).unwrap_err();
            assert!(matches!(error, HubError::UnsafePath { .. }), "{bad:?}");
        }
        assert!(below(folder, &"a/".repeat(600)).is_err());
        assert!(below(folder, &"a".repeat(241)).is_err());
        for good in [
            "model.gguf",
            "UD-Q4_K_XL/GLM-00001-of-00004.gguf",
            "..a",
            "a..b",
            "console.gguf",
            "com10",
            "模型.gguf",
        ] {
            assert!(below(folder, good).unwrap().starts_with(folder), "{good}");
        }
    }

    #[test]
    fn reserved_characters_in_addresses_are_escaped() {
        assert_eq!(escaped("a b/ü#?%.gguf", "/"), "a%20b/%C3%BC%23%3F%25.gguf");
        assert_eq!(escaped("refs/pr/1", ""), "refs%2Fpr%2F1");
    }
}
