//! `latent self-test`.

use crate::support;
use serde_json::Value;

#[test]
fn the_machine_is_described_and_every_device_checked() {
    let output = support::latent(&["self-test"]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    for start in [
        "latent ",
        "cpu ",
        "threads ",
        "instructions ",
        "memory ",
        "limits ",
        "  ok      cpu, portable, exact ",
    ] {
        assert!(said.lines().any(|line| line.starts_with(start)), "no {start:?} in\n{said}");
    }
    assert!(!said.contains("FAILED"), "{said}");
}

#[test]
fn its_json_has_a_check_per_device_precision_and_instruction_set() {
    let output = support::latent(&["self-test", "--json"]).env("LATENT_ISA", "avx2").output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let machine = &report["machine"];
    assert!(machine["limits"]["read_bandwidth"].as_f64().unwrap() > 1e6, "{machine}");
    assert!(machine["threads"].as_u64().unwrap() >= 1 && machine["tier"] != "avx512", "{machine}");
    let checks = report["checks"].as_array().unwrap();
    let tiers = if machine["tier"] == "portable" { 1 } else { 2 };
    let gpus = machine["gpus"].as_array().unwrap().len();
    assert_eq!(checks.len(), 2 * (tiers + gpus), "{report}");
    for check in checks {
        assert_eq!(check["passed"], true, "{check}");
        let error = check["error"].as_f64().unwrap();
        assert!(error <= check["bound"].as_f64().unwrap(), "{check}");
        // 8-bit arithmetic differs, exact arithmetic hardly.
        let is_exact = check["name"].as_str().unwrap().ends_with("exact");
        assert!(!is_exact || (error < 1e-9 && check["same_token"] == check["rows"]), "{check}");
    }
    assert_eq!(report["failed"], 0);
}
