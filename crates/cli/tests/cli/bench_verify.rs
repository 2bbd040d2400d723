//! `latent bench --verify`: output and refusals.

use crate::support::latent;
use serde_json::Value;

fn stdout(args: &[&str]) -> String {
    let output = latent(args).output().unwrap();
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn number(row: &Value, key: &str) -> f64 {
    row[key].as_f64().unwrap_or_else(|| panic!("{key} of {row}"))
}

/// The keys of an object, which scripts read.
const KEYS: [&str; 25] = [
    "build_commit",
    "version",
    "cpu_info",
    "model_filename",
    "model_type",
    "n_threads",
    "tier",
    "type_k",
    "test",
    "text",
    "n_rows",
    "n_depth",
    "rounds",
    "steps_per_round",
    "median_ms",
    "samples_ms",
    "time_ratio",
    "samples_time_ratio",
    "distinct_experts",
    "distinct_experts_by_layer",
    "dense_bytes",
    "expert_bytes",
    "cache_bytes",
    "model_ratio",
    "deviation",
];

#[test]
fn json_has_the_time_the_experts_and_the_bytes_of_every_step() {
    let text = stdout(&["bench", "--verify", "1..3,8", "-d", "0,70", "-r", "2", "--json"]);
    let rows: Vec<Value> = serde_json::from_str(&text).unwrap();
    let tests: Vec<&str> = rows.iter().map(|row| row["test"].as_str().unwrap()).collect();
    let expected: Vec<String> = ["", " @ d70"]
        .iter()
        .flat_map(|depth| {
            ["independent", "repeated"].map(|text| [1, 2, 3, 8].map(|n| format!("verify {n}, {text}{depth}")))
        })
        .flatten()
        .collect();
    assert_eq!(tests, expected);
    for row in &rows {
        let keys: Vec<&String> = row.as_object().unwrap().keys().collect();
        assert_eq!(keys, KEYS);
        assert_eq!((row["samples_ms"].as_array().unwrap().len(), &row["rounds"]), (2, &2.into()));
        let deviation = number(row, "time_ratio") / number(row, "model_ratio") - 1.0;
        assert!((deviation - number(row, "deviation")).abs() < 1e-9);
        let layers = row["distinct_experts_by_layer"].as_array().unwrap();
        let mean = layers.iter().map(|layer| number(layer, "mean")).sum::<f64>() / layers.len() as f64;
        assert!((mean - number(row, "distinct_experts")).abs() < 1e-9, "{row}");
    }
    let bytes = |row: &Value| ["dense_bytes", "expert_bytes", "cache_bytes"].map(|key| number(row, key));
    // The demo model has five MoE layers with two of sixteen experts per row.
    let inspected: Value = serde_json::from_str(&stdout(&["inspect", "--json"])).unwrap();
    let (used, experts) =
        (&inspected["contract"]["moe"]["num_experts_per_tok"], &inspected["contract"]["moe"]["experts"]);
    for rows in rows.chunks_exact(4) {
        let one = &rows[0];
        assert_eq!([number(one, "time_ratio"), number(one, "model_ratio")], [1.0, 1.0]);
        assert_eq!(Some(number(one, "distinct_experts")), used.as_f64());
        for row in &rows[1..] {
            let distinct = number(row, "distinct_experts");
            assert!(distinct >= number(one, "distinct_experts") && distinct <= experts.as_f64().unwrap());
            // Expert bytes are those of the counted experts. Layers differ little in size.
            let [dense, of_experts, cache] = bytes(row);
            let share = of_experts / bytes(one)[1] / (distinct / number(one, "distinct_experts"));
            assert!((share - 1.0).abs() < 0.25, "{share} {row}");
            let total = |[dense, experts, cache]: [f64; 3]| dense + experts + cache;
            let ratio = total([dense, of_experts, cache]) / total(bytes(one));
            assert!((ratio - number(row, "model_ratio")).abs() < 1e-3, "{ratio} {row}");
        }
    }
    // Independent tokens need more experts than repeated ones, and deeper steps read more cached
    // rows.
    assert!(number(&rows[3], "distinct_experts") > number(&rows[7], "distinct_experts"));
    assert!(number(&rows[8], "cache_bytes") > number(&rows[0], "cache_bytes"));
}

#[test]
fn tables_have_a_line_per_step() {
    let table = stdout(&["bench", "--verify", "2", "-r", "1"]);
    assert!(table.starts_with("| test | ms | time ÷ 1 row |"), "{table}");
    assert!(
        table.contains("| verify 2, independent |") && table.contains("| verify 2, repeated |"),
        "{table}"
    );
    let csv = stdout(&["bench", "--verify", "1,2", "-r", "1", "-o", "csv"]);
    let lines: Vec<&str> = csv.lines().collect();
    assert_eq!(lines.len(), 5, "{csv}");
    assert!(
        !lines[0].contains("samples") && lines[0].contains("time_ratio,distinct_experts,dense_bytes"),
        "{csv}"
    );
}

#[test]
fn a_dense_model_has_no_experts_to_count() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("dense.gguf").display().to_string();
    assert!(latent(&["make-model", "tiny-dense", "Q4_K", &path]).output().unwrap().status.success());
    let args = ["bench", "-m", &path, "--verify", "1,4", "-r", "1"];
    let rows: Vec<Value> = serde_json::from_str(&stdout(&[&args[..], &["--json"]].concat())).unwrap();
    for row in &rows {
        assert!(row["distinct_experts"].is_null() && row["expert_bytes"] == 0);
        assert!(row["distinct_experts_by_layer"].as_array().unwrap().is_empty());
    }
    assert!(
        stdout(&args)
            .lines()
            .any(|line| line.starts_with("| verify 4, repeated |") && line.contains("| – |"))
    );
}

#[test]
fn invalid_row_counts_are_refused() {
    let refused = |args: &[&str], part: &str| {
        let output = latent(args).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(64), "{args:?}: {said}");
        assert!(said.contains(part), "{args:?}: {said}");
    };
    for word in ["0", "17", "1..99", "8..1", "two", "1-8"] {
        refused(&["bench", "--verify", word], "expected row counts from 1 to 16, such as 4 or 1,2,4 or 1..8");
    }
    refused(&["bench", "--verify", "1,2", "-p", "5"], "--verify");
    refused(&["bench", "--verify", "2", "--sequences", "2"], "cannot be used with");
    refused(&["bench", "--verify", "8", "-d", "120", "--ctx-size", "64"], "128 tokens needed");
}
