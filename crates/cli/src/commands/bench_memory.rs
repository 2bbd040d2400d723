//! `latent bench --save` and `--compare`: saved measurements, and what became faster or slower.

use crate::cpu_info::cpu_info;
use crate::exit::UsageError;
use crate::output;
use anyhow::{Result, bail};
use latent_formats::{OutputFile, input_file};
use serde_json::{Value, json};
use std::io::Write;
use std::path::Path;

/// Marks a file of measurements and its version.
const FORMAT: &str = "latent-bench-1";

/// Maximum bytes of such a file.
const MAX_BYTES: u64 = 64 << 20;

/// Settings of a measurement. Differences are reported, and ratios are still printed.
const SETTINGS: [(&str, &str); 10] = [
    ("backends", "backend"),
    ("device", "device"),
    ("model_filename", "model"),
    ("model_size", "bytes of weights"),
    ("n_threads", "threads"),
    ("tier", "instruction set"),
    ("type_k", "KV cache"),
    ("n_batch", "tokens of a step"),
    ("version", "version of Latent"),
    ("build_commit", "commit"),
];

/// The identity of the machine. Ratios between different machines are refused.
fn machine() -> Value {
    // Linux only. On other systems memory and number of CPUs are unknown on both sides, which
    // compares as equal.
    let lines = |path: &str, key: &str| -> Vec<String> {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        text.lines().filter(|line| line.starts_with(key)).map(str::to_owned).collect()
    };
    let total = lines("/proc/meminfo", "MemTotal:");
    let kilobytes = total.first().and_then(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok());
    json!({
        "cpu": cpu_info(),
        "cpus": lines("/proc/cpuinfo", "processor").len(),
        // MemTotal lacks what the kernel reserves, which varies between boots. Whole GiB hide that.
        "memory_gib": kilobytes.map(|kilobytes| kilobytes.div_ceil(1 << 20)),
        "os": std::env::consts::OS,
        "arch": std::env::consts::ARCH,
    })
}

/// Writes the rows of a table.
pub(super) fn save(path: &Path, rows: &[Value]) -> Result<()> {
    let file = json!({ "format": FORMAT, "machine": machine(), "rows": rows });
    let mut out = OutputFile::create(path)?;
    let text = serde_json::to_string_pretty(&file)? + "\n";
    out.write_all(text.as_bytes()).map_err(|error| out.failed(error))?;
    out.finish()?;
    Ok(())
}

/// Measurements of an earlier run.
pub(super) struct EarlierRun {
    rows: Vec<Value>,
    /// Differences of the machine: `cpu: AMD EPYC 9354 before, AMD EPYC 9654 now`.
    machine: Vec<String>,
}

impl EarlierRun {
    /// Reads a file of [`save`].
    pub(super) fn read(path: &Path) -> Result<EarlierRun> {
        EarlierRun::parse(&input_file::read_text(path, MAX_BYTES)?, &machine())
            .map_err(|problem| UsageError(format!("{}: {problem}", path.display())).into())
    }

    fn parse(text: &str, here: &Value) -> Result<EarlierRun, String> {
        let file: Value = serde_json::from_str(text).map_err(|error| format!("not valid JSON: {error}"))?;
        let rows = file["rows"].as_array().filter(|_| file["format"] == FORMAT);
        let rows = rows.ok_or("it has no measurements: use a file that `latent bench --save` wrote")?;
        if rows.iter().any(|row| speed(row).is_none()) {
            return Err("a measurement has no name or no speed".into());
        }
        let keys = here.as_object().into_iter().flat_map(|here| here.keys());
        let machine = keys.filter_map(|key| difference(key, &file["machine"][key], &here[key])).collect();
        Ok(EarlierRun { rows: rows.clone(), machine })
    }

    /// Compares each row with the row of the same test. Ratios are computed only on the same
    /// machine.
    pub(super) fn compare(&self, now: &[Value]) -> BenchComparison {
        let pair = |now: &Value| {
            let (name, speed_now) = speed(now)?;
            let (row, before) = self.rows.iter().find_map(|row| {
                let (other, before) = speed(row)?;
                (other == name).then_some((row, before))
            })?;
            // A speed of 0 would give an infinite ratio, which JSON cannot hold.
            let ratio = (self.machine.is_empty() && before.0 > 0.0).then(|| Ratio::of(before, speed_now));
            Some((ComparedTest { test: name.to_owned(), before: before.0, now: speed_now.0, ratio }, row))
        };
        let pairs: Vec<_> = now.iter().filter_map(|row| Some((pair(row)?, row))).collect();
        let mut settings: Vec<String> = Vec::new();
        for ((_, before), now) in &pairs {
            for (key, name) in SETTINGS {
                let differs = difference(name, &before[key], &now[key]);
                settings.extend(differs.filter(|line| !settings.contains(line)));
            }
        }
        let unmatched = now.len() - pairs.len();
        let rows = pairs.into_iter().map(|((compared, _), _)| compared).collect();
        BenchComparison { rows, settings, machine: self.machine.clone(), unmatched }
    }
}

/// Name and speed of a row: tokens per second and their standard deviation.
fn speed(row: &Value) -> Option<(&str, (f64, f64))> {
    let mean = row["avg_ts"].as_f64()?;
    Some((row["test"].as_str()?, (mean, row["stddev_ts"].as_f64().unwrap_or(0.0))))
}

fn difference(name: &str, before: &Value, now: &Value) -> Option<String> {
    let shown = |value: &Value| match value {
        Value::Null => "none".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    (before != now).then(|| format!("{name}: {} before, {} now", shown(before), shown(now)))
}

/// Speed divided by the earlier speed.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Ratio {
    value: f64,
    /// Standard deviation, propagated from both sides.
    deviation: f64,
}

impl Ratio {
    fn of(before: (f64, f64), now: (f64, f64)) -> Ratio {
        let value = now.0 / before.0;
        // Relative errors of independent values add in quadrature.
        let relative = (before.1 / before.0).hypot(if now.0 > 0.0 { now.1 / now.0 } else { 0.0 });
        Ratio { value, deviation: value * relative }
    }
}

/// One test, before and now.
struct ComparedTest {
    test: String,
    before: f64,
    now: f64,
    ratio: Option<Ratio>,
}

/// A run compared with an earlier one.
pub(super) struct BenchComparison {
    rows: Vec<ComparedTest>,
    settings: Vec<String>,
    machine: Vec<String>,
    /// Tests that the earlier run did not have.
    unmatched: usize,
}

impl BenchComparison {
    /// Adds the earlier values to the objects of a table.
    pub(super) fn add_to(&self, objects: &mut [Value]) {
        for object in objects {
            let of = self.rows.iter().find(|row| object["test"] == row.test.as_str());
            object["before"] = of.map_or(Value::Null, |row| {
                json!({
                    "avg_ts": row.before,
                    "ratio": row.ratio.map(|ratio| ratio.value),
                    "ratio_stddev": row.ratio.map(|ratio| ratio.deviation),
                    "other_machine": self.machine,
                    "other_settings": self.settings,
                })
            });
        }
    }

    /// Fails if a test is slower than `least` times its speed before, or has no ratio.
    pub(super) fn check(&self, least: f64) -> Result<()> {
        if !self.machine.is_empty() {
            bail!("--fail-below: cannot compare different machines: {}", self.machine.join("; "));
        }
        if self.rows.is_empty() || self.unmatched > 0 {
            bail!("--fail-below: a test was not measured before; run the same tests as with --save");
        }
        let slow = |row: &&ComparedTest| row.ratio.is_none_or(|ratio| ratio.value < least);
        let shown = |row: &ComparedTest| match row.ratio {
            Some(ratio) => format!("{} runs at {:.3} of its earlier speed", row.test, ratio.value),
            None => format!("{} has no ratio", row.test),
        };
        let slow: Vec<String> = self.rows.iter().filter(slow).map(shown).collect();
        if slow.is_empty() { Ok(()) } else { bail!("below {least}: {}", slow.join(", ")) }
    }

    /// Prints it as a table.
    pub(super) fn print(&self) -> Result<()> {
        output::line("")?;
        if !self.rows.is_empty() {
            output::line("| test | t/s before | t/s now | ratio |")?;
            output::line("| --- | ---: | ---: | ---: |")?;
        }
        for row in &self.rows {
            let ratio =
                row.ratio.map_or_else(|| "–".into(), |r| format!("{:.3} ± {:.3}", r.value, r.deviation));
            output::line(&format!("| {} | {:.2} | {:.2} | {ratio} |", row.test, row.before, row.now))?;
        }
        if !self.machine.is_empty() {
            output::line(&format!("cannot compare different machines: {}", self.machine.join("; ")))?;
        }
        if !self.settings.is_empty() {
            output::line(&format!("what differs: {}", self.settings.join("; ")))?;
        }
        match self.unmatched {
            0 => Ok(()),
            1 => output::line("1 test was not measured before"),
            n => output::line(&format!("{n} tests were not measured before")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(test: &str, speed: f64, threads: u64) -> Value {
        json!({ "test": test, "avg_ts": speed, "stddev_ts": 0.03 * speed, "n_threads": threads })
    }

    fn before(machine: &Value, rows: &[Value]) -> EarlierRun {
        let file = json!({ "format": FORMAT, "machine": machine, "rows": rows });
        EarlierRun::parse(&file.to_string(), &json!({ "cpu": "A", "cpus": 4 })).unwrap()
    }

    #[test]
    fn tests_of_one_name_are_compared_on_one_machine() {
        let before =
            before(&json!({ "cpu": "A", "cpus": 4 }), &[row("pp512", 100.0, 2), row("tg128", 10.0, 2)]);
        let now = [row("pp512", 120.0, 4), row("tg64", 11.0, 4)];
        let found = before.compare(&now);
        assert_eq!((found.rows.len(), found.unmatched), (1, 1));
        let ratio = found.rows[0].ratio.unwrap();
        assert!(
            (ratio.value - 1.2).abs() < 1e-12 && (ratio.deviation - 1.2 * 0.03 * 2f64.sqrt()).abs() < 1e-12
        );
        assert_eq!(found.settings, ["threads: 2 before, 4 now"]);
        assert!(found.check(0.5).unwrap_err().to_string().contains("was not measured before"));
        let alone = before.compare(&now[..1]);
        assert!(alone.check(1.19).is_ok());
        assert_eq!(
            alone.check(1.21).unwrap_err().to_string(),
            "below 1.21: pp512 runs at 1.200 of its earlier speed"
        );
        let mut objects = now.to_vec();
        found.add_to(&mut objects);
        assert!(objects[0]["before"]["avg_ts"] == 100.0 && objects[1]["before"].is_null());
    }

    #[test]
    fn another_machine_gives_no_ratio_and_is_named() {
        let before = before(&json!({ "cpu": "B", "cpus": 4 }), &[row("pp512", 100.0, 2)]);
        let found = before.compare(&[row("pp512", 120.0, 2)]);
        assert_eq!(
            (found.rows[0].ratio, &found.machine[..]),
            (None, &["cpu: B before, A now".to_owned()][..])
        );
        assert!(found.check(0.5).unwrap_err().to_string().contains("different machines: cpu: B before"));
    }

    #[test]
    fn other_files_are_refused() {
        let refused = |text: &str| EarlierRun::parse(text, &json!({})).err().unwrap();
        assert!(refused("").contains("not valid JSON"));
        assert!(refused("[]").contains("--save"));
        assert!(refused(r#"{"format": "latent-bench-1", "rows": [{"test": "x"}]}"#).contains("no speed"));
    }
}
