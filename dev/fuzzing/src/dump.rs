//! Files that `diff --dump` and `graph --profile` read.

use crate::model;
use crate::source::FuzzSource;
use latent_engine::ActivationTrace;
use latent_evaluate::compare::{ComparedRun, Tolerance, compare, dump as file};
use latent_graph::activations::Activations;
use latent_graph::circuit::Circuit;
use latent_graph::passes::BindOptions;
use latent_graph::{CheckpointTensors, ModelConfig};
use latent_viz::{Drawing, InitialView, Options, PageOptions};
use serde_json::{Map, Value, json};
use std::sync::OnceLock;

const TOKENS: [u32; 3] = [256, 5, 99];

/// A model's activations, their values for three tokens, and its drawing.
struct DumpModel {
    points: Activations,
    trace: ActivationTrace,
    drawing: Drawing,
}

fn model() -> &'static DumpModel {
    static MODEL: OnceLock<DumpModel> = OnceLock::new();
    MODEL.get_or_init(|| {
        let make = || -> Result<DumpModel, Box<dyn std::error::Error>> {
            let checkpoint = model::tiny(0);
            let mut engine = model::load(&checkpoint, &model::options())?;
            let points = engine.activations(&checkpoint)?;
            let trace = engine.trace(&points, 0..2, &TOKENS, &mut |_| true)?;
            let config = ModelConfig::from_checkpoint(&checkpoint)?;
            let bind = BindOptions { ..engine.bind() };
            let options = Options {
                bind,
                max_batch_tokens: 32,
                layers: 0..2,
                mtp: false,
                assumed: None,
                kernels: true,
            };
            let circuit = Circuit::named(&config.circuit)?;
            let tensors = CheckpointTensors(&checkpoint);
            let drawing =
                Drawing::make(circuit, &config, &tensors, latent_backends::cpu().target(), &options)?;
            Ok(DumpModel { points, trace, drawing })
        };
        make().unwrap_or_else(|error| panic!("{error}"))
    })
}

/// Compares a dump of activations, some of them wrong, with a run; or embeds any JSON as a profile
/// in a page.
///
/// # Panics
/// If the data break out of their element in the page, or a comparison finds a difference between
/// equal bits.
pub fn dump(bytes: &[u8]) {
    let mut source = FuzzSource::new(bytes);
    if source.once_in(4) { profile(&mut source) } else { activations(&mut source) }
}

fn activations(source: &mut FuzzSource<'_>) {
    let DumpModel { points, trace, .. } = model();
    let mut tensors = vec![tokens(source)];
    for _ in 0..source.below(5) {
        tensors.push(activation(source, points, trace));
    }
    let bytes = assemble(source, &tensors);
    let Ok(folder) = tempfile::tempdir() else { return };
    let path = folder.path().join("dump.safetensors");
    if std::fs::write(&path, bytes).is_err() {
        return;
    }
    let given = source.once_in(4).then_some(&TOKENS[..]);
    let Ok(read) = file::read(&path, points, given) else { return };
    let (a, b) = (ComparedRun { points, trace }, ComparedRun { points, trace: &read });
    let _ = compare(a, b, Tolerance::between(None, None));
    // Dumps may hold NaN, which compares unequal to itself in floating point.
    if let Ok(report) = compare(b, b, Tolerance::between(None, None)) {
        let differing = report.points.iter().find(|point| point.distance.max_abs > 0.0);
        assert!(differing.is_none(), "{:?} differs from itself", differing.map(|point| &point.name));
    }
}

/// A tensor of a safetensors file: name, type, shape, bytes.
type DumpTensor = (String, &'static str, Vec<usize>, Vec<u8>);

fn tokens(source: &mut FuzzSource<'_>) -> DumpTensor {
    let mut ids: Vec<i64> = TOKENS.iter().map(|id| i64::from(*id)).collect();
    if source.once_in(4) {
        ids = (0..source.below(5)).map(|_| source.number()).collect();
    }
    let (ty, size) = *source.pick(&[("I64", 8), ("I32", 4), ("I16", 2), ("I8", 1), ("F32", 4)]);
    let bytes = ids.iter().flat_map(|id| id.to_le_bytes().into_iter().take(size)).collect();
    let name = if source.once_in(12) { "token" } else { "tokens" };
    (name.into(), ty, vec![ids.len()], bytes)
}

fn activation(source: &mut FuzzSource<'_>, points: &Activations, trace: &ActivationTrace) -> DumpTensor {
    let at = (usize::from(source.byte()) << 8 | usize::from(source.byte())) % points.list().len();
    let point = &points.list()[at];
    let mut shape = match source.below(4) {
        0 => vec![TOKENS.len(), point.heads, point.width],
        1 => vec![1, TOKENS.len(), point.row_width()],
        2 => vec![TOKENS.len() * point.heads, point.width],
        _ => vec![TOKENS.len(), point.row_width()],
    };
    if source.once_in(6) {
        let place = source.below(shape.len());
        shape[place] = source.below(9);
    }
    // Bounds the memory. A larger product then disagrees with the bytes, as in a damaged file.
    let count = shape.iter().product::<usize>().min(1 << 16);
    let fill = *source.pick(&[0.0, 1.0, f32::NAN, f32::INFINITY, -1e30]);
    let own = trace.values(at).map(|values| values.numbers.as_slice()).unwrap_or_default();
    let own = if source.once_in(2) { own } else { &[] };
    let mut numbers: Vec<f32> = own.iter().copied().chain(std::iter::repeat(fill)).take(count).collect();
    for _ in 0..source.below(4) {
        let place = source.u64() as usize % count.max(1);
        if let Some(number) = numbers.get_mut(place) {
            *number = *source.pick(&[f32::NAN, f32::NEG_INFINITY, 1e30, -0.0, f32::MIN_POSITIVE]);
        }
    }
    let bytes = |number: &f32| number.to_le_bytes();
    // The upper half of an f32 is its value in BF16, and arbitrary bits as F16.
    let (ty, bytes): (_, Vec<u8>) = match source.below(6) {
        0 => ("F16", numbers.iter().flat_map(|n| bytes(n).into_iter().skip(2)).collect()),
        1 => ("BF16", numbers.iter().flat_map(|n| bytes(n).into_iter().skip(2)).collect()),
        2 => ("F64", numbers.iter().flat_map(|n| f64::from(*n).to_le_bytes()).collect()),
        3 => ("I32", numbers.iter().flat_map(bytes).collect()),
        _ => ("F32", numbers.iter().flat_map(bytes).collect()),
    };
    let name = if source.once_in(12) { source.text() } else { point.name.clone() };
    (name, ty, shape, bytes)
}

/// The safetensors file, in some cases with a wrong header.
fn assemble(source: &mut FuzzSource<'_>, tensors: &[DumpTensor]) -> Vec<u8> {
    let (mut header, mut data) = (Map::new(), Vec::new());
    for (name, ty, shape, bytes) in tensors {
        // A JSON object cannot hold a name twice; the second tensor would leave a hole in the data.
        if header.contains_key(name) {
            continue;
        }
        let (start, end) = (data.len(), data.len() + bytes.len());
        let end = if source.once_in(24) { source.number() as usize } else { end };
        header.insert(name.clone(), json!({"dtype": ty, "shape": shape, "data_offsets": [start, end]}));
        data.extend_from_slice(bytes);
    }
    let header = Value::Object(header).to_string();
    let length = if source.once_in(24) { source.u64() } else { header.len() as u64 };
    let mut file = length.to_le_bytes().to_vec();
    file.extend_from_slice(header.as_bytes());
    file.extend_from_slice(&data);
    file
}

/// A profile is embedded in a `<script>` element of the page. No content may close that element or
/// open another.
fn profile(source: &mut FuzzSource<'_>) {
    let profile: Value = serde_json::from_str(&source.rest()).unwrap_or_else(
        |error| json!({"limits": {"read_bandwidth": 1}, "steps": [error.to_string(), "</script><script>"]}),
    );
    let wanted = InitialView { stage: "plan".into(), formulation: "auto".into(), bucket: "decode".into() };
    let options = |file: Option<Value>| PageOptions {
        wanted: wanted.clone(),
        profile: file.clone(),
        weights: file.clone(),
        parity: file,
        ..PageOptions::default()
    };
    let count = |page: &str| page.matches("<script").count();
    let page = |profile| model().drawing.page(&options(profile)).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(count(&page(Some(profile))), count(&page(None)), "the profile leaves its element");
}
