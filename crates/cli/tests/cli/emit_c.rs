//! `latent graph --emit-c`: compiled with the system's compiler, under sanitizers, against the
//! reference backend.
#![allow(clippy::print_stderr, reason = "a machine without a C compiler is named as skipped")]

use crate::support::{demo, latent};
use latent_emit_c::CLibrary;
use latent_engine::cache::Sequence;
use latent_engine::{Engine, EngineOptions, LogitsRequest};
use latent_formats::Checkpoint;
use latent_graph::passes::{CacheForm, FORMS, MlaChoice};
use latent_testing::{ModelRecipe, RandomWeightTypes, exhaustive, sample_of};
use latent_types::TensorType;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;
use tempfile::TempDir;

/// Mean relative square error of a row against the reference.
const EXACT: f64 = 1e-9;

const SANITIZED: &[&str] =
    &["-std=c11", "-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"];

/// The system's compiler, with objects of the files that are the same for every model.
struct Compiler {
    cc: String,
    flags: Vec<&'static str>,
    objects: TempDir,
}

impl Compiler {
    /// None without a compiler that has these flags.
    fn new(flags: &[&'static str]) -> Option<Compiler> {
        let cc = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
        let objects = tempfile::tempdir().unwrap();
        let compiler = Compiler { cc, flags: flags.to_vec(), objects };
        let probe = compiler.objects.path().join("probe.c");
        std::fs::write(&probe, "int main(void) { return 0; }\n").unwrap();
        let built = compiler.run(&["-o", "probe", "probe.c"], compiler.objects.path());
        if built.is_none_or(|out| !out.status.success()) {
            eprintln!("skipped: no C compiler with {flags:?} (CC={})", compiler.cc);
            return None;
        }
        Some(compiler)
    }

    fn run(&self, args: &[&str], folder: &Path) -> Option<Output> {
        let warnings = ["-Wall", "-Wextra", "-Wpedantic", "-Werror"];
        Command::new(&self.cc).args(&self.flags).args(warnings).args(args).current_dir(folder).output().ok()
    }

    fn compile(&self, args: &[&str], folder: &Path) {
        let out = self.run(args, folder).unwrap();
        assert!(out.status.success(), "{args:?}: {}", String::from_utf8_lossy(&out.stderr));
    }

    /// The program of an emitted folder.
    fn program(&self, folder: &Path) -> PathBuf {
        let shared = ["kernels", "tiles", "gguf"].map(|name| {
            let object = self.objects.path().join(format!("{name}.o")).display().to_string();
            if !Path::new(&object).exists() {
                self.compile(&["-c", "-o", &object, &format!("{name}.c")], folder);
            }
            object
        });
        let program = folder.join("program");
        let program_name = program.display().to_string();
        let sources = ["-o", &program_name, "main.c", "libmodel.c", "plan.c"];
        let shared = shared.each_ref().map(String::as_str);
        self.compile(&[&sources[..], &shared, &["-lm"]].concat(), folder);
        program
    }
}

fn emit(model: &Path, folder: &Path, more: &[&str]) -> Output {
    let (model, folder) = (model.display().to_string(), folder.display().to_string());
    latent(&[&["graph", "-m", &model, "--emit-c", &folder][..], more].concat()).output().unwrap()
}

/// The packed file of a model.
fn packed(model: &Path) -> PathBuf {
    let packed = model.with_extension("latent");
    let (from, to) = (model.display().to_string(), packed.display().to_string());
    let made = latent(&["pack", &from, "-t", "1", "-o", &to]).output().unwrap();
    assert!(made.status.success(), "{from}: {}", String::from_utf8_lossy(&made.stderr));
    packed
}

fn emitted(model: &Path, folder: &Path, more: &[&str]) {
    let out = emit(model, folder, more);
    assert!(out.status.success(), "{}: {}", model.display(), String::from_utf8_lossy(&out.stderr));
}

/// Runs an emitted program; finds of a sanitizer have another exit code than its own.
fn run(program: &Path, model: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(program);
    command.arg(model).args(args).env("ASAN_OPTIONS", "exitcode=99").env("UBSAN_OPTIONS", "exitcode=99");
    command.output().unwrap()
}

fn logits_of(program: &Path, model: &Path, tokens: &[u32]) -> Vec<Vec<f32>> {
    let words: Vec<String> = tokens.iter().map(u32::to_string).collect();
    let mut args = vec!["--all-logits", "--context", "256"];
    args.extend(words.iter().map(String::as_str));
    let out = run(program, model, &args);
    assert!(out.status.success(), "{}: {}", model.display(), String::from_utf8_lossy(&out.stderr));
    let text = String::from_utf8(out.stdout).unwrap();
    text.lines().map(|row| row.split(' ').map(|x| x.parse().unwrap()).collect()).collect()
}

fn reference(model: &Path, tokens: &[u32], mla: MlaChoice, form: CacheForm) -> Vec<Vec<f32>> {
    let options =
        EngineOptions { mla, form, context: Some(256), threads: Some(1), ..EngineOptions::default() };
    let checkpoint = Arc::new(Checkpoint::open(model).unwrap());
    let mut engine =
        Engine::load(&*latent_backends::reference(), &checkpoint, &options, &mut |_, _| {}).unwrap();
    let (mut sequence, mut logits) = (Sequence::default(), vec![Vec::new(); tokens.len()]);
    let take = &mut |row: usize, l: &[f32]| logits[row] = l.to_vec();
    engine.prefill(&mut sequence, tokens, 64, LogitsRequest::All, take, &mut |_| true).unwrap();
    engine.release(sequence);
    logits
}

fn error(a: &[f32], b: &[f32]) -> f64 {
    assert_eq!(a.len(), b.len());
    let difference: f64 = a.iter().zip(b).map(|(a, b)| (f64::from(*a) - f64::from(*b)).powi(2)).sum();
    difference / b.iter().map(|b| f64::from(*b).powi(2)).sum::<f64>()
}

fn mean_error(found: &[Vec<f32>], expected: &[Vec<f32>]) -> f64 {
    assert_eq!(found.len(), expected.len());
    found.iter().zip(expected).map(|(a, b)| error(a, b)).sum::<f64>() / found.len() as f64
}

fn flags_of(mla: MlaChoice, form: CacheForm) -> Vec<&'static str> {
    let mut flags = vec!["--mla", mla.name()];
    if form == CacheForm::Expanded {
        flags.push("--expanded-cache");
    }
    flags
}

fn random(folder: &Path, shape: &str, ty: TensorType, legacy: bool) -> PathBuf {
    let path = folder.join(format!("{shape}-{ty}-{legacy}.gguf"));
    let recipe = ModelRecipe { legacy, ..ModelRecipe::new(shape, RandomWeightTypes::from(ty)) };
    recipe.write_gguf(&path).unwrap();
    path
}

fn prompt(tokens: u32) -> Vec<u32> {
    (0..tokens).map(|i| i * 11 % 250).collect()
}

#[test]
fn every_shape_agrees_in_every_formulation_under_sanitizers() {
    let Some(compiler) = Compiler::new(SANITIZED) else { return };
    let folder = tempfile::tempdir().unwrap();
    let tokens = prompt(40);
    for shape in latent_testing::shapes().filter(|shape| shape.starts_with("tiny")) {
        // every formulation of a dense and of a mixed model, with W_KV joined and in halves
        let whole = exhaustive() || shape == "tiny-v3" || shape == "tiny-v2";
        let model = random(folder.path(), shape, TensorType::F32, shape == "tiny-v2");
        for (mla, form) in FORMS.into_iter().filter(|form| whole || *form == FORMS[0]) {
            let out = folder.path().join(format!("{shape}-{mla}-{form:?}"));
            emitted(&model, &out, &flags_of(mla, form));
            let program = compiler.program(&out);
            let found = logits_of(&program, &model, &tokens);
            let mean = mean_error(&found, &reference(&model, &tokens, mla, form));
            assert!(mean <= EXACT, "{shape} {mla} {form:?}: {mean:e}");
        }
    }
}

#[test]
fn every_weight_format_agrees() {
    let Some(compiler) = Compiler::new(&["-std=c11", "-O2", "-fsanitize=undefined"]) else { return };
    let folder = tempfile::tempdir().unwrap();
    let tokens = prompt(5);
    use TensorType::*;
    for ty in [F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_NL, IQ4_XS, MXFP4] {
        let model = random(folder.path(), "tiny-v3", ty, false);
        let out = folder.path().join(ty.name());
        emitted(&model, &out, &["--rows", "3"]);
        let text = std::fs::read_to_string(out.join("plan.c")).unwrap();
        assert!(text.contains(&format!("/* {ty} */")), "no tensor is {ty}");
        let program = compiler.program(&out);
        let found = logits_of(&program, &model, &tokens);
        let (mla, form) = FORMS[0];
        let mean = mean_error(&found, &reference(&model, &tokens, mla, form));
        assert!(mean <= EXACT, "{ty}: {mean:e}");
        // tiles hold the same numbers, whichever file the library was written from
        let packed = packed(&model);
        assert_eq!(logits_of(&program, &packed, &tokens), found, "{ty} in tiles");
        emitted(&packed, &folder.path().join(format!("{ty}-packed")), &["--rows", "3"]);
        let plan = |folder: &str| std::fs::read_to_string(out.with_file_name(folder).join("plan.c")).unwrap();
        let tables = |text: String| text.lines().filter(|line| line.starts_with("    {")).count();
        assert_eq!(tables(plan(&format!("{ty}-packed"))), tables(plan(ty.name())), "{ty}");
    }
}

#[test]
fn a_packed_demo_agrees_under_sanitizers() {
    let Some(compiler) = Compiler::new(SANITIZED) else { return };
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("demo.gguf");
    std::fs::copy(demo(), &model).unwrap();
    let (packed, out) = (packed(&model), folder.path().join("out"));
    emitted(&packed, &out, &[]);
    let program = compiler.program(&out);
    let tokens = prompt(7);
    let found = logits_of(&program, &packed, &tokens);
    assert_eq!(found, logits_of(&program, &model, &tokens));
    let mean = mean_error(&found, &reference(&model, &tokens, MlaChoice::Auto, CacheForm::Latent));
    assert!(mean <= EXACT, "{mean:e}");
}

#[test]
fn scalar_loops_agree_and_the_makefile_builds_the_demo() {
    let Some(compiler) = Compiler::new(&["-std=c11", "-O2", "-DMODEL_REFERENCE"]) else { return };
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("demo");
    emitted(&demo(), &out, &[]);
    let tokens: Vec<u32> = (0..12).map(|i| 3 + i * 37).collect();
    let expected = reference(&demo(), &tokens, MlaChoice::Auto, CacheForm::Latent);
    let mean = mean_error(&logits_of(&compiler.program(&out), &demo(), &tokens), &expected);
    assert!(mean <= EXACT, "scalar loops: {mean:e}");
    let Ok(made) = Command::new("make").arg("-C").arg(&out).arg(format!("CC={}", compiler.cc)).output()
    else {
        eprintln!("skipped: no make");
        return;
    };
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let mean = mean_error(&logits_of(&out.join("model"), &demo(), &tokens), &expected);
    assert!(mean <= EXACT, "vector loops: {mean:e}");
    // The same tokens as the engine in exact precision.
    let words: Vec<String> = tokens.iter().map(u32::to_string).collect();
    let mut args = vec!["--greedy", "8"];
    args.extend(words.iter().map(String::as_str));
    let answer = run(&out.join("model"), &demo(), &args);
    let answer: Vec<u32> =
        String::from_utf8(answer.stdout).unwrap().split_whitespace().map(|t| t.parse().unwrap()).collect();
    let whole: Vec<u32> = tokens.iter().chain(&answer[..7]).copied().collect();
    let expected = reference(&demo(), &whole, MlaChoice::Auto, CacheForm::Latent);
    for (i, token) in answer.iter().enumerate() {
        let row = &expected[tokens.len() - 1 + i];
        let best = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        assert!(row[*token as usize] >= best - 1e-3, "token {i}: {token}");
    }
}

/// Fixtures of every family, as GGUF files; the formulations take turns.
#[test]
fn the_fixtures_agree_with_the_reference() {
    let Some(compiler) = Compiler::new(SANITIZED) else { return };
    let folder = tempfile::tempdir().unwrap();
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../engine/tests/fixtures");
    let cases = [
        "v2-lite",
        "v2-lite-yarn",
        "v2-groups",
        "v3-yarn",
        "moonlight",
        "glm-4.7-flash",
        "youtu",
        "minicpm3",
        "ling-3",
        "kimi-linear",
        "nope-gate",
        "glm-dsa",
        "deepseek32",
        "mistral4",
        "axk1",
        "v3-bias",
        "v3-tiny-latents",
        "minicpm3-long",
        "plm",
    ];
    for (n, case) in cases.into_iter().enumerate() {
        let fixture = fixtures.join(case);
        let text = std::fs::read_to_string(fixture.join("expected.json")).unwrap();
        let expected: serde_json::Value = serde_json::from_str(&text).unwrap();
        let tokens = expected["tokens"].as_array().unwrap().iter().take(48);
        let tokens: Vec<u32> = tokens.map(|token| token.as_u64().unwrap() as u32).collect();
        let model = folder.path().join(format!("{case}.gguf"));
        let paths = [&fixture, &model].map(|path| path.display().to_string());
        let made = latent(&["convert", &paths[0], "-o", &paths[1], "--type", "F32"]).output().unwrap();
        assert!(made.status.success(), "{case}: {}", String::from_utf8_lossy(&made.stderr));
        for (mla, form) in latent_testing::sample_of(FORMS, n, FORMS.len()) {
            let out = folder.path().join(format!("{case}-{mla}-{form:?}"));
            emitted(&model, &out, &flags_of(mla, form));
            let found = logits_of(&compiler.program(&out), &model, &tokens);
            let mean = mean_error(&found, &reference(&model, &tokens, mla, form));
            assert!(mean <= EXACT, "{case} {mla} {form:?}: {mean:e}");
        }
    }
}

#[test]
fn broken_files_are_refused_and_nothing_past_them_is_read() {
    let Some(compiler) = Compiler::new(SANITIZED) else { return };
    let folder = tempfile::tempdir().unwrap();
    let model = random(folder.path(), "tiny-v2", TensorType::Q8_0, false);
    let out = folder.path().join("out");
    emitted(&model, &out, &[]);
    let program = compiler.program(&out);
    let broken = folder.path().join("broken.gguf");
    let refused = |bytes: &[u8], what: &str| {
        std::fs::write(&broken, bytes).unwrap();
        let out = run(&program, &broken, &["1", "2"]);
        let stderr = String::from_utf8_lossy(&out.stderr).into_owned();
        assert_eq!(out.status.code(), Some(1), "{what}: {stderr}");
        assert!(stderr.starts_with("model: ") && stderr.contains("broken.gguf: "), "{what}: {stderr}");
        stderr
    };
    for (path, start) in [(model.clone(), 0), (packed(&model), 4096)] {
        let whole = std::fs::read(&path).unwrap();
        // Cut anywhere in the header, and in the last tensor.
        let header = start..(start + 4096).min(whole.len());
        let lengths = sample_of(0..64, 0, 3)
            .chain(header.clone().step_by(397))
            .chain((64..whole.len()).step_by(whole.len() / 24));
        for length in lengths.chain([whole.len() - 40]) {
            refused(&whole[..length], &format!("cut at {length}"));
        }
        // Changed numbers in the header are refused or harmless, but never cause a read past the
        // end.
        for (turn, at) in (4..64).step_by(7).chain(header.clone().step_by(61)).enumerate() {
            for byte in sample_of([0xff, 0x00], turn, 2) {
                let mut bytes = whole.clone();
                bytes[at..(at + 4).min(header.end)].fill(byte);
                std::fs::write(&broken, bytes).unwrap();
                let out = run(&program, &broken, &["--greedy", "1", "1"]);
                let code = out.status.code();
                let text = String::from_utf8_lossy(&out.stderr);
                assert!(matches!(code, Some(0 | 1)), "byte {at} = {byte}: {code:?} {text}");
            }
        }
    }
    let other = random(folder.path(), "tiny-v3", TensorType::Q8_0, false);
    assert!(refused(&std::fs::read(other).unwrap(), "another shape").contains("tensor "));
    let other = random(folder.path(), "tiny-v2", TensorType::F16, false);
    assert!(
        refused(&std::fs::read(other).unwrap(), "another type")
            .contains("has an unexpected type, expected Q8_0")
    );
    for (args, problem) in [
        (&["4294967296"][..], "usage"),
        (&["999999"], "not in the vocabulary"),
        (&["--context", "999999999", "1"], "longer than the model's"),
        (&["--context", "2", "1", "2", "3"], "does not fit in the context"),
        (&["--greedy", "x", "1"], "usage"),
    ] {
        let out = run(&program, &model, args);
        let stderr = String::from_utf8_lossy(&out.stderr);
        assert!(matches!(out.status.code(), Some(1 | 2)) && stderr.contains(problem), "{args:?}: {stderr}");
    }
}

#[test]
fn a_hostile_name_stays_a_name() {
    let Some(compiler) = Compiler::new(&["-std=c11", "-O0"]) else { return };
    let folder = tempfile::tempdir().unwrap();
    let model = random(folder.path(), "tiny-v2", TensorType::F32, false);
    let mut bytes = std::fs::read(&model).unwrap();
    let (name, hostile) = (b"random tiny-v2", b"*/\n#error\"\\??/");
    let at = bytes.windows(name.len()).position(|window| window == name).unwrap();
    bytes[at..at + name.len()].copy_from_slice(hostile);
    let hostile = folder.path().join("a*b.gguf");
    std::fs::write(&hostile, bytes).unwrap();
    let out = folder.path().join("out");
    emitted(&hostile, &out, &[]);
    assert!(std::fs::read_to_string(out.join("libmodel.h")).unwrap().contains("#error"));
    assert!(!logits_of(&compiler.program(&out), &hostile, &[1]).is_empty());
}

#[test]
fn operations_without_c_code_are_refused_before_writing() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let model = random(folder.path(), "tiny-v2", TensorType::Q4_0, false);
    let shards = ModelRecipe {
        shards: Some(2),
        ..ModelRecipe::new("tiny-v2", RandomWeightTypes::from(TensorType::F32))
    };
    let shards = shards.write_gguf(&path("shards.gguf")).unwrap().first;
    let nvfp4 = random(folder.path(), "tiny-v3", TensorType::NVFP4, false);
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("../engine/tests/fixtures/v3-bias");
    let out = path("out");
    for (model, flags, problem) in [
        (&shards, &[][..], "2 files"),
        (&nvfp4, &[], "format NVFP4"),
        (&fixture, &[], "latent convert"),
        (&model, &["--cache-type", "int8"], "int8"),
        (&model, &["--rows", "8000"], "at most 1024"),
        (&model, &["ir"], "not the ir"),
        (&model, &["--lora", "x"], "merge"),
        (&model, &["--draft", "mtp"], "mtp"),
        (&model, &["--json"], "--json"),
    ] {
        let made = emit(model, &out, flags);
        let text = String::from_utf8_lossy(&made.stderr);
        assert!(!made.status.success() && text.contains(problem), "{flags:?} {problem}: {text}");
        assert!(!out.exists(), "{problem}: {text}");
    }
    emitted(&model, &out, &[]);
    for name in CLibrary::file_names() {
        assert!(out.join(name).is_file(), "{name}");
    }
    let before = std::fs::read(out.join("plan.c")).unwrap();
    let again = emit(&model, &out, &["--mla", "naive"]);
    assert!(!again.status.success() && String::from_utf8_lossy(&again.stderr).contains("--force"));
    assert_eq!(std::fs::read(out.join("plan.c")).unwrap(), before);
    emitted(&model, &out, &["--mla", "naive", "--force"]);
    assert_ne!(std::fs::read(out.join("plan.c")).unwrap(), before);
}
