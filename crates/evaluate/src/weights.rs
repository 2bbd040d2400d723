//! Weight errors: compares every tensor of a file with the tensor of the same name in another file.

use crate::error::EvalError;
use latent_formats::{Checkpoint, FormatError, TensorInfo};
use serde::{Deserialize, Serialize};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// Elements per work item. Both files' rows of an item are decoded to f32, so this bounds the
/// memory of a thread.
const ELEMENTS: usize = 1 << 20;

/// Distance of a file's weights from those of a base.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WeightErrors {
    /// Number of weights in common tensors.
    pub elements: u64,
    /// Root of the sum of squared differences divided by that of the base's squared weights.
    pub relative: f64,
    /// By the tensors' type in the file.
    pub types: Vec<WeightGroup>,
    /// By the tensors' role: the name without the layer.
    pub roles: Vec<WeightGroup>,
    /// The tensors whose values differ.
    pub tensors: Vec<TensorError>,
    /// Tensors that were not compared: missing in one file, or of different shapes.
    pub skipped: Vec<String>,
}

/// A group of tensors.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WeightGroup {
    /// A type or a role.
    pub name: String,
    /// Number of tensors.
    pub tensors: usize,
    pub elements: u64,
    /// Bits per weight in the file.
    pub bits: f64,
    /// As [`WeightErrors::relative`].
    pub relative: f64,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TensorError {
    pub name: String,
    pub ty: String,
    pub base_type: String,
    /// As [`WeightErrors::relative`].
    pub relative: f64,
    /// Maximum difference.
    pub max_abs: f32,
}

/// Sums over the weights of one tensor.
#[derive(Clone, Copy, Debug, Default)]
struct WeightErrorSums {
    squares: f64,
    base_squares: f64,
    max_abs: f32,
}

impl WeightErrorSums {
    fn merge(&mut self, other: WeightErrorSums) {
        self.squares += other.squares;
        self.base_squares += other.base_squares;
        self.max_abs = self.max_abs.max(other.max_abs);
    }

    fn relative(&self) -> f64 {
        // A tensor of zeros that equals its base would give 0 / 0.
        if self.squares == 0.0 { 0.0 } else { (self.squares / self.base_squares).sqrt() }
    }
}

/// Compares the weights of two files with `threads` threads. `progress` is called with the finished
/// and total work items; if it returns false, the comparison stops.
pub fn weight_errors(
    file: &Checkpoint,
    base: &Checkpoint,
    threads: usize,
    progress: &(dyn Fn(usize, usize) -> bool + Sync),
) -> Result<WeightErrors, EvalError> {
    // FP8 tensors with block scales (DeepSeek's safetensors) are skipped: their codes have no
    // meaning without the scales.
    let scaled =
        |name: &str| [file, base].iter().any(|file| file.info(&format!("{name}_scale_inv")).is_some());
    let fits = |info: &&TensorInfo| {
        base.info(&info.name).is_some_and(|other| {
            other.shape == info.shape && [info.ty, other.ty].into_iter().all(latent_quant::can_decode)
        }) && !scaled(&info.name)
    };
    let (both, other): (Vec<&TensorInfo>, Vec<&TensorInfo>) = file.tensors().iter().partition(fits);
    if both.is_empty() {
        return Err(EvalError::NothingInCommon { file: file.display_name(), base: base.display_name() });
    }
    let mut skipped: Vec<String> = other.iter().map(|info| info.name.clone()).collect();
    let alone = base.tensors().iter().filter(|info| file.info(&info.name).is_none());
    skipped.extend(alone.map(|info| info.name.clone()));
    let pieces = pieces(&both);
    // A lock per tensor, because several threads work on the rows of a large one.
    let found: Vec<Mutex<WeightErrorSums>> = both.iter().map(|_| Mutex::default()).collect();
    let failed: Mutex<Option<FormatError>> = Mutex::default();
    // Relaxed suffices for all three: they only distribute and count work. The mutexes and the end
    // of the scope publish the sums.
    let (next, done, stop) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        for _ in 0..threads.min(pieces.len()).clamp(1, latent_threads::MAX_THREADS) {
            scope.spawn(|| {
                let mut rows = (Vec::new(), Vec::new());
                while let Some((tensor, first, count)) = pieces.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let name = &both[*tensor].name;
                    let mut sums = WeightErrorSums::default();
                    let piece = *first..first + count;
                    if let Err(error) = decode(file, name, &piece, &mut rows.0)
                        .and_then(|()| decode(base, name, &piece, &mut rows.1))
                    {
                        // One error suffices, so a later one may replace it.
                        *failed.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                        stop.store(true, Ordering::Relaxed);
                    }
                    add(&mut sums, &rows.0, &rows.1);
                    found[*tensor].lock().unwrap_or_else(PoisonError::into_inner).merge(sums);
                    if !progress(done.fetch_add(1, Ordering::Relaxed) + 1, pieces.len()) {
                        stop.store(true, Ordering::Relaxed);
                    }
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                }
            });
        }
    });
    if let Some(error) = failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
        return Err(error.into());
    }
    if stop.into_inner() {
        return Err(latent_engine::EngineError::Stopped.into());
    }
    let sums = found.into_iter().map(|sums| sums.into_inner().unwrap_or_else(PoisonError::into_inner));
    Ok(report(base, both.into_iter().zip(sums).collect(), skipped))
}

/// Tensor, first row and number of rows of each work item.
fn pieces(tensors: &[&TensorInfo]) -> Vec<(usize, usize, usize)> {
    let mut pieces = Vec::new();
    for (at, info) in tensors.iter().enumerate() {
        let (rows, width) = rows(info);
        // A row wider than a work item is still one item: decoders need whole rows.
        let each = (ELEMENTS / width.max(1)).max(1);
        pieces.extend((0..rows).step_by(each).map(|first| (at, first, each.min(rows - first))));
    }
    pieces
}

/// Number of rows of a tensor, and elements per row.
fn rows(info: &TensorInfo) -> (usize, usize) {
    let width = info.shape.last().copied().unwrap_or(1);
    (elements(info).checked_div(width).unwrap_or(0), width)
}

fn elements(info: &TensorInfo) -> usize {
    info.shape.iter().product()
}

/// Decodes some rows.
fn decode(file: &Checkpoint, name: &str, rows: &Range<usize>, out: &mut Vec<f32>) -> Result<(), FormatError> {
    let (Some(info), Some(stored)) = (file.info(name), file.rows(name)?) else { return Ok(()) };
    out.clear();
    out.resize(rows.len() * self::rows(info).1, 0.0);
    if let Some(decode) = latent_quant::decoder(info.ty) {
        decode(&stored.bytes(rows.clone()), out);
    }
    Ok(())
}

fn add(sums: &mut WeightErrorSums, a: &[f32], b: &[f32]) {
    for (a, b) in a.iter().zip(b) {
        let difference = a - b;
        // f64: a tensor may have billions of weights, whose squares would vanish in an f32 sum.
        sums.squares += f64::from(difference) * f64::from(difference);
        sums.base_squares += f64::from(*b) * f64::from(*b);
        sums.max_abs = sums.max_abs.max(difference.abs());
    }
}

fn report(
    base: &Checkpoint,
    found: Vec<(&TensorInfo, WeightErrorSums)>,
    skipped: Vec<String>,
) -> WeightErrors {
    let mut all = WeightErrorSums::default();
    found.iter().for_each(|(_, sums)| all.merge(*sums));
    // Unchanged tensors are omitted: a quantized file has many that are copied, such as norms.
    let tensors = found.iter().filter(|(_, sums)| sums.squares != 0.0).map(|(info, sums)| TensorError {
        name: info.name.clone(),
        ty: info.ty.to_string(),
        base_type: base.info(&info.name).map(|other| other.ty.to_string()).unwrap_or_default(),
        relative: sums.relative(),
        max_abs: sums.max_abs,
    });
    WeightErrors {
        elements: found.iter().map(|(info, _)| elements(info) as u64).sum(),
        relative: all.relative(),
        types: groups(&found, |info| info.ty.to_string()),
        roles: groups(&found, |info| role(&info.name)),
        tensors: tensors.collect(),
        skipped,
    }
}

/// A name without layer and expert numbers: `blk.3.ffn_up.weight` is `ffn_up`.
fn role(name: &str) -> String {
    // Numbers of layers and experts are components of their own, in GGUF and in safetensors.
    let parts = name.split('.').filter(|part| part.parse::<usize>().is_err());
    let parts: Vec<&str> =
        parts.filter(|part| !["blk", "model", "layers", "weight"].contains(part)).collect();
    if parts.is_empty() { name.to_owned() } else { parts.join(".") }
}

/// Groups tensors by `key`, sorted by decreasing error.
fn groups(found: &[(&TensorInfo, WeightErrorSums)], key: impl Fn(&TensorInfo) -> String) -> Vec<WeightGroup> {
    let mut groups: Vec<(WeightGroup, WeightErrorSums, f64)> = Vec::new();
    for (info, sums) in found {
        let name = key(info);
        let at = groups.iter().position(|(group, ..)| group.name == name).unwrap_or_else(|| {
            groups.push((WeightGroup { name, ..WeightGroup::default() }, WeightErrorSums::default(), 0.0));
            groups.len() - 1
        });
        let (group, sum, bits) = &mut groups[at];
        group.tensors += 1;
        group.elements += elements(info) as u64;
        *bits += 8.0 * info.bytes as f64;
        sum.merge(*sums);
    }
    let finish = |(mut group, sums, bits): (WeightGroup, WeightErrorSums, f64)| {
        group.relative = sums.relative();
        group.bits = bits / group.elements.max(1) as f64;
        group
    };
    let mut groups: Vec<WeightGroup> = groups.into_iter().map(finish).collect();
    groups.sort_by(|a, b| b.relative.total_cmp(&a.relative));
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_role_is_a_name_without_its_layer() {
        for (name, expected) in [
            ("blk.3.ffn_up_exps.weight", "ffn_up_exps"),
            ("blk.3.exp_probs_b.bias", "exp_probs_b.bias"),
            ("output.weight", "output"),
            ("model.layers.7.mlp.experts.11.up_proj.weight", "mlp.experts.up_proj"),
        ] {
            assert_eq!(role(name), expected);
        }
    }

    #[test]
    fn the_error_is_relative_to_the_weights() {
        let mut sums = WeightErrorSums::default();
        add(&mut sums, &[3.0, 4.5], &[3.0, 4.0]);
        assert!((sums.relative() - 0.1).abs() < 1e-12 && sums.max_abs == 0.5);
        assert_eq!(WeightErrorSums::default().relative(), 0.0);
    }
}
