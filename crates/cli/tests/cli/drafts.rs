//! `--draft mtp` on the command line.

use crate::support::latent;
use serde_json::Value;

fn json(args: &[&str]) -> Value {
    let output = latent(args).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

const QUESTION: &str = "Tell me a story about a fox and a lantern.";

#[test]
fn drafts_are_counted_and_do_not_change_the_answer() {
    let ask = |more: &[&str]| {
        json(&[&["run", QUESTION, "--json", "-t", "2", "--seed", "5", "-n", "60"], more].concat())
    };
    let (without, with) = (ask(&[]), ask(&["--draft", "mtp"]));
    assert_eq!(with["tokens"], without["tokens"]);
    assert!(without["drafts"].is_null());
    let count = |key: &str| with["drafts"][key].as_u64().unwrap();
    assert!(count("accepted") > 10 && count("accepted") <= count("drafted"), "{}", with["drafts"]);
    let spoken = latent(&["run", QUESTION, "-n", "30", "--draft", "mtp"]).output().unwrap();
    let noted = String::from_utf8(spoken.stderr).unwrap();
    assert!(noted.contains("drafts accepted"), "{noted}");
}

#[test]
fn a_conversation_is_the_same_with_drafts() {
    let chat = |more: &[&str]| {
        let args = [&["chat", "-q", "-t", "2", "--temp", "0", "-n", "40"], more].concat();
        let output = latent(&args).write_stdin("Hello!\nWho are you?\n").output().unwrap();
        assert!(output.status.success());
        String::from_utf8(output.stdout).unwrap()
    };
    assert_eq!(chat(&["--draft", "mtp"]), chat(&[]));
}

#[test]
fn bench_measures_drafts_and_profile_shows_their_steps() {
    let bench = json(&["bench", "-t", "2", "-p", "0", "-n", "2", "-r", "1", "--draft", "mtp", "--json"]);
    let drafts = bench.as_array().unwrap().last().unwrap();
    assert_eq!(drafts["test"], "drafts");
    let number = |key: &str| drafts[key].as_f64().unwrap();
    assert!((number("acceptance") - 224.0 / 248.0).abs() <= 0.03, "{drafts}");
    assert!(number("gain") > 0.0 && number("two_rows_cost") > 0.5 && number("mtp_ms") > 0.0, "{drafts}");
    let table =
        latent(&["bench", "-t", "2", "-p", "0", "-n", "2", "-r", "1", "--draft", "mtp"]).output().unwrap();
    let table = String::from_utf8(table.stdout).unwrap();
    assert!(table.contains("| drafts | accepted |") && table.contains("gain"), "{table}");
    let profile = json(&["profile", "-t", "2", "-p", "20", "-n", "2", "--draft", "mtp", "--json"]);
    let steps = profile["steps"].as_array().unwrap();
    let rows: Vec<u64> = steps.iter().map(|step| step["rows"].as_u64().unwrap()).collect();
    assert_eq!(rows, [1, 2, 1, 20]);
    assert_eq!(steps[2]["mtp"], true);
    for step in steps {
        assert_eq!(
            step["timeline"]["measured"], true,
            "the timeline is of one step: {}",
            step["timeline"]["title"]
        );
    }
    let concat = |step: &Value| {
        step["phases"].as_array().unwrap().iter().any(|phase| phase.to_string().contains("concat"))
    };
    assert_eq!(steps.iter().map(concat).collect::<Vec<_>>(), [false, false, true, true]);
}

#[test]
fn missing_parts_for_drafts_are_reported() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tiny.gguf");
    let path = path.to_str().unwrap();
    assert!(
        latent(&["make-model", "tiny-v3", "F32", path, "--layers", "2"]).output().unwrap().status.success()
    );
    let refused = latent(&["run", "-m", path, "--tokens", "1,2", "--draft", "mtp"]).output().unwrap();
    let message = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(refused.status.code(), Some(1));
    assert!(
        message.contains("no tensors of an MTP layer") && message.contains("omit --draft mtp"),
        "{message}"
    );
    let refused = latent(&["run", "--draft", "eagle", "Hi"]).output().unwrap();
    assert_eq!(refused.status.code(), Some(64));
    assert!(String::from_utf8(refused.stderr).unwrap().contains("expected none, ngram, mtp or all"));
    // A partial layer.
    let part = folder.path().join("part");
    let part = part.to_str().unwrap();
    assert!(
        latent(&["make-model", "tiny-v3", "F32", part, "--layers", "2", "--mtp"])
            .output()
            .unwrap()
            .status
            .success()
    );
    let file = folder.path().join("part/model.safetensors");
    let mut bytes = std::fs::read(&file).unwrap();
    let name = b"model.layers.2.hnorm.weight";
    let at = bytes.windows(name.len()).position(|window| window == name).unwrap();
    bytes[at + 15] = b'x';
    std::fs::write(&file, bytes).unwrap();
    let refused = latent(&["verify", "-m", part, "--draft", "mtp"]).output().unwrap();
    let message = [refused.stdout, refused.stderr].concat();
    let message = String::from_utf8(message).unwrap();
    assert!(!refused.status.success() && message.contains("model.layers.2.hnorm.weight"), "{message}");
    assert!(
        latent(&["verify", "-m", part]).output().unwrap().status.success(),
        "it is not run without drafts"
    );
}

#[test]
fn the_mtp_layer_is_verified_printed_and_drawn() {
    let print = |args: &[&str]| {
        let output = latent(args).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let plan = print(&["graph", "plan", "--draft", "mtp"]);
    assert!(plan.contains("concat") && plan.contains("mtp_projection") && plan.contains("logits"), "{plan}");
    assert!(print(&["graph", "plan", "--draft", "mtp", "--format", "svg"]).contains("concat"));
    assert!(!print(&["graph", "plan"]).contains("concat"));
    print(&["verify", "--draft", "mtp"]);
    assert!(print(&["inspect"]).contains("it drafts with --draft mtp"));
}
