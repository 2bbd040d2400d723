//! Measured times of kernels, in a file that `latent kernels perf --save` writes and kernel
//! selection reads (`--tuned`).

use latent_formats::{InputError, input_file};
use latent_types::{TensorType, Tier};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

/// Version of the file format.
pub const TIMINGS_FORMAT: &str = "latent-kernel-timings-1";

/// Maximum size of a file: about 60,000 measurements.
pub const MAX_TIMINGS_BYTES: u64 = 16 << 20;

/// The command that writes the file.
const COMMAND: &str = "latent kernels perf --save FILE";

/// The shape of a matmul.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ProductShape {
    /// Input rows.
    pub rows: usize,
    /// Elements per input row.
    pub inputs: usize,
    /// Elements per output row.
    pub outputs: usize,
}

impl ProductShape {
    /// The distance to another shape, in logarithms: between the weights' sizes, then between the
    /// rows.
    fn distance(self, other: ProductShape) -> (f64, f64) {
        // Logarithms, so that 512 is as far from 1024 as 2048 is.
        let factor = |a: usize, b: usize| (a.max(1) as f64 / b.max(1) as f64).ln().abs();
        let sizes = factor(self.inputs, other.inputs) + factor(self.outputs, other.outputs);
        (sizes, factor(self.rows, other.rows))
    }
}

impl std::fmt::Display for ProductShape {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "m={}, k={}, n={}", self.rows, self.inputs, self.outputs)
    }
}

/// The time of one kernel for one shape.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KernelTiming {
    /// Name of the operation.
    pub op: String,
    /// Format of the weight.
    pub weight: String,
    pub layout: String,
    pub kernel: String,
    #[serde(flatten)]
    pub shape: ProductShape,
    /// Median microseconds per call.
    pub micros: f64,
}

/// Times of kernels, and the machine on which they were measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KernelTimings {
    format: String,
    /// Name of the CPU.
    cpu: String,
    /// Its highest ISA tier.
    tier: String,
    /// Threads that ran the kernel concurrently.
    threads: usize,
    timings: Vec<KernelTiming>,
    /// `timings` indexed by kernel, weight format and shape. Selection asks once per node and
    /// bucket.
    #[serde(skip)]
    micros: BTreeMap<String, BTreeMap<String, BTreeMap<ProductShape, f64>>>,
}

/// Reasons for rejecting a timing file.
#[derive(Debug, thiserror::Error)]
pub enum KernelTimingsError {
    #[error(transparent)]
    Input(#[from] InputError),
    #[error("{}: {problem}; `{COMMAND}` writes a new one", path.display())]
    Damaged { path: PathBuf, problem: String },
    #[error(
        "{}: it was measured on {measured} ({measured_tier}), but this machine is {here} ({tier_here}): \
         measure here with `{COMMAND}`",
        path.display()
    )]
    OtherMachine { path: PathBuf, measured: String, measured_tier: String, here: String, tier_here: Tier },
}

/// The times of candidate kernels at the nearest measured shape.
#[derive(Clone, Debug, PartialEq)]
pub struct NearestTimings {
    /// The measured shape.
    pub shape: ProductShape,
    /// Microseconds of each requested kernel; `None` if it was not measured at this shape.
    pub micros: Vec<Option<f64>>,
}

impl KernelTimings {
    /// Times that were measured on this machine.
    pub fn new(cpu: String, tier: Tier, threads: usize, timings: Vec<KernelTiming>) -> KernelTimings {
        let format = TIMINGS_FORMAT.to_owned();
        let tier = tier.name().to_owned();
        KernelTimings { format, cpu, tier, threads, timings, micros: BTreeMap::new() }.indexed()
    }

    fn indexed(mut self) -> KernelTimings {
        for KernelTiming { weight, kernel, shape, micros, .. } in &self.timings {
            let formats = self.micros.entry(kernel.clone()).or_default();
            let least = formats.entry(weight.clone()).or_default().entry(*shape).or_insert(*micros);
            // A file may hold several measurements of one shape. Noise only adds time, so the
            // minimum is the best estimate.
            *least = micros.min(*least);
        }
        self
    }

    /// Reads a file for a machine with this CPU and highest tier. Times of unknown kernels and
    /// formats are accepted and never looked up, so files survive renamed kernels.
    ///
    /// # Errors
    /// A file that cannot be read, is damaged, has another version, or is from another machine.
    pub fn read(path: &Path, cpu: &str, tier: Tier) -> Result<KernelTimings, KernelTimingsError> {
        let text = input_file::read_text(path, MAX_TIMINGS_BYTES)?;
        let path = path.to_owned();
        let timings = match KernelTimings::parse(&text) {
            Ok(timings) => timings,
            Err(problem) => return Err(KernelTimingsError::Damaged { path, problem }),
        };
        // An error and not a warning: times of another CPU would choose slower kernels without a
        // visible sign.
        if timings.cpu != cpu || timings.tier != tier.name() {
            let KernelTimings { cpu: measured, tier: measured_tier, .. } = timings;
            let (here, tier_here) = (cpu.to_owned(), tier);
            return Err(KernelTimingsError::OtherMachine { path, measured, measured_tier, here, tier_here });
        }
        Ok(timings)
    }

    fn parse(text: &str) -> Result<KernelTimings, String> {
        let value: serde_json::Value =
            serde_json::from_str(text).map_err(|error| format!("not valid JSON: {error}"))?;
        match value["format"].as_str() {
            Some(TIMINGS_FORMAT) => {}
            Some(other) => {
                return Err(format!("its format is {other:?}, but this version reads {TIMINGS_FORMAT:?}"));
            }
            None => return Err("it has no kernel timings (`format` is missing)".into()),
        }
        // Parsed again from text and not from `value`, because errors then have a line number.
        let found: KernelTimings =
            serde_json::from_str(text).map_err(|error| format!("it is damaged: {error}"))?;
        if found.timings.is_empty() {
            return Err("it has no kernel timings (`timings` is empty)".into());
        }
        for (i, timing) in found.timings.iter().enumerate() {
            let ProductShape { rows, inputs, outputs } = timing.shape;
            // Zero and negative times would always win; zero sizes would break the distance.
            if !(timing.micros.is_finite() && timing.micros > 0.0) || rows == 0 || inputs == 0 || outputs == 0
            {
                return Err(format!(
                    "timings[{i}] of {}: {} µs at {}, expected numbers above 0",
                    timing.kernel, timing.micros, timing.shape
                ));
            }
        }
        Ok(found.indexed())
    }

    /// The file's text.
    ///
    /// # Errors
    /// None known. All fields are plain data.
    pub fn to_json(&self) -> serde_json::Result<String> {
        Ok(serde_json::to_string_pretty(self)? + "\n")
    }

    /// Number of measurements.
    pub fn len(&self) -> usize {
        self.timings.len()
    }

    /// Whether it has no measurements.
    pub fn is_empty(&self) -> bool {
        self.timings.is_empty()
    }

    /// The times of `kernels` with weights of format `ty`, at the measured shape nearest to
    /// `shape`. Only shapes with a number of rows in `rows` count, at which the first kernel and
    /// another one were measured. `None` without such a shape.
    pub fn nearest(
        &self,
        ty: TensorType,
        shape: ProductShape,
        rows: RangeInclusive<usize>,
        kernels: &[&str],
    ) -> Option<NearestTimings> {
        let of_kernel = |kernel: &&str| self.micros.get(*kernel)?.get(ty.name());
        let known: Vec<_> = kernels.iter().map(of_kernel).collect();
        // The first kernel is the highest tier. It is replaced only by a direct comparison at one
        // shape.
        let shapes = known.first().copied().flatten()?.keys();
        let compared = shapes.filter(|shape| rows.contains(&shape.rows)).map(|shape| {
            let micros = known.iter().map(|times| times.and_then(|times| times.get(shape).copied()));
            NearestTimings { shape: *shape, micros: micros.collect() }
        });
        compared.filter(|found| found.micros.iter().flatten().count() > 1).min_by(|a, b| {
            let (a, b) = (shape.distance(a.shape), shape.distance(b.shape));
            a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timing(kernel: &str, (rows, inputs, outputs): (usize, usize, usize), micros: f64) -> KernelTiming {
        KernelTiming {
            op: "linear".into(),
            weight: "Q4_K".into(),
            layout: "tiles".into(),
            kernel: kernel.into(),
            shape: ProductShape { rows, inputs, outputs },
            micros,
        }
    }

    #[test]
    fn the_nearest_shape_with_two_times_counts() {
        let timings = KernelTimings::new(
            "cpu".into(),
            Tier::Avx512,
            1,
            vec![
                timing("high", (1, 2048, 2048), 10.0),
                timing("low", (1, 2048, 2048), 9.0),
                timing("high", (1, 7168, 2048), 30.0),
                timing("low", (1, 7168, 2048), 40.0),
                // Only one of the kernels was measured.
                timing("high", (1, 512, 512), 1.0),
                timing("high", (512, 512, 512), 100.0),
                timing("low", (512, 512, 512), 90.0),
            ],
        );
        let at = |rows, inputs, outputs| {
            let shape = ProductShape { rows, inputs, outputs };
            let range = if rows > 16 { 17..=usize::MAX } else { rows..=16 };
            timings.nearest(TensorType::Q4_K, shape, range, &["high", "low", "other"])
        };
        let near = |rows, inputs, outputs| {
            let found = at(rows, inputs, outputs).unwrap();
            (found.shape.inputs, found.micros)
        };
        assert_eq!(near(1, 1024, 2048), (2048, vec![Some(10.0), Some(9.0), None]));
        assert_eq!(near(1, 5120, 1536), (7168, vec![Some(30.0), Some(40.0), None]));
        // Its own shape has one time only, so another shape decides.
        assert_eq!(near(1, 512, 512).0, 2048);
        assert_eq!(near(300, 7168, 2048), (512, vec![Some(100.0), Some(90.0), None]));
        // No time for small batches, none of another format, none if the first kernel is unknown.
        assert_eq!(at(8, 7168, 2048), None);
        let shape = ProductShape { rows: 1, inputs: 512, outputs: 512 };
        assert_eq!(timings.nearest(TensorType::Q6_K, shape, 1..=1, &["high", "low"]), None);
        assert_eq!(timings.nearest(TensorType::Q4_K, shape, 1..=1, &["other", "high", "low"]), None);
        assert_eq!(timings.nearest(TensorType::Q4_K, shape, 1..=1, &[]), None);
    }

    #[test]
    fn damaged_and_foreign_files_are_refused_with_the_reason() {
        let folder = std::env::temp_dir().join(format!("latent-timings-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("t.json");
        let kept = KernelTimings::new("A".into(), Tier::Avx2, 2, vec![timing("k", (1, 64, 32), 1.5)]);
        let text = kept.to_json().unwrap();
        let read = |text: &str, cpu: &str, tier| {
            std::fs::write(&path, text).unwrap();
            KernelTimings::read(&path, cpu, tier).map_err(|error| error.to_string())
        };
        assert_eq!(read(&text, "A", Tier::Avx2).unwrap(), kept);
        let refused = |text: &str| read(text, "A", Tier::Avx2).unwrap_err();
        for (from, to, expected) in [
            (TIMINGS_FORMAT, "latent-kernel-timings-9", "but this version reads"),
            ("\"format\"", "\"other\"", "`format` is missing"),
            ("1.5", "-1.5", "timings[0] of k: -1.5 µs"),
            ("1.5", "0.0", "expected numbers above 0"),
            ("1.5", "1e999", "not valid JSON"),
            ("1.5", "\"x\"", "it is damaged"),
            ("64", "0", "expected numbers above 0"),
            ("64", "-1", "it is damaged"),
            ("64", "99999999999999999999999", "it is damaged"),
            ("\"kernel\"", "\"kernels\"", "missing field `kernel`"),
            ("}", "", "not valid JSON"),
        ] {
            assert!(text.contains(from), "{from}");
            let error = refused(&text.replace(from, to));
            assert!(error.contains(expected) && error.contains(COMMAND), "{from} {to}: {error}");
        }
        let (start, _) = text.split_once("\"timings\": [").unwrap();
        assert!(refused(&format!("{start}\"timings\": []}}")).contains("`timings` is empty"));
        assert!(refused("[]").contains("`format` is missing"));
        for (cpu, tier) in [("B", Tier::Avx2), ("A", Tier::Avx512)] {
            let error = read(&text, cpu, tier).unwrap_err();
            let expected = format!("it was measured on A (avx2), but this machine is {cpu} ({tier})");
            assert!(error.contains(&expected) && error.contains(COMMAND), "{error}");
        }
        std::fs::File::create(&path).unwrap().set_len(MAX_TIMINGS_BYTES + 1).unwrap();
        let error = KernelTimings::read(&path, "A", Tier::Avx2).unwrap_err().to_string();
        assert!(error.contains("more than the limit"), "{error}");
        std::fs::remove_dir_all(&folder).unwrap();
        assert!(matches!(KernelTimings::read(&path, "A", Tier::Avx2), Err(KernelTimingsError::Input(_))));
    }
}
