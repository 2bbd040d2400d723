//! Quantization of whole files: types of tensors, refusals, and interrupted runs.

use latent_convert::ConvertError;
use latent_convert::quantize::{Assignment, Importances, Mix, Options, QuantizedModel, TensorPattern, write};
use latent_formats::gguf::{Writer, WriterValue};
use latent_formats::{Checkpoint, CheckpointSource};
use latent_testing::ModelRecipe;
use latent_types::TensorType;
use std::path::{Path, PathBuf};

struct QuantizeFixture {
    folder: tempfile::TempDir,
    checkpoint: Checkpoint,
}

impl QuantizeFixture {
    fn new(shape: &str, kind: &str) -> QuantizeFixture {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.gguf");
        ModelRecipe::new(shape, kind.parse().unwrap()).write_gguf(&path).unwrap();
        QuantizeFixture { checkpoint: Checkpoint::open(&path).unwrap(), folder }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn names(&self) -> Vec<String> {
        let names = std::fs::read_dir(self.folder.path()).unwrap();
        let mut names: Vec<String> = names.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort_unstable();
        names
    }

    /// Writes importances of 1 to 8 by column for every matrix.
    fn imatrix(&self, name: &str) -> PathBuf {
        let mut writer = Writer::new();
        writer.key("general.type", WriterValue::String("imatrix".into()));
        writer.key("imatrix.datasets", WriterValue::Strings(vec![b"calibration.txt".to_vec()]));
        writer.key("imatrix.chunk_count", WriterValue::U32(3));
        let matrices = self.checkpoint.tensors().iter().filter(|tensor| tensor.shape.len() > 1);
        let mut data = Vec::new();
        for tensor in matrices {
            let columns = *tensor.shape.last().unwrap();
            let counts = if tensor.shape.len() > 2 { tensor.shape[0] } else { 1 };
            writer.tensor(format!("{}.in_sum2", tensor.name), TensorType::F32, &[counts, columns]).unwrap();
            data.push((0..counts * columns).map(|i| 2.0 * (1 + i % 8) as f32).collect::<Vec<f32>>());
            writer.tensor(format!("{}.counts", tensor.name), TensorType::F32, &[counts, 1]).unwrap();
            data.push(vec![2.0; counts]);
        }
        let path = self.at(name);
        let mut file = std::fs::File::create(&path).unwrap();
        let bytes = |i: usize| data[i].iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>();
        writer.write(&mut file, |i, out| out.write_all(&bytes(i))).unwrap();
        path
    }
}

fn options(mix: &str) -> Options {
    Options::new(Mix::from_name(mix).unwrap())
}

fn whole(assignment: &Assignment<'_>, target: &Path, threads: usize) -> QuantizedModel {
    write(assignment, target, threads, &mut |_, _| true).unwrap()
}

fn refused(model: &QuantizeFixture, options: &Options, importances: Option<&Importances>) -> String {
    match Assignment::new(&model.checkpoint, options, importances) {
        Ok(_) => panic!("nothing was refused"),
        Err(error) => error.to_string(),
    }
}

/// The types that llama-quantize chooses for the same file.
#[test]
fn types_are_those_of_llama_quantize() {
    use TensorType::*;
    let model = QuantizeFixture::new("tiny-v3", "BF16");
    let expected = [
        ("Q4_K_M", "output.weight", Q6_K),
        ("Q4_K_M", "token_embd.weight", Q4_K),
        ("Q4_K_M", "blk.0.ffn_down.weight", Q4_K),
        ("Q4_K_M", "blk.2.ffn_down_exps.weight", Q6_K),
        ("Q4_K_M", "blk.1.attn_k_b.weight", Q5_0),
        ("Q4_K_M", "blk.1.attn_v_b.weight", Q4_K),
        ("Q4_K_M", "blk.1.ffn_gate_inp.weight", F32),
        ("MXFP4_MOE", "blk.1.attn_k_b.weight", MXFP4),
        ("MXFP4_MOE", "blk.1.attn_output.weight", Q8_0),
        ("MXFP4_MOE", "blk.1.ffn_up_exps.weight", MXFP4),
        ("Q2_K", "blk.1.attn_output.weight", Q3_K),
        ("Q2_K", "blk.1.attn_k_b.weight", Q4_0),
        ("IQ4_XS", "blk.1.attn_k_b.weight", IQ4_NL),
        ("Q3_K_L", "blk.1.ffn_down_exps.weight", Q5_K),
        ("BF16", "blk.1.attn_k_b.weight", BF16),
        ("BF16", "blk.1.attn_norm.weight", F32),
    ];
    for (mix, name, ty) in expected {
        let assignment = Assignment::new(&model.checkpoint, &options(mix), None).unwrap();
        let tensor = assignment.tensors().iter().find(|tensor| tensor.name == name).unwrap();
        assert_eq!(tensor.to, ty, "{mix} {name}");
    }
}

#[test]
fn matching_names_get_the_type_of_the_pattern() {
    let model = QuantizeFixture::new("tiny-v3", "BF16");
    let mut options = options("Q4_K_M");
    options.tensor_types = vec![
        (TensorPattern::new(r"blk\.1\..*_exps").unwrap(), TensorType::Q3_K),
        (TensorPattern::new("ffn").unwrap(), TensorType::Q8_0),
    ];
    (options.output, options.embedding) = (Some(TensorType::F16), Some(TensorType::Q5_K));
    let assignment = Assignment::new(&model.checkpoint, &options, None).unwrap();
    let of = |name: &str| assignment.tensors().iter().find(|tensor| tensor.name == name).unwrap().to;
    assert_eq!(of("blk.1.ffn_up_exps.weight"), TensorType::Q3_K);
    assert_eq!(of("blk.2.ffn_up_exps.weight"), TensorType::Q8_0);
    assert_eq!(of("blk.1.ffn_gate_inp.weight"), TensorType::F32);
    assert_eq!((of("output.weight"), of("token_embd.weight")), (TensorType::F16, TensorType::Q5_K));
    assert!(TensorPattern::new("blk.(").err().unwrap().to_string().contains("regular expression"));
}

#[test]
fn a_written_file_is_the_model_in_other_types() {
    let model = QuantizeFixture::new("tiny-v3", "BF16");
    let assignment = Assignment::new(&model.checkpoint, &options("Q4_K_M"), None).unwrap();
    let out = model.at("out.gguf");
    let written = whole(&assignment, &out, 3);
    assert_eq!(written.bytes, std::fs::metadata(&out).unwrap().len());
    assert_eq!(written.bytes, assignment.bytes().unwrap());
    assert_eq!(model.names(), ["model.gguf", "out.gguf"]);
    let back = Checkpoint::open(&out).unwrap();
    for (info, written) in model.checkpoint.tensors().iter().zip(&written.tensors) {
        let (old, new) = (model.checkpoint.tensor(&info.name).unwrap(), back.tensor(&info.name).unwrap());
        assert_eq!((new.info.ty, &new.info.shape), (written.assigned.to, &info.shape));
        let Some(error) = written.error else {
            assert!(old.data == new.data, "{}", info.name);
            continue;
        };
        let weights: usize = info.shape.iter().product();
        let (mut a, mut b) = (vec![0.0; weights], vec![0.0; weights]);
        latent_quant::decode(old.info.ty, old.data, &mut a).unwrap();
        latent_quant::decode(new.info.ty, new.data, &mut b).unwrap();
        let squares =
            |values: &mut dyn Iterator<Item = f32>| values.map(|v| f64::from(v) * f64::from(v)).sum::<f64>();
        let true_error = squares(&mut a.iter().zip(&b).map(|(a, b)| a - b)) / squares(&mut a.iter().copied());
        assert!(
            (true_error.sqrt() - error).abs() < 1e-6 && error > 0.005 && error < 0.1,
            "{} {error}",
            info.name
        );
    }
    let (CheckpointSource::Gguf(old), CheckpointSource::Gguf(new)) =
        (model.checkpoint.source(), back.source())
    else {
        panic!()
    };
    assert_eq!(new.metadata.u64("general.file_type").unwrap(), Some(15));
    assert_eq!(new.metadata.u64("general.quantization_version").unwrap(), Some(2));
    for (key, bytes) in old.metadata.encoded().filter(|(key, _)| *key != "general.file_type") {
        assert!(new.metadata.encoded().any(|pair| pair == (key, bytes)), "{key}");
    }
}

/// Convolutions, decay rates and biases, and norms stay F32, as in llama.cpp's files. Projections
/// are quantized.
#[test]
fn parameters_of_recurrent_layers_stay_f32() {
    const KEPT: [&str; 6] =
        ["ssm_a", "ssm_dt.bias", "ssm_norm.weight", "ssm_conv1d_q", "ssm_conv1d_k", "ssm_conv1d_v"];
    const PROJECTED: [&str; 4] = ["ssm_f_a", "ssm_g_a", "attn_q", "attn_output"];
    for (shape, mix) in
        [("small-kimi-linear", "Q4_K_M"), ("small-ling-3", "Q4_K_M"), ("small-ling-3", "Q8_0")]
    {
        let model = QuantizeFixture::new(shape, "F32");
        let assignment = Assignment::new(&model.checkpoint, &options(mix), None).unwrap();
        let out = model.at("out.gguf");
        whole(&assignment, &out, 2);
        let back = Checkpoint::open(&out).unwrap();
        let (mut kept, mut projected) = (0, 0);
        for info in model.checkpoint.tensors() {
            let name = &info.name;
            let (old, new) = (model.checkpoint.tensor(name).unwrap(), back.tensor(name).unwrap());
            let has = |parts: &[&str]| parts.iter().any(|part| name.contains(part));
            if has(&KEPT) {
                assert!(new.info.ty == TensorType::F32 && old.data == new.data, "{shape} {mix} {name}");
                kept += 1;
            } else if has(&PROJECTED) && !name.contains("norm") {
                assert_ne!(new.info.ty, TensorType::F32, "{shape} {mix} {name}");
                projected += 1;
            }
        }
        assert!(kept >= 12 && projected >= 8, "{shape}: {kept} and {projected}");
    }
}

#[test]
fn an_interrupted_run_resumes_and_gives_the_same_bytes() {
    let model = QuantizeFixture::new("tiny-v3", "F32");
    let assignment = Assignment::new(&model.checkpoint, &options("Q5_K_S"), None).unwrap();
    let straight = whole(&assignment, &model.at("straight.gguf"), 1);
    let out = model.at("out.gguf");
    for quarter in 1..4 {
        let stop = straight.bytes * quarter / 4;
        let stopped = write(&assignment, &out, 2, &mut |done, _| done < stop);
        let Err(ConvertError::Stopped { part, written }) = stopped else { panic!("{stopped:?}") };
        assert!(written >= stop && part.exists() && !out.exists());
    }
    let resumed = whole(&assignment, &out, 4);
    assert!(resumed.resumed > straight.bytes / 2, "{}", resumed.resumed);
    assert!(std::fs::read(&out).unwrap() == std::fs::read(model.at("straight.gguf")).unwrap());
    assert_eq!(model.names(), ["model.gguf", "out.gguf", "straight.gguf"]);
    let errors =
        |written: &QuantizedModel| written.tensors.iter().map(|tensor| tensor.error).collect::<Vec<_>>();
    assert_eq!(errors(&resumed), errors(&straight));

    // A partial file with other options is not resumed.
    let stopped = write(&assignment, &model.at("other.gguf"), 1, &mut |_, _| false);
    assert!(matches!(stopped, Err(ConvertError::Stopped { .. })));
    let other = Assignment::new(&model.checkpoint, &options("Q4_0"), None).unwrap();
    assert_eq!(whole(&other, &model.at("other.gguf"), 1).resumed, 0);
}

#[test]
fn shards_become_one_file() {
    let model = QuantizeFixture::new("tiny-dense", "BF16");
    let sharded = model.at("sharded.gguf");
    let recipe = ModelRecipe { shards: Some(3), ..ModelRecipe::new("tiny-dense", "BF16".parse().unwrap()) };
    let sharded = Checkpoint::open(&recipe.write_gguf(&sharded).unwrap().first).unwrap();
    let of = |checkpoint: &Checkpoint, name: &str| {
        let assignment = Assignment::new(checkpoint, &options("Q6_K"), None).unwrap();
        whole(&assignment, &model.at(name), 2);
        Checkpoint::open(&model.at(name)).unwrap()
    };
    let (one, joined) = (of(&model.checkpoint, "a.gguf"), of(&sharded, "b.gguf"));
    for tensor in one.tensors() {
        assert!(one.tensor(&tensor.name).unwrap().data == joined.tensor(&tensor.name).unwrap().data);
    }
    let CheckpointSource::Gguf(source) = joined.source() else { panic!() };
    assert!(source.metadata.encoded().all(|(key, _)| !key.starts_with("split.")));
}

#[test]
fn importances_lower_the_weighted_error_and_are_named_in_the_file() {
    let model = QuantizeFixture::new("tiny-v3", "BF16");
    assert!(refused(&model, &options("IQ2_XXS"), None).contains("`imatrix`"));
    let importances = Importances::read(&model.imatrix("imatrix.gguf")).unwrap();
    assert_eq!((importances.chunks, importances.datasets.len()), (3, 1));
    let assignment = Assignment::new(&model.checkpoint, &options("Q3_K_M"), Some(&importances)).unwrap();
    let weighted = whole(&assignment, &model.at("weighted.gguf"), 2);
    let plain = Assignment::new(&model.checkpoint, &options("Q3_K_M"), None).unwrap();
    let plain = whole(&plain, &model.at("plain.gguf"), 2);
    let mut better = 0;
    for (weighted, plain) in weighted.tensors.iter().zip(&plain.tensors) {
        if let (Some(weighted_error), Some(plain_error)) = (weighted.error, plain.error) {
            assert!(weighted.weighted && !plain.weighted);
            better += usize::from(weighted_error < plain_error);
        }
    }
    assert!(better > 10, "{better}");
    let back = Checkpoint::open(&model.at("weighted.gguf")).unwrap();
    let CheckpointSource::Gguf(source) = back.source() else { panic!() };
    assert_eq!(source.metadata.str("quantize.imatrix.file").unwrap(), Some("imatrix.gguf"));
    assert_eq!(source.metadata.str("quantize.imatrix.dataset").unwrap(), Some("calibration.txt"));
    Assignment::new(&model.checkpoint, &options("IQ2_XXS"), Some(&importances)).unwrap();
}

#[test]
fn a_file_without_tensors_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("vocabulary.gguf");
    let mut writer = latent_formats::gguf::Writer::new();
    writer.key("general.architecture", latent_formats::gguf::WriterValue::String("deepseek2".into()));
    let mut file = Vec::new();
    writer.write(&mut file, |_, _| Ok(())).unwrap();
    std::fs::write(&path, file).unwrap();
    let checkpoint = Checkpoint::open(&path).unwrap();
    let Err(error) = Assignment::new(&checkpoint, &options("Q4_K_M"), None) else {
        panic!("nothing was refused")
    };
    assert!(error.to_string().contains("vocabulary.gguf: it has no tensors"), "{error}");
}

#[test]
fn importances_of_another_model_are_refused() {
    let (model, other) = (QuantizeFixture::new("tiny-v3", "BF16"), QuantizeFixture::new("tiny-glm", "BF16"));
    let importances = Importances::read(&other.imatrix("imatrix.gguf")).unwrap();
    let problem = refused(&model, &options("Q4_K_M"), Some(&importances));
    assert!(problem.contains("imatrix.gguf") && problem.contains("another model"), "{problem}");
    std::fs::write(model.at("text"), b"hello, this is not a matrix").unwrap();
    let error = Importances::read(&model.at("text")).unwrap_err().to_string();
    assert!(error.contains("not an importance matrix"), "{error}");
}

#[test]
fn lossy_or_impossible_types_are_refused_before_writing() {
    let model = QuantizeFixture::new("tiny-v3", "Q4_K");
    let problem = refused(&model, &options("Q3_K_S"), None);
    assert!(problem.contains("`allow_requantize`") && problem.contains("already"), "{problem}");
    let allowed = Options { allow_requantize: true, ..options("Q3_K_S") };
    whole(&Assignment::new(&model.checkpoint, &allowed, None).unwrap(), &model.at("out.gguf"), 2);

    let model = QuantizeFixture::new("tiny-v3", "F32");
    let mut named = options("Q8_0");
    named.tensor_types = vec![(TensorPattern::new("attn_k_b").unwrap(), TensorType::Q4_K)];
    let problem = refused(&model, &named, None);
    assert!(problem.contains("attn_k_b") && problem.contains("row length 128"), "{problem}");
    named.tensor_types = vec![(TensorPattern::new("attn").unwrap(), TensorType::I8)];
    assert!(refused(&model, &named, None).contains("I8"));
}

#[test]
fn non_finite_weights_are_named_and_no_file_remains() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let mut writer = Writer::new();
    writer.key("general.architecture", WriterValue::String("deepseek2".into()));
    writer.tensor("blk.0.ffn_up.weight", TensorType::F32, &[4, 256]).unwrap();
    for (bad, mix, said) in [
        (f32::NAN, "Q4_K_M", "NaN or infinite (`latent"),
        (f32::NAN, "Q8_0", "NaN or infinite (`latent"),
        (1e30, "F16", "the value 1000000000000000000000000000000 in column 188, which F16 cannot hold"),
        // The block has one scale, so the value also ruins the other values of the block.
        (-3e9, "Q8_0", "the value -3000000000 in column 188, which Q8_0 cannot hold"),
        (3e9, "Q4_0", "the value 3000000000 in column 188, which Q4_0 cannot hold"),
        (-3e9, "Q4_1", "the value -3000000000 in column 188, which Q4_1 cannot hold"),
        (3e9, "Q5_0", "the value 3000000000 in column 188, which Q5_0 cannot hold"),
        (3e15, "Q4_K_S", "the value 3000000000000000 in column 188, which Q4_K cannot hold"),
        (-3e15, "Q6_K", "the value -3000000000000000 in column 188, which Q6_K cannot hold"),
        (3e15, "Q2_K", "the value 3000000000000000 in column 188, which Q2_K cannot hold"),
        (3e15, "IQ4_XS", "the value 3000000000000000 in column 188, which IQ4_XS cannot hold"),
    ] {
        // A zero is the first value that decodes to NaN.
        let mut weights: Vec<f32> = (0..1024).map(|i| (i % 3) as f32 * 0.5).collect();
        weights[700] = bad;
        let bytes: Vec<u8> = weights.iter().flat_map(|v| v.to_le_bytes()).collect();
        writer.write(&mut std::fs::File::create(&path).unwrap(), |_, out| out.write_all(&bytes)).unwrap();
        let checkpoint = Checkpoint::open(&path).unwrap();
        let assignment = Assignment::new(&checkpoint, &options(mix), None).unwrap();
        let error =
            write(&assignment, &folder.path().join("out.gguf"), 2, &mut |_, _| true).unwrap_err().to_string();
        assert!(error.contains("blk.0.ffn_up.weight: row 2") && error.contains(said), "{error}");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}

#[test]
fn folders_of_safetensors_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    ModelRecipe::new("tiny-dense", "BF16".parse().unwrap()).write_folder(folder.path()).unwrap();
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    let error = Assignment::new(&checkpoint, &options("Q8_0"), None).err().unwrap().to_string();
    assert!(error.contains("safetensors"), "{error}");
}

#[test]
fn a_size_is_met_and_larger_sizes_have_lower_errors() {
    let model = QuantizeFixture::new("tiny-v3", "BF16");
    let mut assignment = Assignment::new(&model.checkpoint, &options("Q4_K_M"), None).unwrap();
    let of_mix = assignment.bytes().unwrap();
    let measured = assignment.measure(3, &|_, _| true).unwrap();
    let mut errors = Vec::new();
    for target in [3_900_000, 5_000_000, 7_000_000, 12_000_000] {
        let fit = assignment.fit(&measured, target).unwrap();
        assert!(fit.bytes <= target && fit.bytes * 100 > target * 95, "{target}: {fit:?}");
        assert_eq!(fit.bytes, assignment.bytes().unwrap());
        errors.push(fit.error);
    }
    assert!(errors.is_sorted_by(|a, b| a > b), "{errors:?}");
    let fit = assignment.fit(&measured, of_mix).unwrap();
    assert!(fit.error < fit.error_of_mix && fit.bytes_of_mix == of_mix, "{fit:?}");
    assert_eq!(whole(&assignment, &model.at("out.gguf"), 2).bytes, fit.bytes);

    let again = assignment.measure(1, &|_, _| true).unwrap();
    assert_eq!(assignment.fit(&again, of_mix).unwrap().error, fit.error);
    let (least, most) = measured.range();
    assert!(assignment.fit(&measured, least).is_ok() && most > 12_000_000);
    let error = assignment.fit(&measured, least - 1).unwrap_err();
    assert!(error.to_string().contains("smallest file"), "{error}");
    assert!(matches!(assignment.measure(2, &|_, _| false), Err(ConvertError::Interrupted)));
}

#[test]
fn a_set_of_files_is_the_same_model() {
    let model = QuantizeFixture::new("tiny-v3", "BF16");
    let mut assignment = Assignment::new(&model.checkpoint, &options("Q4_K_S"), None).unwrap();
    whole(&assignment, &model.at("one.gguf"), 2);
    assignment.split(2_000_000).unwrap();
    let written = whole(&assignment, &model.at("set.gguf"), 3);
    assert!(written.files.len() > 2 && written.files == assignment.targets(&model.at("set.gguf")));
    let (one, set) =
        (Checkpoint::open(&model.at("one.gguf")).unwrap(), Checkpoint::open(&written.files[0]).unwrap());
    assert_eq!((set.files(), set.tensors().len()), (written.files.len(), one.tensors().len()));
    for tensor in one.tensors() {
        assert!(one.tensor(&tensor.name).unwrap().data == set.tensor(&tensor.name).unwrap().data);
    }
    let bytes: u64 = written.files.iter().map(|file| std::fs::metadata(file).unwrap().len()).sum();
    assert_eq!((bytes, assignment.bytes().unwrap()), (written.bytes, written.bytes));
}

/// Of two groups, the one whose errors matter more gets more bits than with equal sensitivities.
#[test]
fn bytes_go_to_tensors_whose_errors_matter() {
    let model = QuantizeFixture::new("tiny-v3", "BF16");
    let mut assignment = Assignment::new(&model.checkpoint, &options("Q4_K_M"), None).unwrap();
    let mut measured = assignment.measure(3, &|_, _| true).unwrap();
    let size = 7_000_000;
    let alike = assignment.fit(&measured, size).unwrap();
    assert_eq!(alike.expected_kl, None);
    let bytes = |assignment: &Assignment<'_>, part: &str| -> u64 {
        let of = assignment.tensors().iter().filter(|tensor| tensor.name.contains(part));
        of.map(|tensor| tensor.bytes_to).sum()
    };
    let before = ["ffn_down_exps", "ffn_up_exps"].map(|part| bytes(&assignment, part));
    let groups = assignment.groups(&measured);
    assert!(groups.len() > 10 && groups.iter().all(|group| !group.name.starts_with("blk.")), "{groups:?}");
    let mut divergences = Vec::new();
    for group in groups {
        assignment.try_group(&measured, &group).unwrap();
        for tensor in assignment.tensors() {
            let in_group = tensor.name == group.name || tensor.name.ends_with(&format!(".{}", group.name));
            assert_eq!(tensor.to != tensor.from, in_group, "{} {}", group.name, tensor.name);
        }
        let kl = match &*group.name {
            "ffn_down_exps.weight" => 0.5,
            // Without any effect, like weights that only the MTP layer reads.
            "attn_q_a.weight" => 0.0,
            _ => 0.01,
        };
        divergences.push((group, kl));
    }
    measured.set_sensitivities(&divergences);
    let weighted = assignment.fit(&measured, size).unwrap();
    let (expected, of_mix) = weighted.expected_kl.unwrap();
    assert!(expected > 0.0 && of_mix > 0.0 && weighted.bytes <= size);
    assert!(weighted.error > alike.error);
    let after = ["ffn_down_exps", "ffn_up_exps"].map(|part| bytes(&assignment, part));
    assert!(after[0] > before[0] && after[1] < before[1], "{before:?} {after:?}");
    // A budget for the largest types gives zero error.
    let (_, most) = measured.range();
    assert_eq!(assignment.fit(&measured, most).unwrap().expected_kl.unwrap().0, 0.0);
}
