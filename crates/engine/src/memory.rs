//! Available memory, and whether a model with its cache fits into it.

use latent_backend::MemoryEstimate;
use latent_types::{Setting, format_bytes};
use std::fmt;
use std::path::{Path, PathBuf};

/// Available memory, and the limit that determines it.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct AvailableMemory {
    /// Size in bytes.
    pub bytes: u64,
    /// `free memory` or `cgroup limit`.
    pub limit: &'static str,
}

/// A model that fits only because the system pages its mapped weights.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryOvercommit {
    /// Size of the mapped weights, in bytes.
    pub mapped: u64,
    /// Memory that is left for them, in bytes.
    pub left: u64,
}

impl fmt::Display for MemoryOvercommit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (mapped, left) = (format_bytes(self.mapped), format_bytes(self.left));
        write!(
            f,
            "{mapped} of weights are read from disk in every step, because only {left} of memory are left \
             for them"
        )
    }
}

/// A model that does not fit: the needed and the available memory, and what would fit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutOfMemory {
    /// The memory that the model needs.
    pub needed: MemoryEstimate,
    /// The available memory.
    pub available: AvailableMemory,
    /// Requested context size, in tokens.
    pub context: usize,
    /// Largest context size that would fit, in tokens, if any.
    pub fits: Option<usize>,
    /// If a device's own memory is too small: how many layers would fit there.
    pub layers: Option<FittingLayers>,
}

/// How many layers of a model fit into a device's memory, counted as
/// [`DeviceLayers`](crate::DeviceLayers) counts them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FittingLayers {
    /// Number of layers that fit.
    pub layers: usize,
    /// Total number of layers.
    pub of: usize,
    /// Whether the KV cache has a smaller type than the chosen one.
    pub smaller_cache: bool,
}

impl fmt::Display for OutOfMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whose = if self.layers.is_some() { "the memory of the device" } else { "memory" };
        writeln!(f, "the model does not fit into {whose} with a context of {} tokens:", self.context)?;
        // Mapped weights can be paged, so they are not the reason.
        for (what, bytes) in self.needed.parts().filter(|(what, _)| *what != "mapped") {
            writeln!(f, "  {what:<12} {:>12}", format_bytes(bytes))?;
        }
        writeln!(f, "  {:<12} {:>12}", "together", format_bytes(self.needed.resident()))?;
        writeln!(f, "  {:<12} {:>12}", self.available.limit, format_bytes(self.available.bytes))?;
        let missing = self.needed.resident().saturating_sub(self.available.bytes);
        writeln!(f, "  {:<12} {:>12}", "missing", format_bytes(missing))?;
        if let Some(layers) = self.layers {
            return self.advise_device(layers, f);
        }
        match self.fits {
            Some(context) => {
                write!(f, "try {}, or load it anyway with {}", Setting::Context.to(context), Setting::Force)
            }
            // The weights of a packed file are mapped, so that only the rest must fit.
            None if self.needed.resident() - self.needed.weights < self.available.bytes => write!(
                f,
                "use a smaller model, pack it with `latent pack`, so that its weights can be paged, or load \
                 it anyway with {}",
                Setting::Force
            ),
            None => {
                write!(f, "no context fits; use a smaller model, or load it anyway with {}", Setting::Force)
            }
        }
    }
}

impl OutOfMemory {
    fn advise_device(&self, fitting: FittingLayers, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match fitting.layers {
            0 => write!(f, "not even the output layer fits: use {}", Setting::Device.to("cpu"))?,
            layers => {
                let offload = Setting::Offload.to(layers);
                write!(f, "try {offload} (of {}; the other layers stay on the CPU)", fitting.of)?;
            }
        }
        if let Some(context) = self.fits {
            write!(f, ", or {}", Setting::Context.to(context))?;
        }
        if fitting.smaller_cache {
            write!(f, ", or {}", Setting::Cache.to("f16"))?;
        }
        write!(f, ", or load it anyway with {}", Setting::Force)
    }
}

/// Memory that this process may still use: the system's available memory, or what the cgroup
/// leaves, whichever is less. `None` if the system does not report it (not Linux).
pub fn available() -> Option<AvailableMemory> {
    available_in(Path::new("/"))
}

fn available_in(root: &Path) -> Option<AvailableMemory> {
    let free = free_memory(&std::fs::read_to_string(root.join("proc/meminfo")).ok()?)?;
    let free = AvailableMemory { bytes: free, limit: "free memory" };
    match cgroup_left(root) {
        Some(left) if left < free.bytes => Some(AvailableMemory { bytes: left, limit: "cgroup limit" }),
        _ => Some(free),
    }
}

fn free_memory(meminfo: &str) -> Option<u64> {
    // `MemAvailable` counts the page cache that can be reclaimed, unlike `MemFree`. The unit is kB.
    let line = meminfo.lines().find(|line| line.starts_with("MemAvailable:"))?;
    line.split_whitespace().nth(1)?.parse::<u64>().ok()?.checked_mul(1024)
}

/// The memory that the tightest cgroup of this process or its ancestors leaves (v2, or the memory
/// controller of v1).
fn cgroup_left(root: &Path) -> Option<u64> {
    let membership = std::fs::read_to_string(root.join("proc/self/cgroup")).ok()?;
    let read = |path: PathBuf| std::fs::read_to_string(path).ok();
    let number = |path: PathBuf| read(path)?.trim().parse::<u64>().ok();
    let mut left: Option<u64> = None;
    for line in membership.lines() {
        // A line is `id:controllers:path`, and a path may contain colons.
        let mut fields = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(group)) = (fields.next(), fields.next(), fields.next()) else {
            continue;
        };
        let (mount, limit, used) = match controllers {
            // The line of cgroup v2 has an empty list of controllers.
            "" => ("sys/fs/cgroup", "memory.max", "memory.current"),
            c if c.split(',').any(|c| c == "memory") => {
                ("sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes")
            }
            _ => continue,
        };
        let mount = root.join(mount);
        let mut folder = mount.join(group.trim_start_matches('/'));
        // A parent's limit applies to all of its children together.
        loop {
            // Without a limit, `memory.max` holds the word "max", which is not a number.
            if let (Some(limit), Some(used)) = (number(folder.join(limit)), number(folder.join(used))) {
                // The kernel drops file pages when the cgroup needs memory, so they count as free.
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

/// Size of the file pages in the page cache of a cgroup, in bytes.
fn file_pages(stat: &str) -> u64 {
    let value = |key: &str| -> u64 {
        let line = stat.lines().find(|line| line.split_whitespace().next() == Some(key));
        line.and_then(|line| line.split_whitespace().nth(1)?.parse().ok()).unwrap_or(0)
    };
    // Not `file` (v2) or `cache` (v1), which include tmpfs and shared memory. The kernel cannot
    // drop these.
    value("inactive_file") + value("active_file")
}

/// Whether the file's pages may stay in the page cache in addition to the weights packed from them.
/// They make the next start faster. They stay if the model and its file fit into half of the free
/// memory; otherwise they would take memory from other programs.
pub(crate) fn keeps_pages(available: &AvailableMemory, needed: &MemoryEstimate) -> bool {
    needed.total().saturating_add(needed.weights) <= available.bytes / 2
}

/// Checks that a context fits. `needed` returns the memory that a context needs. Returns the
/// overcommitted memory if the context fits only with paged weights.
///
/// # Errors
/// [`OutOfMemory`], with the largest context that would fit.
pub fn check(
    needed: &dyn Fn(usize) -> MemoryEstimate,
    available: &AvailableMemory,
    context: usize,
) -> Result<Option<MemoryOvercommit>, OutOfMemory> {
    let here = needed(context);
    if here.total() <= available.bytes {
        return Ok(None);
    }
    // Without `force`, only mapped weights may exceed the memory: the system can drop and reread
    // their pages.
    if here.resident() <= available.bytes {
        return Ok(Some(MemoryOvercommit { mapped: here.mapped, left: available.bytes - here.resident() }));
    }
    let fits = context_that_fits(&|tokens| needed(tokens).resident() <= available.bytes, context);
    Err(OutOfMemory { needed: here, available: available.clone(), context, fits, layers: None })
}

/// Context size, in tokens, up to which mapped weights may be paged. A smaller context would be
/// useless for most prompts.
const PAGED_CONTEXT: usize = 4096;

/// The largest context of at most `limit` tokens that fits into `bytes` with all weights. If that
/// is less than 4096 tokens and weights are mapped, the largest context of at most 4096 tokens that
/// fits without the mapped weights. At least one block.
pub fn choose_context(needed: &dyn Fn(usize) -> MemoryEstimate, bytes: u64, limit: usize) -> usize {
    let with_all = context_that_fits(&|tokens| needed(tokens).total() <= bytes, limit).unwrap_or(0);
    let paged = limit.min(PAGED_CONTEXT);
    // Paging makes every step wait for the disk, so it is not used for contexts above this.
    if with_all >= paged {
        return with_all;
    }
    let without = context_that_fits(&|tokens| needed(tokens).resident() <= bytes, paged).unwrap_or(0);
    with_all.max(without).max(latent_backend::KV_BLOCK).min(limit)
}

/// The largest number of tokens, at most `limit`, for which `fits` holds. A multiple of the block
/// size, or the limit itself. `None` if not even one block fits. `fits` must be monotonic: a binary
/// search finds the result.
pub(crate) fn context_that_fits(fits: &dyn Fn(usize) -> bool, limit: usize) -> Option<usize> {
    if fits(limit) {
        return Some(limit);
    }
    let page = latent_backend::KV_BLOCK;
    // Products with the block size must not overflow.
    let limit = limit.min(usize::MAX / page * page);
    // Invariant: `above` blocks do not fit. `below` blocks do, or are 0.
    let (mut below, mut above) = (0, limit.div_ceil(page));
    while above - below > 1 {
        let middle = usize::midpoint(below, above);
        if fits(middle * page) { below = middle } else { above = middle }
    }
    (below > 0).then_some(below * page)
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
        assert_eq!(
            available_in(folder.path()).unwrap(),
            AvailableMemory { bytes: 65536, limit: "free memory" }
        );
        write("proc/self/cgroup", "0::/a/b\n");
        write("sys/fs/cgroup/a/memory.max", "50000\n");
        write("sys/fs/cgroup/a/memory.current", "40000\n");
        write("sys/fs/cgroup/a/memory.stat", "anon 5\nactive_file 1000\ninactive_file 2000\n");
        write("sys/fs/cgroup/a/b/memory.max", "max\n");
        write("sys/fs/cgroup/a/b/memory.current", "40000\n");
        assert_eq!(
            available_in(folder.path()).unwrap(),
            AvailableMemory { bytes: 13000, limit: "cgroup limit" }
        );
    }

    /// 1000 bytes of weights, 200 of scratch, 100 per token.
    fn needed(context: usize) -> MemoryEstimate {
        MemoryEstimate { weights: 1000, cache: 100 * context as u64, arena: 200, ..MemoryEstimate::default() }
    }

    fn free(bytes: u64) -> AvailableMemory {
        AvailableMemory { bytes, limit: "free memory" }
    }

    #[test]
    fn errors_name_the_largest_context_that_fits() {
        let error = check(&needed, &free(14_001), 640).unwrap_err();
        assert_eq!(error.fits, Some(128));
        assert!(
            error.to_string().contains("option `context: 128`") && error.to_string().contains("64.00 kB")
        );
        assert_eq!(check(&needed, &free(65_200), 640), Ok(None));
        let none = check(&needed, &free(1300), 640).unwrap_err();
        assert!(none.fits.is_none() && !none.to_string().contains("latent pack"));
        let weights = |context| MemoryEstimate { weights: 1_000_000, ..needed(context) };
        assert!(check(&weights, &free(65_000), 640).unwrap_err().to_string().contains("latent pack"));
    }

    #[test]
    fn mapped_weights_may_be_paged_and_nothing_else() {
        let mapped = |context| MemoryEstimate { weights: 0, mapped: 1000, ..needed(context) };
        assert_eq!(check(&mapped, &free(7600), 64), Ok(None));
        assert_eq!(check(&mapped, &free(7000), 64), Ok(Some(MemoryOvercommit { mapped: 1000, left: 400 })));
        assert_eq!(check(&mapped, &free(6599), 64).unwrap_err().fits, None);
        let message = check(&mapped, &free(6700), 640).unwrap_err().to_string();
        assert!(!message.contains("mapped") && message.contains("option `context: 64`"), "{message}");
    }

    #[test]
    fn a_context_is_chosen_for_all_weights_or_for_paged_ones() {
        assert_eq!(choose_context(&needed, 10_000_000, 5000), 5000);
        assert_eq!(choose_context(&needed, 421_200, 5000), 4200 / 64 * 64);
        assert_eq!(choose_context(&needed, 1000, 5000), 64);
        let mapped = |context| MemoryEstimate { weights: 0, mapped: 1_000_000, ..needed(context) };
        assert_eq!(choose_context(&mapped, 1_000_000, 5000), 4096);
        assert_eq!(choose_context(&mapped, 200_000, 5000), 1998 / 64 * 64);
        assert_eq!(choose_context(&mapped, 1_450_000, 5000), 4498 / 64 * 64);
    }
}
