//! Converting and quantizing in one pass gives the same bytes as a conversion followed by
//! `latent_convert::quantize`.

use crate::support::{case_folder, types};
use latent_convert::quantize::{Assignment, Importances, Options, TensorPattern, write};
use latent_convert::{GgufOptions, to_gguf};
use latent_formats::Checkpoint;
use latent_formats::gguf::{Writer, WriterValue};
use latent_testing::{FourBitLayout, FourBitRecipe, ModelRecipe, MtpLayer};
use latent_types::TensorType;
use std::path::Path;

fn converted(folder: &Path, file: &Path, types: Option<&Options>, importances: Option<&Importances>) {
    let options = GgufOptions { types, importances, threads: Some(3), force: true, ..GgufOptions::default() };
    to_gguf(&Checkpoint::open(folder).unwrap(), file, &options, &mut |_, _| true).unwrap();
}

/// The bytes of a quantized model: written in one pass, and through an intermediate file of type
/// `between` (or of the conversion's default).
fn both(
    folder: &Path,
    between: Option<&str>,
    options: &Options,
    importances: Option<&Importances>,
) -> [Vec<u8>; 2] {
    let temporary = tempfile::tempdir().unwrap();
    let at = |name: &str| temporary.path().join(name);
    converted(folder, &at("one.gguf"), Some(options), importances);
    converted(folder, &at("between.gguf"), between.map(types).as_ref(), None);
    let wide = Checkpoint::open(&at("between.gguf")).unwrap();
    let assignment = Assignment::new(&wide, options, importances).unwrap();
    write(&assignment, &at("two.gguf"), 2, &mut |_, _| true).unwrap();
    ["one.gguf", "two.gguf"].map(|name| std::fs::read(at(name)).unwrap())
}

/// Models with experts, separate and combined keys and values, an indexer, an MTP layer, and
/// LongRoPE's factors.
#[test]
fn one_pass_gives_the_bytes_of_two() {
    let cases = [
        ("v3", "Q4_K_M"),
        ("v3-mtp", "Q5_K_M"),
        ("v2-lite", "MXFP4_MOE"),
        ("minicpm3-long", "Q8_0"),
        ("plm", "Q3_K_L"),
        ("glm-dsa", "IQ4_XS"),
        ("deepseek32", "Q2_K"),
        ("youtu", "Q4_0"),
        ("v3-bias", "TQ2_0"),
    ];
    for (case, mix) in cases {
        let [one, two] = both(&case_folder(case), None, &types(mix), None);
        assert!(one == two, "{case} {mix}");
    }
}

/// Rows whose width is a multiple of K-quant blocks, with types by name and with importances.
#[test]
fn types_by_name_and_importances_apply_as_in_two_passes() {
    let temporary = tempfile::tempdir().unwrap();
    let folder = temporary.path().join("model");
    ModelRecipe { mtp: MtpLayer::Own, ..ModelRecipe::new("tiny-v3", "BF16".parse().unwrap()) }
        .write_folder(&folder)
        .unwrap();
    let path = temporary.path().join("imatrix.gguf");
    converted(&folder, &temporary.path().join("wide.gguf"), None, None);
    imatrix(&Checkpoint::open(&temporary.path().join("wide.gguf")).unwrap(), &path);
    let importances = Importances::read(&path).unwrap();
    let mut options = types("IQ3_XXS");
    options.tensor_types = vec![(TensorPattern::new("ffn_down_exps").unwrap(), TensorType::Q6_K)];
    (options.output, options.embedding) = (Some(TensorType::Q8_0), Some(TensorType::Q4_0));
    let [one, two] = both(&folder, None, &options, Some(&importances));
    assert!(one == two && one.windows(15).any(|bytes| bytes == b"quantize.imatri"));
    for (mix, pure) in [("Q4_K_M", true), ("Q3_K_M", false), ("BF16", false)] {
        let [one, two] = both(&folder, None, &Options { pure, ..types(mix) }, None);
        assert!(one == two, "{mix}");
    }
}

/// Writes importances of 1 to 8 by column for every matrix.
fn imatrix(model: &Checkpoint, path: &Path) {
    let mut writer = Writer::new();
    writer.key("general.type", WriterValue::String("imatrix".into()));
    let mut data = Vec::new();
    for tensor in model.tensors().iter().filter(|tensor| tensor.shape.len() > 1) {
        let columns = *tensor.shape.last().unwrap();
        let counts = if tensor.shape.len() > 2 { tensor.shape[0] } else { 1 };
        writer.tensor(format!("{}.in_sum2", tensor.name), TensorType::F32, &[counts, columns]).unwrap();
        data.push((0..counts * columns).map(|i| (1 + i % 8) as f32).collect::<Vec<f32>>());
        writer.tensor(format!("{}.counts", tensor.name), TensorType::F32, &[counts, 1]).unwrap();
        data.push(vec![1.0; counts]);
    }
    let bytes = |i: usize| data[i].iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>();
    writer.write(&mut std::fs::File::create(path).unwrap(), |i, out| out.write_all(&bytes(i))).unwrap();
}

/// FP8 and 4-bit weights are not rounded to F16 in between, so the intermediate file of the
/// comparison is F32.
#[test]
fn low_bit_weights_are_quantized_from_their_exact_values() {
    let temporary = tempfile::tempdir().unwrap();
    let at = |name: &str| temporary.path().join(name);
    ModelRecipe::new("tiny-v3", "F8_E4M3".parse().unwrap()).write_folder(&at("fp8")).unwrap();
    for mix in ["Q4_K_M", "Q8_0"] {
        let [one, two] = both(&at("fp8"), Some("F32"), &types(mix), None);
        assert!(one == two, "{mix}");
    }
    let forms =
        [FourBitRecipe::new(FourBitLayout::Gptq, true), FourBitRecipe::new(FourBitLayout::Awq, false)];
    for (i, form) in forms.iter().enumerate() {
        let [packed, plain] = ["packed", "plain"].map(|name| at(&format!("{name}{i}")));
        let recipe = ModelRecipe { layers: Some(2), ..ModelRecipe::new("tiny-v3", "F32".parse().unwrap()) };
        recipe.write_four_bit(form, &packed, &plain).unwrap();
        let own = Checkpoint::open(&packed).unwrap();
        let refused = types("Q4_K_M");
        let options = GgufOptions { types: Some(&refused), ..GgufOptions::default() };
        let said = to_gguf(&own, &at("x.gguf"), &options, &mut |_, _| true).unwrap_err().to_string();
        assert!(said.contains("`allow_requantize`"), "{said}");
        let allowed = Options { allow_requantize: true, ..types("Q4_K_M") };
        let [one, two] = both(&packed, Some("F32"), &allowed, None);
        assert!(one == two, "{form:?}");
    }
}
