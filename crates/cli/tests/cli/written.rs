//! Files that commands write: what they refuse, what is left after a failure, and several writers
//! at once.

use crate::support::{demo, latent, program};
use std::os::unix::fs::{FileTypeExt, symlink};
use std::path::Path;
use std::process::{Command, Output};

/// Every command that writes a file, which is to be called `{}`; the model is `{m}`, and `{f}` a
/// folder of one.
const WRITERS: [&str; 10] = [
    "run -q -n 2 -m {m} --save {} Hi",
    "dump --force -m {m} --tokens 1,2,3 {}",
    "graph --force -m {m} --html {}",
    "pack --force -t 1 -m {m} -o {}",
    "imatrix --force -t 1 -m {m} --chunk-size 8 --chunks 1 -f Cargo.toml -o {}",
    "quantize --force -t 1 -m {m} --allow-requantize -o {} F16",
    "logits --force -m {m} --tokens 1,2,3,4,5,6,7,8 --kl-chunk 8 --kl-divergence-base {}",
    "convert --force -m {f} -o {}",
    "make-model --force tiny-dense F32 --layers 1 {}",
    "make-model --force tiny-dense F32 --layers 1 --header-only {}",
];

/// A folder of safetensors.
const FIXTURE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../engine/tests/fixtures/plm");

fn words(writer: &str, model: &str, target: &Path) -> Vec<String> {
    let target = target.display().to_string();
    writer
        .split(' ')
        .map(|word| word.replace("{m}", model).replace("{f}", FIXTURE).replace("{}", &target))
        .collect()
}

fn run(words: &[String]) -> Output {
    latent(&words.iter().map(String::as_str).collect::<Vec<_>>()).output().unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Names in a folder, sorted.
fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    let mut names: Vec<String> =
        entries.map(|e| e.unwrap().file_name().to_string_lossy().into_owned()).collect();
    names.sort_unstable();
    names
}

/// A folder with a copy of the demo model.
fn folder() -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("model.gguf");
    std::fs::copy(demo(), &model).unwrap();
    let model = model.display().to_string();
    (folder, model)
}

#[test]
fn outputs_refuse_links_special_files_and_the_model() {
    let (folder, model) = folder();
    let at = |name: &str| folder.path().join(name);
    let whole = std::fs::read(&model).unwrap();
    std::fs::write(at("victim"), b"precious").unwrap();
    // make-model writes a file where the name ends so
    symlink(at("victim"), at("link.gguf")).unwrap();
    assert!(Command::new("mkfifo").arg(at("pipe.gguf")).status().unwrap().success());
    std::fs::create_dir(at("folder.gguf")).unwrap();
    std::fs::hard_link(&model, at("hard.gguf")).unwrap();
    let before = names(folder.path());
    for writer in WRITERS {
        let mut targets =
            vec![("link.gguf", "symbolic link"), ("pipe.gguf", "a pipe"), ("folder.gguf", "a folder")];
        if writer.contains("{m}") {
            targets.push(("model.gguf", "the model itself"));
            targets.push(("hard.gguf", "the model itself"));
        }
        for (target, word) in targets {
            let output = run(&words(writer, &model, &at(target)));
            let said = stderr(&output);
            assert_eq!(output.status.code(), Some(1), "{writer} {target}: {said}");
            assert!(said.contains(word) && said.contains(target), "{writer} {target}: {said}");
        }
        assert_eq!(names(folder.path()), before, "{writer}");
    }
    assert_eq!(std::fs::read(at("victim")).unwrap(), b"precious");
    assert!(std::fs::symlink_metadata(at("link.gguf")).unwrap().is_symlink());
    assert!(std::fs::symlink_metadata(at("pipe.gguf")).unwrap().file_type().is_fifo());
    assert!(std::fs::read(&model).unwrap() == whole);
    for device in ["/dev/null", "/dev/full"] {
        let saved = latent(&["run", "-q", "-n", "1", "--save", device, "Hi"]).output().unwrap();
        assert!(saved.status.code() == Some(1) && stderr(&saved).contains("a device"), "{}", stderr(&saved));
    }
}

/// One rule for all commands; files that a run continues are exempt.
#[test]
fn an_existing_file_is_replaced_only_with_force() {
    let (folder, model) = folder();
    let at = |name: &str| folder.path().join(name);
    let target = at("old.gguf");
    std::fs::write(at("text"), "The owl asked the fox where the light came from. ".repeat(20)).unwrap();
    let text = at("text").display().to_string();
    let evaluate = "eval perplexity -m {m} --ctx-size 32 --chunks 1";
    let further = [
        format!("{evaluate} --force {text} --html {{}}"),
        format!("{evaluate} --force {text} --kl-divergence-base {{}}"),
        "eval weights --force -m {m} --base-model {m} --html {}".into(),
        "bench --force -m {m} -p 4 -n 0 -r 1 --save {}".into(),
    ];
    let (continued, writers) = WRITERS.split_first().unwrap();
    for writer in writers.iter().map(ToString::to_string).chain(further) {
        std::fs::write(&target, b"precious").unwrap();
        let refused = run(&words(&writer.replace(" --force", ""), &model, &target));
        let said = stderr(&refused);
        assert_eq!(refused.status.code(), Some(1), "{writer}: {said}");
        assert!(said.contains("old.gguf") && said.contains("--force"), "{writer}: {said}");
        assert_eq!(std::fs::read(&target).unwrap(), b"precious", "{writer}");
        let output = run(&words(&writer, &model, &target));
        assert!(output.status.success(), "{writer}: {}", stderr(&output));
        assert_ne!(std::fs::read(&target).unwrap(), b"precious", "{writer}");
    }
    for _ in 0..2 {
        assert!(run(&words(continued, &model, &at("new.kv"))).status.success());
    }
    // shards, folders, pages
    for writer in [
        "make-model --force tiny-dense F32 --layers 1 --shards 2 {}.gguf",
        "make-model --force tiny-dense F32 --layers 1 {}",
        "man --force {}",
        "convert --force -m {m} -o {}.converted",
    ] {
        let plain = words(&writer.replace(" --force", ""), &model, &at("made"));
        assert!(run(&plain).status.success(), "{writer}");
        let again = run(&plain);
        assert!(
            again.status.code() == Some(1) && stderr(&again).contains("--force"),
            "{writer}: {}",
            stderr(&again)
        );
        assert!(run(&words(writer, &model, &at("made"))).status.success(), "{writer}");
    }
}

/// Without --out.
#[test]
fn file_names_come_from_the_model_and_the_type() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let made = "make-model tiny-dense BF16 --layers 1 --shards 2 {}";
    assert!(run(&words(made, "", &at("Kimi-K2-BF16.gguf"))).status.success());
    let shard = |n: u32| at(&format!("Kimi-K2-BF16-0000{n}-of-00002.gguf"));
    let sources = [
        "a-f16.gguf",
        "b.bf16.gguf",
        "c-UD-Q4_K_XL.gguf",
        "d.i1-Q4_K_M.gguf",
        "e-Q4_K_M-imat.gguf",
        "f.gguf",
        "BF16.gguf",
    ];
    for name in sources {
        assert!(run(&words("make-model tiny-dense BF16 --layers 1 {}", "", &at(name))).status.success());
    }
    assert!(run(&words("make-model tiny-dense BF16 --layers 1 {}", "", &at("g-BF16"))).status.success());
    let before = names(folder.path());
    for command in ["quantize -m {} Q8_0", "pack -m {}"] {
        assert!(run(&words(command, "", &shard(1))).status.success());
    }
    // any shard, and a type of its own case
    assert!(run(&words("quantize -m {} q4_0", "", &shard(2))).status.success());
    for name in sources {
        assert!(run(&words("quantize {} Q8_0", "", &at(name))).status.success(), "{name}");
    }
    assert!(run(&words("convert {} --type Q8_0", "", &at("g-BF16"))).status.success());
    let new: Vec<String> = names(folder.path()).into_iter().filter(|name| !before.contains(name)).collect();
    let expected = [
        "Kimi-K2-BF16.latent",
        "Kimi-K2-Q4_0.gguf",
        "Kimi-K2-Q8_0.gguf",
        "Q8_0.gguf",
        "a-Q8_0.gguf",
        "b-Q8_0.gguf",
        "c-Q8_0.gguf",
        "d-Q8_0.gguf",
        "e-Q8_0.gguf",
        "f-Q8_0.gguf",
        "g-Q8_0.gguf",
    ];
    assert_eq!(new, expected);
}

/// As llama.cpp's tool is called.
#[test]
fn quantize_takes_the_model_and_the_target_as_words() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    assert!(run(&words("make-model tiny-dense BF16 --layers 1 {}", "", &at("m.gguf"))).status.success());
    let model = at("m.gguf").display().to_string();
    for (command, target) in [
        ("quantize {m} Q8_0", "m-Q8_0.gguf"),
        ("quantize {m} {} q8_0 1", "out.gguf"),
        ("quantize {m} {} 7", "out2.gguf"),
    ] {
        let output = run(&words(command, &model, &at(target)));
        assert!(output.status.success(), "{command}: {}", stderr(&output));
        assert!(std::fs::read(at(target)).unwrap() == std::fs::read(at("m-Q8_0.gguf")).unwrap(), "{command}");
    }
    for (command, said) in
        [("quantize {m}", "TYPE"), ("quantize {m} Q4_X", "Q4_X"), ("quantize Q8_0", "MODEL")]
    {
        let output = run(&words(command, &model, &at("none.gguf")));
        assert_eq!(output.status.code(), Some(64), "{command}");
        assert!(stderr(&output).contains(said), "{command}: {}", stderr(&output));
    }
}

#[test]
fn saving_leaves_neighbouring_files_alone() {
    let (folder, model) = folder();
    let at = |name: &str| folder.path().join(name);
    std::fs::write(at("fox.part"), b"precious").unwrap();
    symlink(at("fox.part"), at("baz.part")).unwrap();
    for target in ["fox.kv", "baz.kv"] {
        assert!(run(&words(WRITERS[0], &model, &at(target))).status.success());
        assert!(std::fs::symlink_metadata(at(target)).unwrap().is_file());
    }
    assert_eq!(std::fs::read(at("fox.part")).unwrap(), b"precious");
    assert_eq!(names(folder.path()), ["baz.kv", "baz.part", "fox.kv", "fox.part", "model.gguf"]);
}

/// Runs `latent` with a limit on file sizes in blocks of 512 bytes (POSIX; some shells take
/// kilobytes).
fn limited(blocks: usize, words: &[String]) -> Output {
    let program = program();
    let script = format!("ulimit -f {blocks}; exec \"$0\" \"$@\"");
    let mut command = Command::new("sh");
    command.args(["-c", &script]).arg(program).args(words).env_remove("LATENT_MODEL").output().unwrap()
}

/// A disk that is full after some kilobytes.
#[test]
fn full_disks_leave_no_files() {
    let (folder, model) = folder();
    let at = |name: &str| folder.path().join(name);
    std::fs::write(at("old.gguf"), b"old").unwrap();
    let before = names(folder.path());
    let shards = "make-model --force tiny-dense F32 --layers 1 --shards 3 {}";
    let hf = "make-model --force tiny-dense F32 --layers 1 {}.folder/inner";
    let folder_of = "convert --force -m {m} -o {}.folder/inner";
    let in_shards = "convert --force -m {f} --split-max-size 20K -o {}";
    let large: Vec<&str> = WRITERS
        .into_iter()
        .filter(|w| !w.contains("header-only"))
        .chain([shards, hf, folder_of, in_shards])
        .collect();
    for writer in large {
        for target in ["new.gguf", "old.gguf"] {
            let output = limited(1, &words(writer, &model, &at(target)));
            let said = stderr(&output);
            assert_eq!(output.status.code(), Some(1), "{writer}: {said}");
            assert!(said.contains("File too large"), "{writer}: {said}");
            assert_eq!(names(folder.path()), before, "{writer}");
        }
    }
    assert_eq!(std::fs::read(at("old.gguf")).unwrap(), b"old");
}

#[test]
fn concurrent_saves_leave_one_complete_file() {
    let (folder, model) = folder();
    let target = folder.path().join("both.kv");
    let saving = || {
        let mut command = Command::new(program());
        command.args(words(WRITERS[0], &model, &target)).env_remove("LATENT_MODEL");
        command.stdout(std::process::Stdio::null()).spawn().unwrap()
    };
    let mut children: Vec<_> = (0..3).map(|_| saving()).collect();
    assert!(children.iter_mut().all(|child| child.wait().unwrap().success()));
    assert_eq!(names(folder.path()), ["both.kv", "model.gguf"]);
    let restored = format!("run -q -n 1 -m {{m}} --restore {} Hi", target.display());
    assert!(run(&words(&restored, &model, &target)).status.success());
}

#[test]
fn shards_are_named_and_counted_alike() {
    let folder = tempfile::tempdir().unwrap();
    for shards in ["1", "3", "5", "4096"] {
        let target = folder.path().join(format!("s{shards}.gguf"));
        let made = format!("make-model tiny-dense F32 --layers 1 --shards {shards} {{}}");
        let output = run(&words(&made, "", &target));
        assert!(output.status.success(), "{}", stderr(&output));
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let (first, _) = said.rsplit_once(": ").unwrap();
        assert!(latent(&["inspect", "-m", first]).output().unwrap().status.success(), "{said}");
    }
}

/// A run after a full disk continues, and writes the same file.
#[test]
fn quantizing_resumes_after_a_full_disk() {
    let (folder, model) = folder();
    let at = |name: &str| folder.path().join(name);
    let quantize =
        |target: &str| words("quantize -t 2 -m {m} --allow-requantize -o {} F32", &model, &at(target));
    let output = limited(16384, &quantize("out.gguf"));
    let said = stderr(&output);
    assert!(output.status.code() == Some(1) && said.contains("again to resume"), "{said}");
    let left = names(folder.path());
    assert!(left.len() == 2 && left[1].starts_with("out.gguf.") && left[1].ends_with(".part"), "{left:?}");
    for target in ["out.gguf", "straight.gguf"] {
        let output = run(&quantize(target));
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{}", stderr(&output));
        assert_eq!(said.contains("by an earlier run"), target == "out.gguf", "{said}");
    }
    assert_eq!(names(folder.path()), ["model.gguf", "out.gguf", "straight.gguf"]);
    assert!(std::fs::read(at("out.gguf")).unwrap() == std::fs::read(at("straight.gguf")).unwrap());
    let again = run(&quantize("out.gguf"));
    assert!(again.status.code() == Some(1) && stderr(&again).contains("--force"), "{}", stderr(&again));
    assert!(run(&words("run -q -n 1 -m {} Hi", &model, &at("out.gguf"))).status.success());
}

#[test]
fn a_dry_run_of_quantize_predicts_types_size_and_speed() {
    let (folder, model) = folder();
    let dry = words("quantize -m {m} --allow-requantize --dry-run --json Q5_K_S", &model, folder.path());
    let said: serde_json::Value = serde_json::from_slice(&run(&dry).stdout).unwrap();
    let out = folder.path().join("out.gguf");
    let written = run(&words("quantize -m {m} --allow-requantize --json -o {} Q5_K_S", &model, &out));
    let written: serde_json::Value = serde_json::from_slice(&written.stdout).unwrap();
    assert_eq!(said["bytes"], written["bytes"]);
    assert_eq!(said["bytes"], std::fs::metadata(&out).unwrap().len());
    assert!(said["run"]["most_tokens_per_s"].as_f64().unwrap() > 1.0, "{said}");
    for (dry, written) in
        said["tensors"].as_array().unwrap().iter().zip(written["tensors"].as_array().unwrap())
    {
        assert_eq!((&dry["name"], &dry["to"]), (&written["name"], &written["to"]));
    }
    let refused = run(&words("quantize -m {m} -o {} Q5_K_S", &model, &out.with_extension("2")));
    assert!(refused.status.code() == Some(1) && stderr(&refused).contains("--allow-requantize"));
}

/// Importances of the demo model are collected, named by their tensors, and make two-bit types
/// possible.
#[test]
fn importances_are_collected_from_a_text_and_used() {
    let (folder, model) = folder();
    let at = |name: &str| folder.path().join(name);
    let text = "The fox carried a lantern through the wood, and the owl asked it where the light came from. ";
    std::fs::write(at("text"), text.repeat(30)).unwrap();
    let collect =
        format!("imatrix -t 2 -m {{m}} --chunk-size 64 --chunks 4 -f {} -o {{}}", at("text").display());
    let output = run(&words(&collect, &model, &at("imatrix.gguf")));
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success() && said.contains("4 chunks of 64 tokens"), "{said} {}", stderr(&output));
    // the layer for multi-token prediction among them
    let small = "quantize --allow-requantize --json -m {m} IQ2_XS -o {}";
    let refused = run(&words(small, &model, &at("none.gguf")));
    assert!(
        refused.status.code() == Some(1) && stderr(&refused).contains("--imatrix"),
        "{}",
        stderr(&refused)
    );
    let with = format!("{small} --imatrix {}", at("imatrix.gguf").display());
    let written = run(&words(&with, &model, &at("small.gguf")));
    assert!(written.status.success(), "{}", stderr(&written));
    let written: serde_json::Value = serde_json::from_slice(&written.stdout).unwrap();
    let (mut small, mut of_mtp) = (0, 0);
    for tensor in written["tensors"].as_array().unwrap() {
        let (name, to) = (tensor["name"].as_str().unwrap(), tensor["to"].as_str().unwrap());
        if to == "IQ2_XS" {
            assert_eq!(tensor["weighted"], true, "{name}");
            small += 1;
            of_mtp += usize::from(name.starts_with("blk.6."));
        }
    }
    assert!(small > 20 && of_mtp > 3, "{small} {of_mtp}");
    let too_short = format!("imatrix -m {{m}} --chunk-size 4096 -f {} -o {{}}", at("text").display());
    let refused = run(&words(&too_short, &model, &at("imatrix2.gguf")));
    assert!(refused.status.code() == Some(64) && stderr(&refused).contains("fewer than one chunk"));
}

/// Hessians and what is rounded by them do not depend on the number of threads; other files are
/// refused.
#[test]
fn hessians_are_collected_from_a_text_and_used() {
    let (folder, model) = folder();
    let at = |name: &str| folder.path().join(name);
    let text = "The fox carried a lantern through the wood, and the owl asked it where the light came from. ";
    std::fs::write(at("text"), text.repeat(20)).unwrap();
    let ok = |line: &str, out: &str| {
        let output = run(&words(line, &model, &at(out)));
        assert!(output.status.success(), "{line}: {}", stderr(&output));
        output.stdout
    };
    for threads in [1, 2] {
        let (text, hessians) = (at("text"), at(&format!("h{threads}.gguf")));
        let line = format!(
            "imatrix -t {threads} -m {{m}} --chunk-size 64 --chunks 2 -f {} --hessians {} -o {{}}",
            text.display(),
            hessians.display()
        );
        ok(&line, &format!("i{threads}.gguf"));
    }
    let bytes = |name: &str| std::fs::read(at(name)).unwrap();
    assert!(bytes("h1.gguf") == bytes("h2.gguf"), "Hessians depend on the number of threads");
    let gptq = format!(
        "quantize --allow-requantize --json -m {{m}} Q4_0 --method gptq --hessians {} -o {{}}",
        at("h1.gguf").display()
    );
    let said = ok(&format!("{gptq} -t 1"), "one.gguf");
    ok(&format!("{gptq} -t 2"), "two.gguf");
    ok(&format!("{gptq} --act-order"), "order.gguf");
    ok(&format!("{gptq} --damping 1"), "damped.gguf");
    ok("quantize --allow-requantize -m {m} Q4_0 -o {}", "search.gguf");
    assert!(bytes("one.gguf") == bytes("two.gguf"));
    for other in ["order.gguf", "damped.gguf", "search.gguf"] {
        assert!(bytes(other) != bytes("one.gguf"), "{other}");
    }
    let said: serde_json::Value = serde_json::from_slice(&said).unwrap();
    let rounded = |tensor: &serde_json::Value| tensor["gptq"]["rounded"].as_u64().unwrap_or(0);
    assert!(said["tensors"].as_array().unwrap().iter().map(rounded).sum::<u64>() > 20, "{said}");
    // damaged: the last values are missing; foreign: of another model
    let whole = bytes("h1.gguf");
    std::fs::write(at("short.gguf"), &whole[..whole.len() / 2]).unwrap();
    ok("make-model tiny-v3 F32 {}", "other.gguf");
    for (source, ty, hessians, problem) in [
        ("{m}", "Q4_0", "short.gguf", "short.gguf"),
        ("{m}", "Q4_0", "i1.gguf", "no Hessians"),
        ("{m}", "Q4_0", "text", "text"),
        ("{m}", "Q8_0", "h1.gguf", "GPTQ does not support"),
        ("other.gguf", "Q4_0", "h1.gguf", "another model"),
    ] {
        let source = if source == "{m}" { source.to_owned() } else { at(source).display().to_string() };
        let line = format!(
            "quantize --allow-requantize -m {source} {ty} --method gptq --hessians {} -o {{}}",
            at(hessians).display()
        );
        let output = run(&words(&line, &model, &at("refused.gguf")));
        let said = stderr(&output);
        assert!(output.status.code() == Some(1) && said.contains(problem), "{hessians} {ty}: {said}");
        assert!(!at("refused.gguf").exists());
    }
}

/// The file is smaller than the model, and as near to it as was asked for.
#[test]
fn types_are_chosen_for_a_kl_divergence() {
    let (folder, model) = folder();
    let at = |name: &str| folder.path().join(name);
    let text = "The fox carried a lantern through the wood, and the owl asked it where the light came from. ";
    std::fs::write(at("text"), text.repeat(30)).unwrap();
    let quantize = format!(
        "quantize -t 2 -m {{m}} --allow-requantize --target-kl 0.05 --file {} --chunk-size 64 --chunks 2 --json -o {{}}",
        at("text").display()
    );
    let output = run(&words(&quantize, &model, &at("near.gguf")));
    assert!(output.status.success(), "{}", stderr(&output));
    let said: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let kl = said["fit"]["kl_divergence"].as_f64().unwrap();
    // what errors tell was measured by kind of tensor
    assert!(said["fit"]["expected_kl_divergence"].as_f64().unwrap() > 0.0, "{said}");
    let bytes =
        [&model, &at("near.gguf").display().to_string()].map(|path| std::fs::metadata(path).unwrap().len());
    assert!(kl > 0.0 && kl <= 0.05 && bytes[1] < bytes[0], "{kl} {bytes:?}");
    assert_eq!(names(folder.path()), ["model.gguf", "near.gguf", "text"]);
}

/// A folder in a mix: the file of two passes, the report before it, and continuing after a full
/// disk.
#[test]
fn a_folder_is_quantized_in_one_pass() {
    let (folder, _) = folder();
    let at = |name: &str| folder.path().join(name);
    let model = at("model");
    let made = run(&words("make-model tiny-v3 BF16 {}", "", &model));
    assert!(made.status.success(), "{}", stderr(&made));
    let model = model.display().to_string();
    let types = "--tensor-type attn_k_b=Q8_0 --type Q4_K_M";
    let dry = run(&words(&format!("convert {{m}} {types} --dry-run --json"), &model, folder.path()));
    let said: serde_json::Value = serde_json::from_slice(&dry.stdout).unwrap();
    let convert =
        |target: &str| words(&format!("convert -t 2 -m {{m}} {types} -o {{}}"), &model, &at(target));
    let full = limited(4096, &convert("one.gguf"));
    assert!(full.status.code() == Some(1) && stderr(&full).contains("again to resume"), "{}", stderr(&full));
    let output = run(&convert("one.gguf"));
    let table = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(table.contains("by an earlier run") && table.contains("BF16 → Q4_K"), "{table}");
    assert_eq!(said["bytes"], std::fs::metadata(at("one.gguf")).unwrap().len());
    assert!(run(&words("convert -m {m} -o {}", &model, &at("wide.gguf"))).status.success());
    let wide = at("wide.gguf").display().to_string();
    let quantize = "quantize -m {m} --tensor-type attn_k_b=Q8_0 -o {} Q4_K_M";
    assert!(run(&words(quantize, &wide, &at("two.gguf"))).status.success());
    assert!(std::fs::read(at("one.gguf")).unwrap() == std::fs::read(at("two.gguf")).unwrap());
    let back = run(&words("convert -m {m} --pure -o {}", &wide, &at("back")));
    assert!(back.status.code() == Some(64) && stderr(&back).contains("--pure requires a .gguf output"));
}
