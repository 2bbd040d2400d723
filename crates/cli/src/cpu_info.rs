//! Which CPU measurements were made on.

/// Name of the CPU.
pub(crate) fn cpu_info() -> String {
    name(&cpu_text())
}

/// The CPU's name with family, model and stepping, where the system states them: virtual machines give one name to several generations.
pub(crate) fn cpu_generation() -> String {
    let text = cpu_text();
    let numbers = [("family", "cpu family"), ("model", "model"), ("stepping", "stepping")];
    let numbers = numbers.iter().filter_map(|(name, key)| Some(format!(", {name} {}", field(&text, key)?)));
    name(&text) + &numbers.collect::<String>()
}

fn name(text: &str) -> String {
    field(text, "model name").unwrap_or_else(|| std::env::consts::ARCH.into())
}

fn cpu_text() -> String {
    std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default()
}

/// A field of the first core.
fn field(text: &str, key: &str) -> Option<String> {
    let mut fields = text.lines().filter_map(|line| line.split_once(':'));
    fields.find(|(name, _)| name.trim() == key).map(|(_, value)| value.trim().to_owned())
}
