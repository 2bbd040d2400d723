//! Commands with `--device gpu`. In a build without the GPU backend they say so; where no driver
//! offers an adapter, a test says that it was skipped, and `REQUIRE_GPU=1` makes that an error.
#![allow(missing_docs, clippy::print_stdout, reason = "tests, and what is skipped is named")]

use crate::support::latent;
use serde_json::Value;

/// The output of a command.
fn printed(args: &[&str]) -> String {
    let output = latent(args).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "latent {}: {errors}", args.join(" "));
    String::from_utf8(output.stdout).unwrap()
}

fn json(args: &[&str]) -> Value {
    serde_json::from_str(&printed(args)).unwrap()
}

/// The error of a failed command.
fn refused(args: &[&str]) -> String {
    let output = latent(args).output().unwrap();
    assert!(!output.status.success(), "latent {}", args.join(" "));
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Whether an adapter is available.
fn there_is_one() -> bool {
    if !cfg!(feature = "gpu") {
        return false;
    }
    let there = printed(&["devices"]).contains("\ngpu:0 ");
    assert!(there || std::env::var_os("REQUIRE_GPU").is_none(), "no adapter");
    if !there {
        println!("SKIPPED: no adapter");
    }
    there
}

#[test]
fn a_build_without_the_backend_says_so_in_every_command() {
    if cfg!(feature = "gpu") {
        return;
    }
    for args in [
        "kernels test --device gpu",
        "kernels perf --device gpu:1",
        "kernels support --device gpu",
        "profile --device gpu",
        "bench --device gpu",
        "diff --device gpu",
        "run --device gpu Hi",
        "graph --device gpu",
    ] {
        let args: Vec<&str> = args.split(' ').collect();
        let error = refused(&args);
        assert!(error.contains("the feature gpu") && error.contains("--device cpu"), "{args:?}: {error}");
    }
}

#[test]
fn the_reference_has_no_kernels_to_test() {
    let error = refused(&["kernels", "test", "--device", "reference"]);
    assert!(error.contains("no kernels") && error.contains("gpu:N"), "{error}");
}

#[test]
fn kernels_of_an_adapter_are_tested_measured_and_listed() {
    if !there_is_one() {
        return;
    }
    let text = printed(&["kernels", "test", "--device", "gpu", "q4_k", "m=7"]);
    assert!(text.contains("gpu_gemv") && text.contains(" passed, 0 failed"), "{text}");
    let test = json(&["kernels", "test", "--device", "gpu", "w4_fused", "fp4", "--json"]);
    assert_eq!(test["failed"], 0);
    assert!(test["passed"].as_u64().unwrap() > 0, "{test}");

    let perf = ["kernels", "perf", "--device", "gpu", "linear_t(q4_0", "--millis", "1", "--memory", "1"];
    let text = printed(&perf);
    assert!(text.contains("gpu_transposed") && text.contains("limits, "), "{text}");
    let perf = json(&[&perf[..], &["--json"]].concat());
    let measured = &perf["measurements"][0];
    // the limit that allows less; which of the two that is depends on what else the machine does
    // while they are measured
    let of = |rate: &str, limit: &str| {
        measured[rate].as_f64().unwrap() / measured["limits"][limit].as_f64().unwrap()
    };
    let (memory, arithmetic) = (of("gb_per_s", "read_bandwidth"), of("gflop_per_s", "f32_macs") / 2.0);
    assert_eq!(measured["bound"], if memory >= arithmetic { "memory" } else { "arithmetic" }, "{measured}");
    let share = measured["of_limit"].as_f64().unwrap();
    // other tests run concurrently, while the limits are measured or while the kernel is
    assert!(share > 0.0 && share.is_finite(), "{measured}");
    assert!(measured["limits"]["f32_macs"].as_f64().unwrap() > 0.0, "{measured}");

    let support = json(&["kernels", "support", "--device", "gpu", "--json"]);
    assert_eq!(support["backend"], "gpu");
    let operations = support["operations"].as_array().unwrap();
    let of = |format: &str| {
        let row = |row: &&Value| (&row["operation"], &row["format"]) == (&"linear".into(), &format.into());
        let row = operations.iter().filter(row).find(|row| row["layout"] == "rows").unwrap();
        row["kernels"].as_array().unwrap().len()
    };
    for format in ["F32", "Q4_0", "Q4_K", "Q6_K", "MXFP4", "IQ2_XXS"] {
        assert!(of(format) >= 2, "{format}");
    }
    let text = printed(&["kernels", "support", "--device", "gpu"]);
    assert!(text.contains("gpu_gemm") && text.contains("features: "), "{text}");
}

#[test]
fn kernels_of_an_adapter_are_counted_without_running() {
    let error = refused(&["kernels", "count"]);
    assert!(error.contains("--device gpu") && error.contains("latent kernels perf"), "{error}");
    if !there_is_one() {
        return;
    }
    let args = ["kernels", "count", "--device", "gpu", "linear(q4_k, rows", "k=7168"];
    let counts = json(&[&args[..], &["--json"]].concat());
    let counts = counts["counts"].as_array().unwrap();
    let of = |rows: &str| {
        let case = |count: &&Value| count["case"].as_str().unwrap().contains(rows);
        counts.iter().find(case).unwrap_or_else(|| panic!("{rows}"))
    };
    for rows in ["m=1,", "m=8,", "m=512,"] {
        let (count, call) = (of(rows), &of(rows)["calls"][0]);
        assert_eq!(count["bytes"].as_f64().unwrap(), 7168.0 * 2048.0 * 4.5 / 8.0);
        assert!(
            call["workgroups"].as_u64().unwrap() > 0 && call["threads"].as_u64().unwrap() >= 32,
            "{call}"
        );
        assert!(call["memory"].as_u64().unwrap() > 0, "{call}");
        assert_eq!(call["accesses"].as_u64() > Some(0), call["worst_conflict"].as_u64() > Some(0), "{call}");
    }
    // Inputs and weights pass through workgroup memory there, whatever the variant.
    assert!(of("m=512,")["calls"][0]["accesses"].as_u64().unwrap() > 10);
    assert_eq!(of("m=512,")["flops"].as_f64().unwrap(), 2.0 * 512.0 * 7168.0 * 2048.0);
    let text = printed(&args);
    assert!(
        text.contains(" %") && text.contains(" of ") && text.contains("capabilities 8.9 and 9.0"),
        "{text}"
    );
}

/// Mesa's driver for AMD compiles for GPUs that are not installed, and reports what it has
/// compiled.
#[test]
fn what_a_driver_compiles_is_counted_without_a_gpu() {
    const DRIVER: &str = "/usr/share/vulkan/icd.d/radeon_icd.x86_64.json";
    if !cfg!(feature = "gpu") || !std::path::Path::new(DRIVER).exists() {
        println!("SKIPPED: no driver for AMD's GPUs");
        return;
    }
    // RDNA 2: 32 or 64 lanes, no cooperative matrices
    let output = |args: &[&str]| {
        let mut command = latent(args);
        command.env("VK_ICD_FILENAMES", DRIVER).env("VK_DRIVER_FILES", DRIVER);
        command.env("RADV_FORCE_FAMILY", "navi21").output().unwrap()
    };
    if !String::from_utf8_lossy(&output(&["devices"]).stdout).contains("gpu:0") {
        println!("SKIPPED: this driver for AMD's GPUs stands in for none (Mesa 26 and later)");
        return;
    }
    let counted = |args: &[&str]| {
        let output = output(args);
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{errors}");
        String::from_utf8(output.stdout).unwrap()
    };
    let args = ["kernels", "count", "--device", "gpu", "q4_k"];
    let counts: Value = serde_json::from_str(&counted(&[&args[..], &["--json"]].concat())).unwrap();
    let counts = counts["counts"].as_array().unwrap();
    let calls: Vec<&Value> = counts.iter().flat_map(|count| count["calls"].as_array().unwrap()).collect();
    assert!(calls.len() > 20, "{}", calls.len());
    for call in &calls {
        assert!(call["instructions"].as_u64() > Some(10) && call["registers"].as_u64() > Some(0), "{call}");
        assert_eq!(call["spilled"].as_u64(), Some(0), "registers go to memory: {call}");
    }
    let uses = |word: &str| calls.iter().any(|call| call["kernel"].as_str().unwrap().contains(word));
    assert!(["subgroups", "int8", "f16", "gemm64"].into_iter().all(uses));
    let text = counted(&[&args[..], &["linear(q4_k, rows"]].concat());
    assert!(text.contains("instr.") && text.contains("registers per thread"), "{text}");
    // Attention, too, in the plan of a model.
    let plan = counted(&["graph", "plan", "--device", "gpu", "--rows", "1"]);
    let attend = plan.lines().find(|line| line.contains("attend ×")).unwrap_or_else(|| panic!("{plan}"));
    assert!(attend.contains(" instructions, ") && attend.contains(" registers"), "{attend}");
}

#[test]
fn what_only_a_cpu_has_is_refused() {
    if !there_is_one() {
        return;
    }
    let error = refused(&["kernels", "test", "--device", "gpu", "--isa", "portable"]);
    assert!(error.contains("--isa portable") && error.contains("GPU"), "{error}");
    let error = refused(&["kernels", "perf", "--device", "gpu", "-t", "2"]);
    assert!(error.contains("--threads 2"), "{error}");
    let error = refused(&["kernels", "support", "--device", "gpu:999"]);
    assert!(error.contains("no adapter 999") && error.contains("latent devices"), "{error}");
}

#[test]
fn a_profile_names_its_clock() {
    if !there_is_one() {
        return;
    }
    let profile = json(&["profile", "--device", "gpu", "-p", "4", "-n", "1", "--json"]);
    let timestamps = json(&["devices", "--json"])[0]["offers"].to_string().contains("timestamps: yes");
    let clock = if timestamps { "timestamps" } else { "one_by_one" };
    for step in profile["steps"].as_array().unwrap() {
        assert_eq!(step["clock"], clock);
        assert_eq!(step["timeline"]["measured"], false, "a GPU records no threads");
        assert!(!step["timeline"]["slices"].as_array().unwrap().is_empty());
        let phases = step["phases"].as_array().unwrap();
        let share = |phase: &Value| phase["share"].as_f64().unwrap();
        assert!((phases.iter().map(share).sum::<f64>() - 1.0).abs() < 1e-6, "{step}");
        let attends = |phase: &&Value| phase["operations"][0].as_str().unwrap().starts_with("attend_");
        let attention = phases.iter().find(attends).unwrap();
        assert!(
            attention["micros"].as_f64().unwrap() > 0.0 && attention["of_limit"].is_number(),
            "{attention}"
        );
    }
    let text = printed(&["profile", "--device", "gpu", "-p", "0", "-n", "1"]);
    assert!(text.contains("limits of the GPU") && text.contains("timestamps"), "{text}");
    // The CPU's plan has no calls.
    let text = printed(&["profile", "-t", "1", "-p", "0", "-n", "1"]);
    assert!(text.contains("limits of 1 thread") && !text.contains("timestamps"), "{text}");
}

#[test]
fn a_graph_shows_the_calls_that_operations_become() {
    if !there_is_one() {
        return;
    }
    let text = printed(&["graph", "plan", "--device", "gpu"]);
    let lines: Vec<&str> = text.lines().collect();
    // Below each operation.
    let beneath = |word: &str| {
        let at =
            lines.iter().position(|line| line.contains(word)).unwrap_or_else(|| panic!("{word}: {text}"));
        lines[at + 1]
    };
    assert!(
        beneath("L0  linear ").starts_with("      gpu: ") && beneath("L0  linear ").contains(" workgroup"),
        "{text}"
    );
    assert!(text.contains(" bytes of workgroup memory"), "{text}");
    assert!(beneath("embed tokens -> h").starts_with("      gpu: "), "{text}");
    // On a CPU the kernels are functions.
    assert!(!printed(&["graph", "plan"]).contains(" workgroups of "));

    let plan = json(&["graph", "plan", "--device", "gpu:0", "--rows", "64", "--json"]);
    let runs = plan["runs"].as_array().unwrap();
    assert!(runs.len() > 50 && runs.iter().all(|run| run["device"] == "gpu:0"), "{}", runs.len());
    let gemms =
        |run: &&Value| run["kernels"][0]["kernel"].as_str().is_some_and(|name| name.starts_with("gemm"));
    assert!(runs.iter().filter(gemms).count() > 10);

    let drawing = json(&["graph", "--device", "gpu", "--format", "drawing-json", "--batch-size", "32"]);
    assert_eq!(drawing["machine"]["device"], "gpu");
    let blocks = drawing["blocks"].as_array().unwrap().iter();
    let operations: Vec<&Value> = blocks.flat_map(|block| block["operations"].as_array().unwrap()).collect();
    let kernel = |word: &str| {
        let mut of =
            operations.iter().filter(|operation| operation["op"] == word && operation["run"].is_object());
        of.next().unwrap_or_else(|| panic!("{word}"))["run"]["kernels"][0].clone()
    };
    for word in ["embed", "linear", "latent_store", "attend_latent"] {
        assert!(kernel(word)["calls"].as_u64().unwrap() > 0, "{word}");
    }
    assert!(kernel("attend_latent")["memory"].as_u64().unwrap() > 0);
    // Without weights there is still a drawing, and a note about the missing part.
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("config.json");
    let fixture = concat!(env!("CARGO_MANIFEST_DIR"), "/../engine/tests/fixtures/youtu/config.json");
    std::fs::copy(fixture, &config).unwrap();
    let output =
        latent(&["graph", config.to_str().unwrap(), "--device", "gpu", "--format", "svg"]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("no weights"), "{said}");
}

#[test]
fn a_run_on_a_gpu_agrees_with_the_cpu_and_is_measured() {
    if !there_is_one() {
        return;
    }
    let args = ["diff", "-t", "1", "--device", "gpu", "--tokens", "1,2,3,4,5", "--json"];
    let diff = json(&args);
    let said = |side: &str| diff[side].as_str().unwrap();
    assert!(said("a").contains("precision exact") && !said("a").contains("gpu"), "{}", said("a"));
    assert!(said("b").contains(", gpu, "), "{}", said("b"));
    assert!(diff["report"]["points"].as_array().unwrap().len() > 50, "{diff}");
    // Sides by name, and bits equal between two runs.
    let sides =
        ["--a", "precision=exact,device=gpu", "--b", "precision=exact,device=gpu:0", "--tolerance", "0"];
    let same = json(&[&args[..], &sides[..]].concat());
    assert!(said("b").contains("gpu") && same["first"].is_null(), "{}", same["first"]);
    let error = refused(&["diff", "--b", "device=tpu"]);
    assert!(error.contains("device=tpu") && error.contains("gpu:N"), "{error}");

    let bench = json(&["bench", "--device", "gpu", "-p", "8", "-n", "2", "-r", "1", "--json"]);
    assert_eq!(bench[0]["backends"], "GPU", "{bench}");
    let device = json(&["devices", "--json"])[0]["name"].as_str().unwrap().to_owned();
    assert!(bench[0]["device"].as_str().is_some_and(|name| name.starts_with(&device)), "{bench}");
    // No layer is on the GPU, and no limit of it counts.
    let cpu = json(&["bench", "--device", "gpu", "-ngl", "0", "-p", "8", "-n", "2", "-r", "1", "--json"]);
    assert!(cpu[0]["backends"] == "CPU" && cpu[0]["device"].is_null(), "{cpu}");
    let text = printed(&["bench", "--device", "gpu", "-p", "0", "-n", "1", "-r", "1"]);
    assert!(text.contains("limits of the GPU, median of 2 measurements"), "{text}");
}
