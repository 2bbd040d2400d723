//! Formatting of sizes.

/// A size in decimal units, as is usual for files.
///
/// ```
/// assert_eq!(latent_types::format_bytes(999), "999 B");
/// assert_eq!(latent_types::format_bytes(1_499_000_000), "1.50 GB");
/// ```
pub fn format_bytes(bytes: u64) -> String {
    let units = ["B", "kB", "MB", "GB", "TB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    // Not 1000, so that 999.996 MB is not shown as 1000.00 MB.
    while value >= 999.5 && unit + 1 < units.len() {
        value /= 1000.0;
        unit += 1;
    }
    if unit == 0 { format!("{bytes} B") } else { format!("{value:.2} {}", units[unit]) }
}
