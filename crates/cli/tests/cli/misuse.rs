//! Wrong usage: each prints one helpful error and exits with the right code.

use crate::support;
use crate::support::demo;
use assert_cmd::Command;
use latent_formats::gguf::{Writer, WriterValue};

const ERROR: i32 = 1;
const UNSUPPORTED: i32 = 2;
const USAGE: i32 = 64;

fn latent(args: &[&str]) -> Command {
    let mut command = support::latent(args);
    command.timeout(std::time::Duration::from_secs(60));
    command
}

/// Runs a command. The exit code and every word must match, and exactly one line may begin with
/// "error:".
fn refused(command: &mut Command, code: i32, words: &[&str]) {
    let output = command.output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{stderr}");
    for word in words {
        assert!(stderr.contains(word), "no {word:?} in: {stderr}");
    }
    assert_eq!(stderr.lines().filter(|line| line.starts_with("error:")).count(), 1, "{stderr}");
    assert!(!stderr.contains("panicked"), "{stderr}");
}

/// A file in a temporary folder, and the folder.
fn file(name: &str, bytes: &[u8]) -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    std::fs::write(&path, bytes).unwrap();
    let path = path.display().to_string();
    (folder, path)
}

#[test]
fn files_that_are_no_models() {
    refused(
        &mut latent(&["run", "-m", "/no/such/model.gguf", "Hi"]),
        ERROR,
        &["/no/such/model.gguf", "check the path"],
    );
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().display().to_string();
    refused(&mut latent(&["run", "-m", &path, "Hi"]), ERROR, &[&path, "config.json"]);
    for (bytes, word) in [
        (&b"just some notes\nabout models\n"[..], "text file"),
        (b"<!DOCTYPE html><html></html>", "web page"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\n", "git lfs pull"),
        (b"PK\x03\x04rest of a zip", "pickle"),
        (b"", "empty"),
        (b"\x00\x01\x02\x03\x04\x05\x06\x07", "first bytes"),
        (b"GGUF\x00\x00\x00\x03\x00\x00", "big-endian"),
        (b"GGUF\x01\x00\x00\x00\x00\x00", "version 1"),
    ] {
        let (_folder, path) = file("model.gguf", bytes);
        refused(&mut latent(&["inspect", "-m", &path]), ERROR, &[&path, word]);
    }
}

#[test]
fn truncated_files() {
    let whole = std::fs::read(demo()).unwrap();
    for len in [5, 100, 10_000, 30_000, whole.len() / 2, whole.len() - 1] {
        let (_folder, path) = file("cut.gguf", &whole[..len]);
        refused(&mut latent(&["run", "-m", &path, "Hi"]), ERROR, &[&path, "truncated"]);
    }
}

#[test]
fn unsupported_models_have_their_own_exit_code() {
    let mut bytes = Vec::new();
    let mut writer = Writer::new();
    writer.key("general.architecture", WriterValue::String("mamba".into()));
    writer.write(&mut bytes, |_, _| Ok(())).unwrap();
    let (_folder, path) = file("mamba.gguf", &bytes);
    refused(&mut latent(&["run", "-m", &path, "--tokens", "1"]), UNSUPPORTED, &["mamba", "deepseek2"]);
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("config.json"), r#"{"model_type": "gpt_neox"}"#).unwrap();
    let mut header = Vec::new();
    latent_formats::safetensors::Writer::new().write(&mut header, |_, _| Ok(())).unwrap();
    std::fs::write(folder.path().join("model.safetensors"), header).unwrap();
    let path = folder.path().display().to_string();
    refused(&mut latent(&["inspect", "-m", &path]), UNSUPPORTED, &["gpt_neox", "deepseek_v3"]);
}

#[test]
fn folders_that_cannot_be_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().display().to_string();
    std::fs::write(folder.path().join("config.json"), r#"{"model_type": "deepseek_v3"}"#).unwrap();
    std::fs::write(folder.path().join("pytorch_model.bin"), b"x").unwrap();
    refused(&mut latent(&["inspect", "-m", &path]), ERROR, &["pytorch_model.bin", "pickle"]);
    std::fs::write(folder.path().join("config.json"), "{\"model_type\": ").unwrap();
    refused(&mut latent(&["inspect", "-m", &path]), ERROR, &["config.json", "JSON"]);
}

#[test]
fn unconvertible_models() {
    let out = tempfile::tempdir().unwrap();
    let target = out.path().join("new.gguf").display().to_string();
    let converted = |model: &str, code, words: &[&str]| {
        refused(&mut latent(&["convert", model, "-o", &target]), code, words);
        assert!(std::fs::read_dir(out.path()).unwrap().next().is_none(), "{model}");
    };
    converted("/no/such/folder", ERROR, &["/no/such/folder", "check the path"]);
    let whole = std::fs::read(demo()).unwrap();
    let (_folder, path) = file("cut.gguf", &whole[..whole.len() / 2]);
    converted(&path, ERROR, &["cut.gguf", "truncated", "download it again"]);
    let empty = tempfile::tempdir().unwrap();
    converted(&empty.path().display().to_string(), ERROR, &["config.json", ".safetensors"]);
    let fixture = |name: &str| format!("{}/../engine/tests/fixtures/{name}", env!("CARGO_MANIFEST_DIR"));
    let type_of = |model: &str, ty: &str, words: &[&str]| {
        refused(&mut latent(&["convert", "-m", model, "-o", &target, "--type", ty]), USAGE, words);
    };
    type_of(&fixture("plm"), "Q9_9", &["Q9_9"]);
    type_of(&fixture("plm"), "F8_E4M3", &["F8_E4M3", "Q8_0"]);
    type_of(demo().to_str().unwrap(), "Q4_0", &["Q4_0", "BF16"]);
    refused(&mut latent(&["convert"]), USAGE, &["MODEL"]);
}

#[test]
fn wrong_numbers() {
    let quiet = |args: &[&str], code, words: &[&str]| refused(&mut latent(args), code, words);
    quiet(&["run", "--ctx-size", "4x", "Hi"], USAGE, &["--ctx-size", "4k"]);
    quiet(&["run", "--ctx-size", "4", "-q", "Hi, how are you?"], USAGE, &["--ctx-size", "tokens"]);
    quiet(&["run", "-q", "--tokens", "1,99999"], ERROR, &["99999", "1024"]);
    quiet(&["logits", "--json", "--tokens", "1,2", "--rows", "7"], USAGE, &["row 7"]);
    quiet(
        &["logits", "--json", "--tokens", "1,2", "--kl-divergence-base", "/tmp/never-written"],
        USAGE,
        &["--kl-chunk"],
    );
    quiet(&["run", "--temp", "NaN", "Hi"], ERROR, &["temperature"]);
    quiet(&["run", "--top-p", "7", "Hi"], ERROR, &["top_p", "7"]);
    quiet(&["run", "--logit-bias", "x", "Hi"], USAGE, &["ID=BIAS"]);
    quiet(&["graph", "--layers", "5..99"], USAGE, &["5..99"]);
    quiet(&["graph", "circuit", "--format", "dot"], USAGE, &["ir"]);
    quiet(&["make-model", "huge", "F32", "/tmp/never-written.gguf"], ERROR, &["huge", "tiny-v3"]);
    quiet(&["make-model", "tiny-v3", "Q9_9", "/tmp/never-written.gguf"], ERROR, &["Q9_9", "Q4_K"]);
}

#[test]
fn contexts_above_the_limit_are_reduced_and_errors_name_given_flags_only() {
    let text = |args: &[&str], code: i32| {
        let output = latent(args).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{args:?}: {text}");
        text
    };
    let warned = text(&["run", "--ctx-size", "999999", "-n", "1", "Hi"], 0);
    assert!(warned.contains("warning: --ctx-size 999999") && warned.contains("2048"), "{warned}");
    let limit = text(&["run", "-c", "0", "-n", "1", "Hi"], 0);
    assert!(limit.contains("context 2048") && !limit.contains("warning"), "{limit}");
    for (args, expected) in [
        (&["bench", "-d", "0,4096"][..], "-d, -p, -n"),
        (&["bench", "-p", "4k"], "-d, -p, -n"),
        (&["profile", "-d", "4096"], "-d, -p, -n"),
    ] {
        let refused = text(args, USAGE);
        assert!(refused.contains(expected) && !refused.contains("--ctx-size"), "{refused}");
    }
}

#[test]
fn the_first_line_names_the_model_and_verbose_adds_details() {
    let first = |args: &[&str]| {
        let output = latent(args).output().unwrap();
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let demo = demo().display().to_string();
    let own = first(&["run", "-t", "1", "-n", "1", "Hi"]);
    let line = own.lines().next().unwrap();
    assert!(line.starts_with("built-in demo model: ") && line.contains("context 2048; 1 thread"), "{line}");
    assert!(line.len() <= 80 && !own.contains("kernels:"), "{own}");
    let given = first(&["run", &demo, "-t", "1", "-n", "1", "-v", "Hi"]);
    assert!(
        !given.contains("built-in") && given.contains("kernels: ") && given.contains("ready in"),
        "{given}"
    );
    let version = latent(&["version"]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&version.stdout), concat!("latent ", env!("CARGO_PKG_VERSION"), "\n"));
}

#[test]
fn wrong_flags() {
    for (args, word) in [
        (&["run", "--no-such-flag"][..], "--no-such-flag"),
        (&["fly"], "fly"),
        (&["run", "--isa", "sse9", "Hi"], "avx512"),
        (&["run", "--mla", "quick", "Hi"], "absorbed"),
        (&["run", "--precision", "double", "Hi"], "exact"),
        (&["run", "--cache-type", "q5_1", "Hi"], "bf16"),
        (&["run", "-t", "0", "Hi"], "0"),
        (&["logits"], "--tokens"),
        (&["run", "--tokens", "1", "text"], "cannot be used with"),
    ] {
        refused(&mut latent(args), USAGE, &[word]);
    }
    refused(&mut latent(&["run", "--expanded-cache", "Hi"]), ERROR, &["--mla naive"]);
    let codes = ["run", "--mla", "naive", "--expanded-cache", "--cache-type", "int8", "Hi"];
    refused(&mut latent(&codes), ERROR, &["cache of int8 supports latents only", "f16"]);
    refused(&mut latent(&["run", "  "]), USAGE, &["empty"]);
    refused(latent(&["run"]).write_stdin(vec![0xff, 0xfe, 0x41]), USAGE, &["UTF-8"]);
}

#[test]
fn words_that_no_kernel_has() {
    for command in ["test", "perf", "support"] {
        refused(&mut latent(&["kernels", command, "nosuch"]), USAGE, &["nosuch", "latent kernels support"]);
    }
    refused(&mut latent(&["kernels", "test", "--isa", "avx9"]), USAGE, &["avx9", "portable"]);
}

#[test]
fn files_that_cannot_be_written_or_restored() {
    let (_folder, other) = file("other.kv", b"not a saved cache at all, but long enough");
    refused(&mut latent(&["run", "-q", "-n", "1", "--restore", &other, "Hi"]), ERROR, &[&other, "LATNTKV1"]);
    refused(
        &mut latent(&["run", "-q", "-n", "1", "--save", "/no/such/folder/x.kv", "Hi"]),
        ERROR,
        &["/no/such/folder/x.kv"],
    );
    refused(&mut latent(&["man", "/proc/none"]), ERROR, &["/proc/none"]);
    let folder = tempfile::tempdir().unwrap();
    let saved = folder.path().join("saved.kv").display().to_string();
    latent(&["run", "-q", "-n", "1", "--save", &saved, "Hi"]).assert().success();
    let small = folder.path().join("small.gguf").display().to_string();
    latent(&["make-model", "tiny-dense", "Q8_0", &small, "--layers", "1"]).assert().success();
    let args = ["run", "-q", "-m", &small, "--tokens", "1", "-n", "1", "--restore", &saved];
    refused(&mut latent(&args), ERROR, &[&saved, "another model"]);
}

#[cfg(unix)]
#[test]
fn an_unreadable_file() {
    use std::os::unix::fs::PermissionsExt;
    let (_folder, path) = file("secret.gguf", b"GGUF");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o000)).unwrap();
    if std::fs::File::open(&path).is_ok() {
        return; // the superuser reads everything
    }
    refused(&mut latent(&["inspect", "-m", &path]), ERROR, &[&path, "permissions"]);
}

/// A prompt that cannot fit is refused by its length, before it is tokenized and before weights are
/// loaded.
#[test]
fn prompts_that_cannot_fit_are_refused_by_their_length() {
    let model = demo().display().to_string();
    let long = "the quick brown fox ".repeat(1_500_000);
    for raw in [&["--raw"][..], &[]] {
        let mut command = latent(&["run", "--ctx-size", "64", "-m", &model]);
        command.args(raw).write_stdin(long.clone());
        refused(&mut command, USAGE, &["bytes, more than 63 tokens", "the context holds 64"]);
    }
    let words = ["20000 bytes", "more than 63 tokens", "the context holds 64", "--ctx-size up to"];
    for raw in [&["--raw"][..], &[]] {
        let mut command = latent(&["run", "--ctx-size", "64", "-m", &model]);
        refused(command.args(raw).arg("the quick brown fox ".repeat(1000)), USAGE, &words[1..]);
    }
    let mut command = latent(&["run", "--ctx-size", "64", "--raw", "-m", &model]);
    refused(command.arg("the quick brown fox ".repeat(1000)), USAGE, &words);
}

#[test]
fn partitions_are_refused_by_commands_without_ranks() {
    for args in
        [&["inspect"][..], &["check"], &["verify"], &["graph", "circuit"], &["dump", "--tokens", "1", "out"]]
    {
        let output = latent(args).args(["--partition", "pipeline=2"]).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        let named = format!(
            "`latent {}` works on the whole model: omit it",
            args[..args.len().min(if args[0] == "graph" { 2 } else { 1 })].join(" ")
        );
        assert!(output.status.code() == Some(64) && stderr.contains(&named), "{args:?}: {stderr}");
    }
}

#[test]
fn a_ranks_plan_is_drawn_with_its_collectives() {
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("page.html").display().to_string();
    let svg = |rank: &str, partition: &str| {
        let args = ["graph", "plan", "--format", "svg", "--partition", partition, "--rank", rank];
        let output = latent(&args).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let (first, last) = (svg("0", "pipeline=2"), svg("1", "pipeline=2"));
    assert!(
        first.contains("send_rows") && first.contains("receive_rows") && first.contains("To another rank")
    );
    assert!(last.contains("From another rank") && !last.contains("embed"));
    assert!(svg("1", "tensor=2").contains("all_reduce"));
    let output =
        latent(&["graph", "--html", &page, "--partition", "tensor=2", "--rank", "1"]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = std::fs::read_to_string(&page).unwrap();
    assert!(text.contains("all_reduce") && text.contains("insert_collectives"));
    let output = latent(&["graph", "plan", "--format", "svg", "--partition", "tensor=2", "--rank", "2"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(64));
}
