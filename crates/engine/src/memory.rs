//! How much memory there is, and whether a model with its cache fits.

use std::fmt;
use std::path::{Path, PathBuf};

/// What a session needs, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Needed {
    /// Weights.
    pub weights: u64,
    /// Cache of the whole context.
    pub cache: u64,
    /// Arena, residual stream, logits, scratch.
    pub arena: u64,
}

impl Needed {
    /// All together.
    pub fn total(&self) -> u64 {
        self.weights.saturating_add(self.cache).saturating_add(self.arena)
    }
}

/// Memory that may be used, and what says so.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Available {
    /// Bytes.
    pub bytes: u64,
    /// `free memory` or `cgroup limit`.
    pub limit: &'static str,
}

/// A model that does not fit: what it needs, what there is, and what would fit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotEnough {
    /// What it needs.
    pub needed: Needed,
    /// What there is.
    pub available: Available,
    /// Tokens of context asked for.
    pub context: usize,
    /// Tokens of context that would fit, if any.
    pub fits: Option<usize>,
}

/// `1.5 GB`: decimal units, as files are measured.
pub fn readable(bytes: u64) -> String {
    let units = ["B", "kB", "MB", "GB", "TB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 999.5 && unit + 1 < units.len() {
        value /= 1000.0;
        unit += 1;
    }
    if unit == 0 { format!("{bytes} B") } else { format!("{value:.2} {}", units[unit]) }
}

impl fmt::Display for NotEnough {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "the model does not fit into memory with a context of {} tokens:", self.context)?;
        for (what, bytes) in
            [("weights", self.needed.weights), ("cache", self.needed.cache), ("arena", self.needed.arena)]
        {
            writeln!(f, "  {what:<10} {:>12}", readable(bytes))?;
        }
        writeln!(f, "  {:<10} {:>12}", "together", readable(self.needed.total()))?;
        writeln!(f, "  {:<10} {:>12}", self.available.limit, readable(self.available.bytes))?;
        match self.fits {
            Some(context) => write!(f, "try --ctx {context}, or --force to go on all the same"),
            None => write!(f, "no context fits; use a smaller model, or --force to let the system page"),
        }
    }
}

/// Memory that this process may still use: what the system calls available, or what its cgroup leaves, whichever is less.
/// None where the system does not say.
pub fn available() -> Option<Available> {
    available_in(Path::new("/"))
}

fn available_in(root: &Path) -> Option<Available> {
    let free = free_memory(&std::fs::read_to_string(root.join("proc/meminfo")).ok()?)?;
    let free = Available { bytes: free, limit: "free memory" };
    match cgroup_left(root) {
        Some(left) if left < free.bytes => Some(Available { bytes: left, limit: "cgroup limit" }),
        _ => Some(free),
    }
}

fn free_memory(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find(|line| line.starts_with("MemAvailable:"))?;
    line.split_whitespace().nth(1)?.parse::<u64>().ok()?.checked_mul(1024)
}

/// What the tightest cgroup (v2, or v1's memory controller) on the way up leaves: file pages that it holds can be dropped.
fn cgroup_left(root: &Path) -> Option<u64> {
    let membership = std::fs::read_to_string(root.join("proc/self/cgroup")).ok()?;
    let read = |path: PathBuf| std::fs::read_to_string(path).ok();
    let number = |path: PathBuf| read(path)?.trim().parse::<u64>().ok();
    let mut left: Option<u64> = None;
    for line in membership.lines() {
        let mut fields = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(group)) = (fields.next(), fields.next(), fields.next()) else {
            continue;
        };
        let (mount, limit, used) = match controllers {
            "" => ("sys/fs/cgroup", "memory.max", "memory.current"),
            c if c.split(',').any(|c| c == "memory") => {
                ("sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes")
            }
            _ => continue,
        };
        let mount = root.join(mount);
        let mut folder = mount.join(group.trim_start_matches('/'));
        loop {
            if let (Some(limit), Some(used)) = (number(folder.join(limit)), number(folder.join(used))) {
                let files = read(folder.join("memory.stat")).as_deref().map_or(0, file_pages);
                let here = limit.saturating_sub(used.saturating_sub(files));
                left = Some(left.map_or(here, |l| l.min(here)));
            }
            if folder == mount || !folder.pop() {
                break;
            }
        }
    }
    left
}

/// Bytes of clean file pages that a cgroup holds.
fn file_pages(stat: &str) -> u64 {
    let value = |key: &str| -> u64 {
        let line = stat.lines().find(|line| line.split_whitespace().next() == Some(key));
        line.and_then(|line| line.split_whitespace().nth(1)?.parse().ok()).unwrap_or(0)
    };
    value("inactive_file") + value("active_file")
}

/// Whether `needed` fits; where not, the largest context that would, for a cache of `token_bytes` a token.
///
/// # Errors
/// [`NotEnough`].
pub fn check(
    needed: Needed,
    available: &Available,
    context: usize,
    token_bytes: u64,
) -> Result<(), NotEnough> {
    if needed.total() <= available.bytes {
        return Ok(());
    }
    let rest = available.bytes.saturating_sub(needed.weights + needed.arena);
    let fits = context_that_fits(rest, token_bytes);
    Err(NotEnough { needed, available: available.clone(), context, fits })
}

/// Tokens whose cache takes at most `bytes`, in whole pages; none where not even one page fits.
pub fn context_that_fits(bytes: u64, token_bytes: u64) -> Option<usize> {
    let page = crate::cache::PAGE_ROWS as u64;
    let tokens = bytes / token_bytes.max(1) / page * page;
    (tokens > 0).then_some(tokens as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cgroup_limit_counts_where_it_is_tighter() {
        let folder = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = folder.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write("proc/meminfo", "MemTotal: 100 kB\nMemAvailable:   64 kB\n");
        assert_eq!(available_in(folder.path()).unwrap(), Available { bytes: 65536, limit: "free memory" });
        write("proc/self/cgroup", "0::/a/b\n");
        write("sys/fs/cgroup/a/memory.max", "50000\n");
        write("sys/fs/cgroup/a/memory.current", "40000\n");
        write("sys/fs/cgroup/a/memory.stat", "anon 5\nactive_file 1000\ninactive_file 2000\n");
        write("sys/fs/cgroup/a/b/memory.max", "max\n");
        write("sys/fs/cgroup/a/b/memory.current", "40000\n");
        assert_eq!(available_in(folder.path()).unwrap(), Available { bytes: 13000, limit: "cgroup limit" });
    }

    #[test]
    fn what_does_not_fit_is_shown_with_what_would() {
        let needed = Needed { weights: 1000, cache: 64_000, arena: 200 };
        let available = Available { bytes: 14_001, limit: "free memory" };
        let error = check(needed, &available, 640, 100).unwrap_err();
        assert_eq!(error.fits, Some(128));
        assert!(error.to_string().contains("--ctx 128") && error.to_string().contains("64.00 kB"));
        assert_eq!(check(needed, &Available { bytes: 65_200, limit: "free memory" }, 640, 100), Ok(()));
        let none = check(needed, &Available { bytes: 1300, limit: "free memory" }, 640, 100).unwrap_err();
        assert_eq!(none.fits, None);
    }
}
