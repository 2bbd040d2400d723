//! `latent kernels perf --save` and `--tuned`: measured times choose between instruction sets.

use crate::support::{demo, latent};
use serde_json::{Value, json};

fn ran(args: &[&str]) -> String {
    let output = latent(args).output().unwrap();
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// The error of a call that is wrong usage.
fn refused(args: &[&str]) -> String {
    let output = latent(args).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(64), "{args:?}: {error}");
    error
}

#[test]
fn saved_times_choose_kernels_and_the_text_stays_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (model, saved, edited) = (demo().display().to_string(), path("saved.json"), path("edited.json"));
    let perf = ["kernels", "perf", "--millis", "1", "--memory", "1", "--save", &saved];
    let perf = |more: &[&'static str]| [&perf[..], more].concat();
    let words = ["linear(q4_k", "tiles", "m=1,", "k=2048"];
    ran(&perf(&words));
    let mut file: Value = serde_json::from_str(&std::fs::read_to_string(&saved).unwrap()).unwrap();
    let timings = file["timings"].as_array().unwrap().clone();
    let number = |timing: &Value, key: &str| timing[key].as_u64().unwrap();
    for timing in &timings {
        assert_eq!((number(timing, "rows"), number(timing, "inputs")), (1, 2048), "{timing}");
        assert!(timing["micros"].as_f64().unwrap() > 0.0 && timing["weight"] == "Q4_K", "{timing}");
    }

    // an existing file stays, and so does one that is not for products, or of one instruction set
    let again = latent(&perf(&words)).output().unwrap();
    assert!(String::from_utf8_lossy(&again.stderr).contains("--force replaces it"));
    ran(&perf(&["linear(q4_k", "tiles", "m=1,", "k=2048", "--force"]));
    assert!(refused(&perf(&["silu_mul", "--force"])).contains("--save stores times of matrix products"));
    assert!(refused(&perf(&["--isa", "portable"])).contains("--isa"));

    let plan = |more: &[&str]| ran(&[&["graph", "plan", "-m", &model, "--rows", "1"], more].concat());
    let levels: Value = serde_json::from_str(&ran(&["kernels", "support", "--json"])).unwrap();
    let levels = levels["levels"].as_array().unwrap();
    if levels.iter().filter(|level| level["available"] == true).count() < 2 {
        return;
    }
    let own = plan(&[]);
    assert!(!own.contains("measured"), "{own}");
    let tuned = plan(&["--tuned", &saved]);
    assert!(tuned.contains(" (measured ") && tuned.contains(" µs at m=1, k=2048, n=1408)"), "{tuned}");

    // the lowest instruction set wins
    let lowest = timings.iter().find(|timing| timing["kernel"].as_str().unwrap().starts_with("portable"));
    let lowest = lowest.unwrap()["kernel"].as_str().unwrap();
    assert!(!own.contains(&format!("by {lowest}")), "{own}");
    for timing in file["timings"].as_array_mut().unwrap() {
        timing["micros"] = if timing["kernel"] == lowest { json!(1.0) } else { json!(1000.0) };
    }
    let write = |file: &Value| std::fs::write(&edited, file.to_string()).unwrap();
    write(&file);
    let tuned = plan(&["--tuned", &edited]);
    assert!(tuned.contains(&format!("by {lowest} (measured 1.0 µs, ")), "{tuned}");
    let data: Value = serde_json::from_str(&plan(&["--tuned", &edited, "--json"])).unwrap();
    assert!(data.to_string().contains("\"decided_by\":\"measured 1.0 µs, "), "{data}");
    let drawn = plan(&["--tuned", &edited, "--format", "drawing-json"]);
    assert!(drawn.contains("tier portable: measured 1.0 µs, "), "the drawing does not say why");
    let run = |more: &[&str]| {
        let words = ["run", "-m", &model, "-t", "2", "--temp", "0", "-n", "24", "--draft", "none", "A fox"];
        ran(&[&words, more].concat())
    };
    assert_eq!(run(&["--tuned", &edited]), run(&[]));
    let notes = |more: &[&str]| {
        let words = ["run", "-m", &model, "-n", "1", "A fox"];
        let output = latent(&[&words, more].concat()).output().unwrap();
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let said = notes(&["--tuned", &edited]);
    assert!(said.contains(" kernels were chosen by measured times"), "{said}");
    // a portable kernel that was measured to be the fastest is not warned of
    assert_eq!(said.contains("portable code"), notes(&[]).contains("portable code"), "{said}");
    let logits =
        |more: &[&str]| ran(&[&["logits", "-m", &model, "--tokens", "1,2,3", "-b", "1"], more].concat());
    assert_eq!(logits(&["--tuned", &edited]), logits(&[]));

    // times of another format decide nothing, which is said
    let mut other = file.clone();
    for timing in other["timings"].as_array_mut().unwrap() {
        timing["weight"] = json!("Q2_K");
    }
    write(&other);
    let said = notes(&["--tuned", &edited]);
    assert!(said.contains("the file has no times for this model's kernels"), "{said}");

    // nothing is chosen on other devices and by the C library; other machines have other times
    let reference = refused(&["run", "-m", &model, "--tuned", &edited, "--device", "reference", "x"]);
    assert!(reference.contains("--tuned is for CPU kernels"), "{reference}");
    let emit = ["graph", "-m", &model, "--tuned", &edited, "--emit-c", &path("c")];
    assert!(refused(&emit).contains("--emit-c does not support --tuned"));
    file["cpu"] = json!("another CPU");
    write(&file);
    let error = refused(&["run", "-m", &model, "--tuned", &edited, "x"]);
    assert!(
        error.contains("measured on another CPU") && error.contains("latent kernels perf --save FILE"),
        "{error}"
    );
    std::fs::write(&edited, "{").unwrap();
    assert!(refused(&["graph", "-m", &model, "--tuned", &edited]).contains("not valid JSON"));
}
