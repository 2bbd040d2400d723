//! The library from C and C++: the examples, and misuse. Skipped with a message if no C compiler is
//! installed.
#![allow(missing_docs, clippy::print_stdout, reason = "tests, which say what they skip")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tempfile::TempDir;

fn folder() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Where cargo has put the library that these tests link, an example of this package.
fn libraries() -> PathBuf {
    std::env::current_exe().unwrap().parent().unwrap().with_file_name("examples")
}

fn runs(program: &str) -> bool {
    Command::new(program).arg("--version").output().is_ok_and(|output| output.status.success())
}

/// Compiles a program; `None` if the compiler is not installed.
fn compiled(compiler: &str, source: &str, flags: &[&str]) -> Option<(TempDir, PathBuf)> {
    if !cfg!(unix) || !runs(compiler) {
        println!("SKIPPED: no {compiler}");
        return None;
    }
    let out = tempfile::tempdir().unwrap();
    let program = out.path().join("program");
    let output = Command::new(compiler)
        .args(["-O1", "-g", "-Wall", "-Wextra", "-Werror", "-Wno-missing-field-initializers", "-pthread"])
        .args(flags)
        .arg(folder().join(source))
        .arg("-x")
        .arg("none")
        .arg("-I")
        .arg(folder().join("include"))
        .arg("-L")
        .arg(libraries())
        .args(["-llatent", "-lm"])
        .arg(format!("-Wl,-rpath,{}", libraries().display()))
        .arg("-o")
        .arg(&program)
        .output()
        .unwrap();
    assert!(output.status.success(), "{compiler} {source}: {}", String::from_utf8_lossy(&output.stderr));
    Some((out, program))
}

/// Flags of the address sanitizer, where programs can be made and run with it.
fn sanitizer() -> Vec<&'static str> {
    let out = tempfile::tempdir().unwrap();
    let (source, program) = (out.path().join("empty.c"), out.path().join("empty"));
    std::fs::write(&source, "int main(void) { return 0; }\n").unwrap();
    let made = Command::new("cc").arg("-fsanitize=address").arg(&source).arg("-o").arg(&program).output();
    let works = made.is_ok_and(|made| made.status.success())
        && Command::new(&program).output().is_ok_and(|ran| ran.status.success());
    if works {
        return vec!["-fsanitize=address", "-fno-omit-frame-pointer"];
    }
    println!("SKIPPED: no address sanitizer");
    Vec::new()
}

fn ran(program: &Path, args: &[&Path]) -> (Output, String) {
    // cargo's variable would come before the program's own path, and may find an older library
    let output = Command::new(program).args(args).env_remove("LD_LIBRARY_PATH").output().unwrap();
    let said =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    (output, said)
}

#[test]
fn the_example_tells_a_story_in_c() {
    let Some((_out, program)) = compiled("cc", "examples/generate.c", &["-std=c99", "-pedantic", "-xc"])
    else {
        return;
    };
    let (output, said) = ran(&program, &[]);
    assert!(output.status.success(), "{said}");
    assert!(said.starts_with("Once upon a time") && said.contains("\n[24 tokens after "), "{said}");
    let message: serde_json::Value = serde_json::from_str(said.lines().last().unwrap()).unwrap();
    let words = message["content"].as_str().unwrap().split_whitespace().count();
    assert!(message["role"] == "assistant" && words > 20, "{said}");
    let (output, said) = ran(&program, &[Path::new("/no/such/model.gguf")]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        said.contains("/no/such/model.gguf: No such file or directory") && said.contains("(code 2)"),
        "{said}"
    );
}

#[test]
fn the_example_is_c_plus_plus_too() {
    let Some((_out, program)) = compiled("c++", "examples/generate.c", &["-std=c++11", "-xc++"]) else {
        return;
    };
    let (output, said) = ran(&program, &[]);
    assert!(output.status.success() && said.contains("[24 tokens after "), "{said}");
}

#[test]
fn the_example_multiplies_by_four_bit_weights_in_c_and_c_plus_plus() {
    for (compiler, flags) in
        [("cc", ["-std=c99", "-pedantic", "-xc"]), ("c++", ["-std=c++11", "-pedantic", "-xc++"])]
    {
        let Some((_out, program)) = compiled(compiler, "examples/gemm.c", &flags) else { continue };
        let (output, said) = ran(&program, &[]);
        assert!(output.status.success() && said.starts_with("3 x 100 results, NMSE "), "{said}");
    }
}

#[test]
fn weights_and_arrays_stay_on_a_gpu() {
    let Some((_out, program)) = compiled("cc", "tests/gpu.c", &["-std=c99", "-pedantic", "-xc"]) else {
        return;
    };
    let (output, said) = ran(&program, &[]);
    assert!(output.status.success(), "{said}");
    let skipped = said.starts_with("SKIPPED: ");
    assert!(skipped || said.starts_with("two layers on gpu, NMSE "), "{said}");
    assert!(!skipped || std::env::var_os("REQUIRE_GPU").is_none(), "{said}");
    print!("{said}");
}

/// A LoRA adapter of the demo model's first output projection, as PEFT writes one.
fn adapter(folder: &Path) {
    const NAME: &str = "base_model.model.model.layers.0.self_attn.o_proj.lora";
    const BYTES: usize = 4 * 4 * 256;
    let header = format!(
        r#"{{"{NAME}_A.weight":{{"dtype":"F32","shape":[4,256],"data_offsets":[0,{BYTES}]}},"{NAME}_B.weight":{{"dtype":"F32","shape":[256,4],"data_offsets":[{BYTES},{}]}}}}"#,
        2 * BYTES
    );
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.bytes());
    file.extend((0..2 * BYTES / 4).flat_map(|i| (((i * 37 % 101) as f32 - 50.0) / 40.0).to_le_bytes()));
    std::fs::write(folder.join("adapter_model.safetensors"), file).unwrap();
    let config = r#"{"peft_type": "LORA", "r": 4, "lora_alpha": 4, "target_modules": ["o_proj"]}"#;
    std::fs::write(folder.join("adapter_config.json"), config).unwrap();
}

#[test]
fn adapters_have_scales_at_load_and_of_an_answer() {
    let mut flags = sanitizer();
    flags.push("-xc");
    let Some((out, program)) = compiled("cc", "tests/lora.c", &flags) else { return };
    adapter(out.path());
    let (output, said) = ran(&program, &[out.path()]);
    assert!(output.status.success(), "{said}");
    assert_eq!(said, "");
}

#[test]
fn misuse_is_refused_and_nothing_leaks() {
    let mut flags = sanitizer();
    flags.push("-xc");
    let Some((out, program)) = compiled("cc", "tests/misuse.c", &flags) else { return };
    let demo = std::fs::read(folder().join("../../models/mla-demo-Q4_K_M.gguf")).unwrap();
    let truncated = out.path().join("truncated.gguf");
    std::fs::write(&truncated, &demo[..demo.len() / 2]).unwrap();
    let (output, said) = ran(&program, &[&truncated]);
    assert!(output.status.success(), "{said}");
    assert_eq!(said, "");
}

#[test]
fn attacks_are_refused_and_nothing_leaks() {
    let mut flags = sanitizer();
    flags.push("-xc");
    let Some((_out, program)) = compiled("cc", "tests/attacks.c", &flags) else { return };
    let (output, said) = ran(&program, &[]);
    assert!(output.status.success(), "{said}");
    assert_eq!(said, "");
}
