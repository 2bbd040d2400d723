//! The CPU on which measurements were made.

/// Name of the CPU.
pub(crate) fn cpu_info() -> String {
    name(&cpu_text())
}

/// The CPU's name with family, model and stepping, if known.
pub(crate) fn cpu_generation() -> String {
    let text = cpu_text();
    // Clouds give several CPU generations one name ("Intel(R) Xeon(R) Processor"). The numbers
    // distinguish them.
    let numbers = [("family", "cpu family"), ("model", "model"), ("stepping", "stepping")];
    let numbers = numbers.iter().filter_map(|(name, key)| Some(format!(", {name} {}", field(&text, key)?)));
    name(&text) + &numbers.collect::<String>()
}

fn name(text: &str) -> String {
    field(text, "model name").unwrap_or_else(|| std::env::consts::ARCH.into())
}

fn cpu_text() -> String {
    // Linux only. On macOS, Windows and aarch64 (no "model name" there) `name` falls back to the
    // architecture.
    std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default()
}

/// A field of the first core in /proc/cpuinfo.
fn field(text: &str, key: &str) -> Option<String> {
    let mut fields = text.lines().filter_map(|line| line.split_once(':'));
    fields.find(|(name, _)| name.trim() == key).map(|(_, value)| value.trim().to_owned())
}
