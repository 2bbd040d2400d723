//! Models whose numbers are none: every command that looks at them says so.

use crate::support::latent;
use serde_json::Value;
use std::path::Path;

/// A model of one layer, of which the tensors of these names hold NaN alone.
fn model(folder: &Path, kind: &str, broken: &[&str]) -> String {
    let path = folder.join("nan.gguf");
    let name = path.display().to_string();
    latent(&["make-model", "--force", "tiny-dense", kind, &name, "--layers", "1"]).assert().success();
    let checkpoint = latent_formats::Checkpoint::open(&path).unwrap();
    let mut bytes = std::fs::read(&path).unwrap();
    for tensor in checkpoint.tensors().iter().filter(|t| broken.iter().any(|word| t.name.contains(word))) {
        let data = checkpoint.tensor(&tensor.name).unwrap().data;
        let at = bytes.windows(data.len()).rposition(|window| window == data).unwrap();
        bytes[at..at + data.len()].fill(0xff);
    }
    drop(checkpoint);
    std::fs::write(&path, bytes).unwrap();
    name
}

fn run(args: &[&str], code: i32) -> (String, String) {
    let output = latent(args).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert_eq!(output.status.code(), Some(code), "{args:?}: {}", text(&output.stderr));
    (text(&output.stdout), text(&output.stderr))
}

#[test]
fn two_nan_sides_do_not_agree() {
    let folder = tempfile::tempdir().unwrap();
    let model = model(folder.path(), "F32", &["output_norm"]);
    let both = ["diff", "-m", &model, "--a", "precision=exact", "--b", "precision=exact", "--threads", "1"];
    let (text, _) = run(&both, 1);
    assert!(!text.contains("agree in every bit"), "{text}");
    assert!(text.contains("NaN or infinite on both sides"), "{text}");
    assert!(text.replace("\n ", "").contains("final_norm"), "the first value that is none: {text}");
    let (json, _) = run(&[&both[..], &["--json"]].concat(), 1);
    let report: Value = serde_json::from_str(&json).unwrap();
    let points = report["report"]["points"].as_array().unwrap();
    let sum: u64 = points.iter().map(|point| point["not_finite"].as_u64().unwrap()).sum();
    assert!(sum > 0 && report["report"]["not_finite"] == sum && report["first"].is_null());
    assert_eq!(points.last().unwrap()["verdict"], "not_finite");
    assert_eq!(points[0]["verdict"], "same");
}

#[test]
fn nan_logits_are_counted_and_fail() {
    let folder = tempfile::tempdir().unwrap();
    let model = model(folder.path(), "F32", &["output_norm"]);
    let args = ["logits", "-m", &model, "--tokens", "1,2", "--rows", "all"];
    let (json, said) = run(&[&args[..], &["--json"]].concat(), 1);
    let found: Value = serde_json::from_str(&json).unwrap();
    let all = 2 * found["vocab_size"].as_u64().unwrap();
    assert!(found["not_finite"] == all && found["logits"][0][0].is_null());
    assert!(said.contains(&format!("{all} of {all} logits are NaN or infinite")), "{said}");
    assert!(run(&args, 1).1.contains("are NaN or infinite"));
    let (json, _) = run(&["logits", "--json", "--tokens", "1,2"], 0);
    assert_eq!(serde_json::from_str::<Value>(&json).unwrap()["not_finite"], 0);
    let base = folder.path().join("base").display().to_string();
    let tokens = ["--tokens", "1,2,3,4,5,6,7,8", "--kl-chunk", "8", "--kl-divergence-base", &base];
    let (_, said) = run(&[&["logits", "-m", &model], &tokens[..]].concat(), 1);
    assert!(said.contains("nothing was written") && !Path::new(&base).exists(), "{said}");
}

#[test]
fn packing_warns_about_nan_weights() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("nan.latent").display().to_string();
    for (kind, broken) in
        [("Q8_0", "ffn_down"), ("F32", "attn_output"), ("BF16", "ffn_up"), ("Q4_K", "output_norm")]
    {
        let model = model(folder.path(), kind, &[broken]);
        let pack = ["pack", "--force", "-t", "1", "-m", &model, "-o", &out];
        let (_, said) = run(&pack, 0);
        let warned: Vec<&str> = said.lines().filter(|line| line.starts_with("warning: tensor")).collect();
        assert!(warned.len() == 1 && warned[0].contains(broken), "{kind}: {said}");
    }
    let whole = model(folder.path(), "Q4_K", &[]);
    let (_, said) = run(&["pack", "--force", "-t", "1", "-m", &whole, "-o", &out], 0);
    assert!(!said.contains("warning"), "{said}");
}
