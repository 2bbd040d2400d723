//! 4-bit weights of GPTQ, AWQ and compressed-tensors checkpoints: all values computed by hand, and
//! malformed tensors of every kind.

use crate::support::says;
use latent_formats::safetensors::Writer;
use latent_formats::{Checkpoint, Outline};
use latent_types::TensorType::{self, BF16, F8_E4M3, F16, F32, I8, I32, I64};

type FourBitTensors = Vec<(&'static str, TensorType, Vec<usize>, Vec<u8>)>;

fn folder(settings: &str, tensors: &FourBitTensors) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let mut writer = Writer::new();
    for (name, ty, shape, _) in tensors {
        writer.tensor(*name, *ty, shape).unwrap();
    }
    let mut file = Vec::new();
    writer.write(&mut file, |i, out| out.write_all(&tensors[i].3)).unwrap();
    std::fs::write(folder.path().join("model.safetensors"), file).unwrap();
    let config = format!("{{\"quantization_config\":{settings}}}");
    std::fs::write(folder.path().join("config.json"), config).unwrap();
    folder
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn halves(bits: &[u16]) -> Vec<u8> {
    bits.iter().flat_map(|bits| bits.to_le_bytes()).collect()
}

/// The bits of 1, 2, 0.5 and 3 as f16.
const ONE: u16 = 0x3c00;
const TWO: u16 = 0x4000;
const HALF: u16 = 0x3800;

const GPTQ: &str = r#"{"quant_method":"gptq","bits":4,"group_size":32,"sym":false,"desc_act":false}"#;
const SYMMETRIC: &str = r#"{"quant_method":"gptq","bits":4,"group_size":32,"sym":true,"desc_act":false}"#;
const ORDERED: &str = r#"{"quant_method":"gptq","bits":4,"group_size":32,"sym":true,"desc_act":true}"#;
const AWQ: &str = r#"{"quant_method":"awq","bits":4,"group_size":32,"zero_point":true,"version":"GEMM"}"#;

fn kinds(kinds: &str) -> String {
    format!(
        r#"{{"quant_method":"compressed-tensors","format":"pack-quantized","config_groups":{{{kinds}}}}}"#
    )
}

fn kind(bits: u32, ty: &str, symmetric: bool, group: u32) -> String {
    format!(
        r#"{{"weights":{{"num_bits":{bits},"type":"{ty}","symmetric":{symmetric},"group_size":{group}}}}}"#
    )
}

/// Eight outputs of 64 inputs in two groups. Input k of output n has the quant (k + n) % 16, so
/// that all words differ.
fn quant(n: usize, k: usize) -> u32 {
    ((k + n) % 16) as u32
}

/// The zero points: n in the first group, 15 - n in the second. GPTQ stores them minus one.
fn gptq() -> FourBitTensors {
    let word = |row: usize, n: usize| (0..8).fold(0, |word, i| word | quant(n, row * 8 + i) << (4 * i));
    let quants: Vec<u32> = (0..64).map(|i| word(i / 8, i % 8)).collect();
    let zeros = [0x7654_3210u32, 0x89ab_cdef].map(|word| word.wrapping_sub(0x1111_1111));
    vec![
        ("l.qweight", I32, vec![8, 8], words(&quants)),
        ("l.qzeros", I32, vec![2, 1], words(&zeros)),
        ("l.scales", F16, vec![2, 8], halves(&[[ONE; 8], [TWO; 8]].concat())),
        ("l.g_idx", I32, vec![64], words(&(0..64).map(|i| i / 32).collect::<Vec<u32>>())),
        ("n.weight", F32, vec![2], vec![0; 8]),
    ]
}

/// The elements of a row of Q4_0 or Q5_0, by the blocks' definition.
fn elements(ty: TensorType, row: &[u8]) -> Vec<f32> {
    let (five, middle) = (ty == TensorType::Q5_0, if ty == TensorType::Q5_0 { 16 } else { 8 });
    let mut out = Vec::new();
    for block in row.chunks_exact(ty.block_bytes()) {
        let d = half(u16::from_le_bytes([block[0], block[1]]));
        let high = if five { u32::from_le_bytes([block[2], block[3], block[4], block[5]]) } else { 0 };
        let low = &block[if five { 6 } else { 2 }..];
        out.extend((0..32).map(|i| {
            let nibble = if i < 16 { low[i] & 15 } else { low[i - 16] >> 4 };
            d * (i32::from(nibble) + 16 * (high >> i & 1) as i32 - middle) as f32
        }));
    }
    out
}

/// A positive normal f16.
fn half(bits: u16) -> f32 {
    (1.0 + f32::from(bits & 0x3ff) / 1024.0) * 2f32.powi(i32::from(bits >> 10) - 15)
}

fn bytes_of(checkpoint: &Checkpoint, name: &str) -> Vec<u8> {
    let mut scratch = Vec::new();
    let rows = checkpoint.info(name).unwrap().rows();
    checkpoint.rows(name).unwrap().unwrap().read(0..rows, &mut scratch).to_vec()
}

fn values(checkpoint: &Checkpoint, name: &str) -> Vec<f32> {
    let info = checkpoint.info(name).unwrap();
    let row = info.bytes / info.rows();
    bytes_of(checkpoint, name).chunks_exact(row).flat_map(|row| elements(info.ty, row)).collect()
}

/// Checks that a folder is rejected when it is opened, or for errors in the data, when rows are
/// read.
#[track_caller]
fn refused(settings: &str, tensors: &FourBitTensors, parts: &[&str]) {
    let folder = folder(settings, tensors);
    match Checkpoint::open(folder.path()) {
        Ok(checkpoint) => says(checkpoint.rows("l.weight"), parts),
        opened => says(opened, parts),
    }
}

/// The tensors with one of them replaced.
fn with(
    mut tensors: FourBitTensors,
    name: &str,
    ty: TensorType,
    shape: &[usize],
    bytes: Vec<u8>,
) -> FourBitTensors {
    let tensor = tensors.iter_mut().find(|tensor| tensor.0 == name).unwrap();
    (tensor.1, tensor.2, tensor.3) = (ty, shape.to_vec(), bytes);
    tensors
}

fn without(mut tensors: FourBitTensors, name: &str) -> FourBitTensors {
    tensors.retain(|tensor| tensor.0 != name);
    tensors
}

// ---- Valid weights

#[test]
fn gptq_has_inputs_in_words_and_zero_points_less_one() {
    for second in [false, true] {
        let mut settings = GPTQ.to_owned();
        let mut tensors = gptq();
        if second {
            settings = GPTQ.replace("\"bits\"", "\"checkpoint_format\":\"gptq_v2\",\"bits\"");
            tensors = with(tensors, "l.qzeros", I32, &[2, 1], words(&[0x7654_3210, 0x89ab_cdef]));
        }
        let folder = folder(&settings, &tensors);
        let checkpoint = Checkpoint::open(folder.path()).unwrap();
        let names: Vec<&str> = checkpoint.tensors().iter().map(|info| info.name.as_str()).collect();
        assert_eq!(names, ["l.weight", "n.weight"]);
        let info = checkpoint.info("l.weight").unwrap();
        assert_eq!((info.ty, info.shape.as_slice(), info.bytes), (TensorType::Q5_0, &[8, 64][..], 8 * 44));
        assert!(!info.is_stored() && checkpoint.tensor("l.weight").is_none());
        let found = values(&checkpoint, "l.weight");
        for (i, value) in found.iter().enumerate() {
            let (n, k) = (i / 64, i % 64);
            let (zero, scale) = if k < 32 { (n as f32, 1.0) } else { (15.0 - n as f32, 2.0) };
            assert_eq!(*value, (quant(n, k) as f32 - zero) * scale, "output {n}, input {k}");
        }
    }
}

#[test]
fn symmetric_gptq_is_q4_0() {
    let eights = words(&[0x8888_8888u32.wrapping_sub(0x1111_1111); 2]);
    let folder = folder(SYMMETRIC, &with(gptq(), "l.qzeros", I32, &[2, 1], eights));
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    assert_eq!(checkpoint.info("l.weight").unwrap().ty, TensorType::Q4_0);
    let found = values(&checkpoint, "l.weight");
    let expected = |i: usize| (quant(i / 64, i % 64) as f32 - 8.0) * if i % 64 < 32 { 1.0 } else { 2.0 };
    assert_eq!(found, (0..512).map(expected).collect::<Vec<f32>>());
}

#[test]
fn awq_has_outputs_in_words_in_its_own_order() {
    let place = [0, 2, 4, 6, 1, 3, 5, 7];
    let word = |k: usize| (0..8).fold(0, |word, i| word | quant(place[i], k) << (4 * i));
    let zero = |at: &dyn Fn(usize) -> u32| (0..8).fold(0, |word, i| word | at(place[i]) << (4 * i));
    let tensors: FourBitTensors = vec![
        ("l.qweight", I32, vec![64, 1], words(&(0..64).map(word).collect::<Vec<u32>>())),
        ("l.qzeros", I32, vec![2, 1], words(&[zero(&|n| n as u32), zero(&|n| 15 - n as u32)])),
        ("l.scales", F16, vec![2, 8], halves(&[[ONE; 8], [HALF; 8]].concat())),
    ];
    let folder = folder(AWQ, &tensors);
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    assert_eq!(checkpoint.info("l.weight").unwrap().ty, TensorType::Q5_0);
    for (i, value) in values(&checkpoint, "l.weight").iter().enumerate() {
        let (n, k) = (i / 64, i % 64);
        let (zero, scale) = if k < 32 { (n as f32, 1.0) } else { (15.0 - n as f32, 0.5) };
        assert_eq!(*value, (quant(n, k) as f32 - zero) * scale, "output {n}, input {k}");
    }
}

/// Asymmetric weights of compressed-tensors: eight outputs of 64 inputs in groups of 32.
fn compressed() -> FourBitTensors {
    let word = |n: usize, col: usize| (0..8).fold(0, |word, i| word | quant(n, col * 8 + i) << (4 * i));
    let quants: Vec<u32> = (0..64).map(|i| word(i / 8, i % 8)).collect();
    let shape = [8u64, 64].iter().flat_map(|side| side.to_le_bytes()).collect();
    vec![
        ("l.weight_packed", I32, vec![8, 8], words(&quants)),
        ("l.weight_scale", F16, vec![8, 2], halves(&[[ONE, TWO]; 8].concat())),
        ("l.weight_zero_point", I32, vec![1, 2], words(&[0x7654_3210, 0x89ab_cdef])),
        ("l.weight_shape", I64, vec![2], shape),
    ]
}

#[test]
fn compressed_tensors_have_rows_in_words() {
    let settings = kinds(&format!("\"a\":{}", kind(4, "int", false, 32)));
    let bytes: Vec<u8> = (0..8).flat_map(|n| [n as i8 - 8, 7 - n as i8]).map(|z| z as u8).collect();
    for tensors in [compressed(), with(compressed(), "l.weight_zero_point", I8, &[8, 2], bytes)] {
        let folder = folder(&settings, &tensors);
        let checkpoint = Checkpoint::open(folder.path()).unwrap();
        assert_eq!(checkpoint.tensors().len(), 1);
        for (i, value) in values(&checkpoint, "l.weight").iter().enumerate() {
            let (n, k) = (i / 64, i % 64);
            let (zero, scale) = if k < 32 { (n as f32, 1.0) } else { (15.0 - n as f32, 2.0) };
            assert_eq!(*value, (quant(n, k) as f32 - zero) * scale, "output {n}, input {k}");
        }
        let outline = Outline::open(folder.path()).unwrap();
        assert_eq!(outline.tensor("l.weight").unwrap().ty, TensorType::Q5_0);
    }
}

#[test]
fn scales_that_f16_cannot_hold_have_a_factor() {
    // The bits of 2^-30 and 3 · 2^-32 as bf16.
    let scales = halves(&[[0x3080, 0x3040]; 8].concat());
    let tensors = without(with(compressed(), "l.weight_scale", BF16, &[8, 2], scales), "l.weight_zero_point");
    let folder = folder(&kinds(&format!("\"a\":{}", kind(4, "int", true, 32))), &tensors);
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    let names: Vec<&str> = checkpoint.tensors().iter().map(|info| info.name.as_str()).collect();
    assert_eq!(names, ["l.weight", "l.weight_scale_inv"]);
    let factor = bytes_of(&checkpoint, "l.weight_scale_inv");
    let factor = f32::from_le_bytes([factor[0], factor[1], factor[2], factor[3]]);
    for (i, value) in values(&checkpoint, "l.weight").iter().enumerate() {
        let scale = if i % 64 < 32 { 2f32.powi(-30) } else { 3.0 * 2f32.powi(-32) };
        assert_eq!(value * factor, (quant(i / 64, i % 64) as f32 - 8.0) * scale, "{i}");
    }
}

#[test]
fn an_order_of_inputs_is_followed_and_makes_f16() {
    let order: Vec<u32> = (0..64).map(|i| (i + 1) % 2).collect();
    let eights = words(&[0x7777_7777; 2]);
    let tensors = with(with(gptq(), "l.qzeros", I32, &[2, 1], eights), "l.g_idx", I32, &[64], words(&order));
    let folder = folder(ORDERED, &tensors);
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    assert_eq!(checkpoint.info("l.weight").unwrap().ty, F16);
    let bytes = bytes_of(&checkpoint, "l.weight");
    for (i, bytes) in bytes.chunks_exact(2).enumerate() {
        let scale = [1.0, 2.0][(i + 1) % 2];
        let expected = (quant(i / 64, i % 64) as f32 - 8.0) * scale;
        let bits = u16::from_le_bytes([bytes[0], bytes[1]]);
        let found = if bits & 0x7fff == 0 { 0.0 } else { half(bits & 0x7fff) };
        assert_eq!(if bits >> 15 == 1 { -found } else { found }, expected, "{i}");
    }
    // The same order in a file whose settings exclude one.
    refused(SYMMETRIC, &tensors, &["l.g_idx", "column 0 belongs to group 1, expected 0", "desc_act"]);
}

#[test]
fn settings_of_text_config_apply_to_multimodal_models() {
    let folder = folder("null", &compressed());
    let settings = kinds(&format!("\"a\":{}", kind(4, "int", false, 32)));
    let config = format!("{{\"text_config\":{{\"quantization_config\":{settings}}}}}");
    std::fs::write(folder.path().join("config.json"), config).unwrap();
    assert!(Checkpoint::open(folder.path()).unwrap().info("l.weight").is_some());
}

#[test]
fn config_groups_may_have_several_kinds() {
    let other = [
        ("m.weight_packed", I32, vec![8, 8], vec![0; 256]),
        ("m.weight_scale", F16, vec![8, 1], halves(&[ONE; 8])),
    ];
    let tensors: FourBitTensors = compressed().into_iter().chain(other).collect();
    let both = format!("\"a\":{},\"b\":{}", kind(4, "int", false, 32), kind(4, "int", true, 64));
    let mixed = folder(&kinds(&both), &tensors);
    let checkpoint = Checkpoint::open(mixed.path()).unwrap();
    let type_of = |name: &str| checkpoint.info(name).unwrap().ty;
    assert_eq!((type_of("l.weight"), type_of("m.weight")), (TensorType::Q5_0, TensorType::Q4_0));
    let one = kinds(&format!("\"a\":{}", kind(4, "int", false, 32)));
    refused(
        &one,
        &tensors,
        &["m.weight_packed has symmetric int4 with a scale per row", "asymmetric int4 in groups of 32"],
    );
}

// ---- Settings

#[test]
fn other_settings_are_refused_by_name_and_value() {
    let changed = |from: &str, to: &str| GPTQ.replace(from, to);
    refused(&changed("gptq", "bitsandbytes"), &gptq(), &["\"bitsandbytes\"", "compressed-tensors"]);
    refused(&changed(":4,", ":8,"), &gptq(), &["bits is 8", "only 4"]);
    refused(&changed(r#""bits":4,"#, ""), &gptq(), &["bits is null", "only 4"]);
    refused(&changed(":32,", ":0,"), &gptq(), &["group_size is 0"]);
    refused(
        &changed(":32,", ":64,"),
        &gptq(),
        &["group_size is 64, but l.qweight has 2 groups for 64 inputs"],
    );
    refused(&changed(":32,", ":48,"), &gptq(), &["l.qweight", "64 inputs are not a multiple of 48"]);
    let v = |format: &str| changed("\"bits\"", &format!("\"checkpoint_format\":\"{format}\",\"bits\""));
    refused(&v("marlin"), &gptq(), &["checkpoint_format is \"marlin\"", "gptq_v2"]);
    refused(&changed("\"bits\"", "\"pack_dtype\":\"int64\",\"bits\""), &gptq(), &["pack_dtype", "int32"]);
    refused(&changed("\"sym\":false", "\"sym\":3"), &gptq(), &["sym is 3", "true or false"]);
    refused(&AWQ.replace("GEMM", "gemv"), &gptq(), &["version is \"gemv\"", "gemm"]);
    refused("null", &gptq(), &["l.qweight is packed", "quantization_config"]);
    let eight = kinds(&format!("\"a\":{}", kind(8, "int", false, 32)));
    refused(
        &eight,
        &compressed(),
        &["integers of 8 bits (compressed-tensors", "compressed-tensors of 4 bits"],
    );
    refused(&kinds(""), &compressed(), &["config_groups has nothing"]);
    let marlin = kinds("").replace("pack-quantized", "marlin-24");
    refused(&marlin, &compressed(), &["format is \"marlin-24\""]);
}

// ---- Tensors

#[test]
fn mismatched_tensors_are_rejected_with_their_sizes() {
    let scales = || halves(&[ONE; 16]);
    refused(GPTQ, &without(gptq(), "l.qzeros"), &["l.qweight has no l.qzeros"]);
    refused(
        GPTQ,
        &with(gptq(), "l.qweight", I64, &[8, 8], vec![0; 512]),
        &["l.qweight is I64, expected I32"],
    );
    let flat = with(gptq(), "l.qweight", I32, &[64], vec![0; 256]);
    refused(GPTQ, &flat, &["l.qweight has shape [64]", "matrix"]);
    let turned = with(gptq(), "l.scales", F16, &[8, 2], scales());
    refused(GPTQ, &turned, &["l.scales has shape [8, 2], expected [8, 8]"]);
    refused(GPTQ, &with(gptq(), "l.scales", I8, &[2, 8], vec![0; 16]), &["l.scales is I8, expected F16"]);
    let narrow = with(gptq(), "l.qzeros", I32, &[1, 2], vec![0; 8]);
    refused(GPTQ, &narrow, &["l.qzeros has shape [1, 2], expected [2, 1] for l.qweight of [8, 8]"]);
    let short = with(gptq(), "l.g_idx", I32, &[32], vec![0; 128]);
    refused(GPTQ, &short, &["l.g_idx has shape [32], expected [64]"]);
    let twice: FourBitTensors = gptq().into_iter().chain([("l.weight", F32, vec![1], vec![0; 4])]).collect();
    refused(GPTQ, &twice, &["both l.qweight and l.weight"]);
    let none = with(gptq(), "l.scales", F16, &[0, 8], Vec::new());
    refused(GPTQ, &none, &["l.qweight has 0 groups"]);
    let settings = kinds(&format!("\"a\":{}", kind(4, "int", false, 32)));
    let thirds = with(compressed(), "l.weight_scale", F16, &[8, 3], halves(&[ONE; 24]));
    refused(&settings, &thirds, &["l.weight_packed: 64 inputs are not a multiple of 3"]);
    let zeros = with(compressed(), "l.weight_zero_point", F32, &[1, 2], vec![0; 8]);
    refused(&settings, &zeros, &["l.weight_zero_point is F32, expected I32 or I8"]);
}

#[test]
fn invalid_data_are_rejected_with_their_position() {
    for bad in [2u32, u32::MAX] {
        let mut order: Vec<u32> = (0..64).map(|i| i / 32).collect();
        order[40] = bad;
        let parts = ["l.g_idx", "column 40 belongs to group", "of 2 groups"];
        let tensors = with(gptq(), "l.g_idx", I32, &[64], words(&order));
        refused(GPTQ, &tensors, &parts);
        refused(ORDERED, &tensors, &parts);
    }
    refused(SYMMETRIC, &gptq(), &["l.qzeros", "output 0, group 0 is 0, expected 8", "sym is true"]);
    let settings = kinds(&format!("\"a\":{}", kind(4, "int", false, 32)));
    let far = with(
        compressed(),
        "l.weight_zero_point",
        I8,
        &[8, 2],
        vec![0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
    );
    refused(&settings, &far, &["output 1, group 1 is 16, expected 0 to 15"]);
    let shape = [8u64, 60].iter().flat_map(|side| side.to_le_bytes()).collect();
    let other = with(compressed(), "l.weight_shape", I64, &[2], shape);
    refused(&settings, &other, &["l.weight_shape", "[8, 60]", "[8, 64]"]);
}

#[test]
fn nan_and_negative_scales_of_four_bit_floats_are_rejected() {
    let float = |group: u32| kinds(&format!("\"a\":{}", kind(4, "float", true, group)));
    let nv = |scale: u8, global: f32| -> FourBitTensors {
        vec![
            ("l.weight_packed", I8, vec![1, 32], (0..32).collect()),
            ("l.weight_scale", F8_E4M3, vec![1, 4], vec![0x38, 0x40, scale, 0x30]),
            ("l.weight_global_scale", F32, vec![1], global.to_le_bytes().to_vec()),
            ("l.input_global_scale", F32, vec![1], vec![0; 4]),
        ]
    };
    let good = folder(&float(16), &nv(0x38, 4.0));
    let checkpoint = Checkpoint::open(good.path()).unwrap();
    assert_eq!(checkpoint.tensors().len(), 2);
    let block = bytes_of(&checkpoint, "l.weight");
    assert_eq!(block[..4], [0x38, 0x40, 0x38, 0x30]);
    // Bytes 0 and 4 of the file contain inputs 0, 1 and 8, 9.
    assert_eq!(block[4..6], [4 << 4, 0]);
    assert_eq!(bytes_of(&checkpoint, "l.weight_scale_inv"), 0.25f32.to_le_bytes());
    refused(&float(16), &nv(0x7f, 1.0), &["l.weight_scale: scale 2 is the code 0x7f"]);
    refused(&float(16), &nv(0xb8, 1.0), &["scale 2 is the code 0xb8, expected a non-negative number"]);
    refused(&float(32), &nv(0x38, 1.0), &["symmetric float4 in groups of 16"]);
    let zero = folder(&float(16), &nv(0x38, 0.0));
    let checkpoint = Checkpoint::open(zero.path()).unwrap();
    says(
        checkpoint.rows("l.weight_scale_inv"),
        &["l.weight_global_scale: scale 0 is 0, expected a positive number"],
    );
    let mx = |scale: u8| -> FourBitTensors {
        vec![
            ("l.weight_packed", I8, vec![1, 16], (0..16).collect()),
            ("l.weight_scale", I8, vec![1, 1], vec![scale]),
        ]
    };
    let good = folder(&float(32), &mx(127));
    let block = bytes_of(&Checkpoint::open(good.path()).unwrap(), "l.weight");
    assert_eq!((block[0], &block[1..3]), (127, &[8 << 4, 0][..]));
    refused(&float(32), &mx(255), &["scale 0 is the code 0xff"]);
    let odd = with(mx(127), "l.weight_packed", I8, &[2, 8], vec![0; 16]);
    refused(&float(32), &odd, &["l.weight_packed: 16 inputs are not a multiple of 32"]);
}

#[test]
fn malformed_tensors_never_panic() {
    let float = kinds(&format!("\"a\":{}", kind(4, "float", true, 32)));
    let both = format!("\"a\":{},\"b\":{}", kind(4, "int", false, 32), kind(4, "int", true, 64));
    let both = kinds(&both);
    let bases = [
        (GPTQ, gptq()),
        (ORDERED, gptq()),
        (AWQ, gptq()),
        (float.as_str(), compressed()),
        (both.as_str(), compressed()),
    ];
    let types = [I8, I32, F16, F8_E4M3];
    let shapes: [&[usize]; 6] = [&[], &[0], &[64], &[8, 8], &[2, 8], &[0, 8]];
    let (mut opened, mut read) = (0, 0);
    for (settings, base) in bases {
        let cases = types.into_iter().flat_map(|ty| shapes.map(|shape| (ty, shape)));
        for ((ty, shape), (name, ..)) in cases.flat_map(|case| base.iter().map(move |tensor| (case, tensor)))
        {
            let bytes = ty.block_bytes() * shape.iter().product::<usize>();
            let bytes = (0..bytes).map(|i| (i * 37 % 251) as u8).collect();
            let folder = folder(settings, &with(base.clone(), name, ty, shape, bytes));
            drop(Outline::open(folder.path()));
            let Ok(checkpoint) = Checkpoint::open(folder.path()) else { continue };
            opened += 1;
            for info in checkpoint.tensors() {
                let mut scratch = Vec::new();
                let Ok(Some(rows)) = checkpoint.rows(&info.name) else { continue };
                assert_eq!(rows.read(0..info.rows(), &mut scratch).len(), info.bytes, "{}", info.name);
                read += 1;
            }
        }
    }
    assert!(opened > 20 && read > 20, "{opened} opened, {read} read: the cases do not reach the decoder");
}
