//! Every command with a model of which a GPU has the last layers. Built with the feature `gpu`;
//! where no driver offers an adapter, the test says that it was skipped.
#![allow(missing_docs, clippy::print_stdout, reason = "tests, and what is skipped is named")]

use crate::support::{demo, latent};

/// The output of a command on both streams.
fn output(args: &[&str]) -> (String, String) {
    let output = latent(args).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    let (out, err) = (text(output.stdout), text(output.stderr));
    assert!(output.status.success(), "{args:?}: {err}");
    (out, err)
}

#[test]
fn every_command_takes_layers_of_a_gpu() {
    if latent_backends::gpu_devices().is_empty() && std::env::var_os("REQUIRE_GPU").is_none() {
        println!("SKIPPED: no adapter");
        return;
    }
    let on =
        |layers: &'static str| ["-v", "--device", "gpu", "-ngl", layers, "-c", "256", "--precision", "exact"];
    let run =
        |more: &[&str]| output(&[&["run", "--temp", "0", "-n", "12", "Once upon a time"], more].concat());
    let (expected, _) = run(&["--precision", "exact"]);
    for (layers, said) in [
        ("1", "gpu for the output, "),
        ("3", "gpu for 2 of "),
        ("all", "kernels: gpu\n"),
        ("auto", "kernels: gpu\n"),
        ("0", " with "),
    ] {
        let (text, notes) = run(&on(layers));
        assert_eq!(text, expected, "{layers}");
        assert!(notes.contains(said), "{layers}: {notes}");
    }
    let small = ["-p", "8", "-n", "2"];
    let (bench, _) = output(&[&["bench", "-r", "1"], &small[..], &on("3")].concat());
    assert!(bench.contains("t/s"), "{bench}");
    let (profile, _) = output(&[&["profile"], &small[..], &on("3")].concat());
    assert!(profile.contains("linear head") && profile.contains("L0–3"), "{profile}");
    let file = demo().display().to_string();
    let (logits, _) =
        output(&[&["logits", "-m", &file, "--tokens", "1,2,3", "--json"], &on("2")[..]].concat());
    assert!(logits.contains("\"not_finite\":0") || logits.contains("\"not_finite\": 0"), "{logits}");
    let mut chat = latent(&[&["chat", "--temp", "0", "-n", "4"], &on("2")[..]].concat());
    let answered = chat.write_stdin("Hi\n").output().unwrap();
    assert!(answered.status.success(), "{}", String::from_utf8_lossy(&answered.stderr));
    let refused =
        latent(&[&["dump", "--tokens", "1,2", "x.safetensors"], &on("2")[1..]].concat()).output().unwrap();
    let refused = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(refused.contains("layers on two devices are not recorded"), "{refused}");
}
