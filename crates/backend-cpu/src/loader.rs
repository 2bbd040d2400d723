//! Weight loading: decides which weights are packed into tiles and which are read in place from the
//! mapped file, and computes the memory that they take.

use crate::source_pages::SourcePages;
use crate::weight_arena::WeightArena;
use crate::weights::LoadedWeight;
use latent_backend::{BackendError, WeightBytes, WeightSource};
use latent_formats::{Checkpoint, TensorInfo};
use latent_graph::circuit::{TensorIndex, Weight};
use latent_graph::ir::{Node, Op};
use latent_graph::ops::RequiredKernels;
use latent_graph::{Stage, distinct_weights};
use latent_quant::tiles::TileLayout;
use latent_threads::ThreadPool;
use latent_types::WeightLayout;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// Bytes that the weights of these stages take in memory. Tied weights (an embedding that is also
/// the `lm_head`) count once.
pub(crate) fn weight_bytes(stages: &[Stage], source: WeightSource<'_>) -> WeightBytes {
    match source {
        WeightSource::File(checkpoint) => bytes_in_file(stages, checkpoint),
        WeightSource::Declared(tensors) => declared_bytes(stages, tensors),
    }
}

fn bytes_in_file(stages: &[Stage], checkpoint: &Checkpoint) -> WeightBytes {
    let tiled = tiled_tensors(stages);
    let mut bytes = WeightBytes::default();
    for weight in distinct_weights(stages) {
        if let Some(tiles) = layout_to_pack(weight, &tiled, checkpoint) {
            bytes.owned += (weight.matrices() * tiles.matrix_bytes(weight.outputs())) as u64;
        } else if weight.derived.is_some() {
            bytes.owned += weight.bytes() as u64;
        } else {
            let rows = infos(weight, checkpoint).map(|info| (info.is_stored(), info.bytes as u64));
            for (stored, rows) in rows {
                // Rows that are not contiguous in the file are copied.
                *if stored { &mut bytes.mapped } else { &mut bytes.owned } += rows;
            }
        }
        // Scales are decoded to f32, four bytes each.
        let scales = weight.parts.iter().filter_map(|part| checkpoint.info(part.scale.as_ref()?));
        bytes.owned += scales.map(|scale| 4 * scale.shape.iter().product::<usize>() as u64).sum::<u64>();
    }
    bytes
}

/// As [`bytes_in_file`], for tensors of which only types and shapes are known.
fn declared_bytes(stages: &[Stage], tensors: &dyn TensorIndex) -> WeightBytes {
    let tiled = tiled_tensors(stages);
    let mut bytes = WeightBytes::default();
    for weight in distinct_weights(stages) {
        let tiles = TileLayout::new(weight.ty, weight.inputs());
        match tiles.filter(|_| tiled.contains(weight.key())) {
            Some(tiles) => bytes.owned += (weight.matrices() * tiles.matrix_bytes(weight.outputs())) as u64,
            None => bytes.mapped += weight.bytes() as u64,
        }
        let scales = weight.parts.iter().filter_map(|part| tensors.find(part.scale.as_ref()?));
        bytes.owned += scales.map(|(_, shape)| 4 * shape.iter().product::<usize>() as u64).sum::<u64>();
    }
    bytes
}

fn infos<'c>(weight: &'c Weight, checkpoint: &'c Checkpoint) -> impl Iterator<Item = &'c TensorInfo> {
    weight.parts.iter().filter_map(|part| checkpoint.info(&part.tensor))
}

/// The layout that a weight is packed into while loading. None if it is read as rows of the file,
/// or if the file already stores it in tiles.
fn layout_to_pack(weight: &Weight, tiled: &HashSet<&str>, checkpoint: &Checkpoint) -> Option<TileLayout> {
    TileLayout::new(weight.ty, weight.inputs()).filter(|_| {
        let stored = weight.derived.is_none() && infos(weight, checkpoint).all(|info| info.is_stored());
        // Rows that must be computed (derived weights, rows in pieces) need memory in any case, so
        // they become tiles even if every selected kernel reads rows: kernels accept both.
        (tiled.contains(weight.key()) || !stored)
            && infos(weight, checkpoint).all(|info| info.tile_rows.is_none())
    })
}

/// The tensors that a packed file stores in tiles, in the order in which steps read them.
pub(crate) fn tensors_in_tiles(stages: &[Stage], checkpoint: &Checkpoint) -> Vec<String> {
    let weights = distinct_weights(stages);
    let infos = weights.flat_map(|weight| infos(weight, checkpoint));
    infos.filter(|info| info.tile_rows.is_some()).map(|info| info.name.clone()).collect()
}

/// The keys of the weights that at least one selected kernel reads in tiles.
pub(crate) fn tiled_tensors(stages: &[Stage]) -> HashSet<&str> {
    let table = latent_kernels::table();
    let mut tiled = HashSet::new();
    for plan in stages.iter().flat_map(|stage| &stage.plans) {
        for node in &plan.ir.nodes {
            for ((_, weight), kernel) in node.weights.iter().zip(&node.kernels) {
                if table[kernel.index].0.layout == WeightLayout::Tiles {
                    tiled.insert(plan.ir.weight(*weight).key());
                }
            }
        }
    }
    tiled
}

/// The keys of the weights that operations read as plain f32 instead of multiplying by them: norms,
/// biases, taps of convolutions, and adapters of `kv_b`.
fn plain_tensors(stages: &[Stage]) -> HashSet<&str> {
    let mut plain = HashSet::new();
    for plan in stages.iter().flat_map(|stage| &stage.plans) {
        let own = |node: &&Node| {
            matches!(node.op.spec().kernels, RequiredKernels::Own(_))
                || matches!(node.op, Op::LoraAbsorbK | Op::LoraAbsorbV)
        };
        for node in plan.ir.nodes.iter().filter(own) {
            plain.extend(node.weights.iter().map(|(_, id)| plan.ir.weight(*id).key()));
        }
    }
    plain
}

/// All distinct weights of the stages.
pub(crate) struct LoadedWeights {
    /// In the order of [`distinct_weights`].
    pub weights: Vec<LoadedWeight>,
    /// Position in `weights` by [`Weight::key`].
    index: HashMap<String, usize>,
}

impl LoadedWeights {
    /// Loads every weight that the stages use. The thread pool packs those that a kernel reads in
    /// tiles. Pages of the file that loading brings into memory are released unless `keep_pages` is
    /// set. `progress` is called with the bytes done and the total.
    pub(crate) fn load(
        stages: &[Stage],
        checkpoint: &Arc<Checkpoint>,
        thread_pool: &mut ThreadPool,
        keep_pages: bool,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<LoadedWeights, BackendError> {
        let (tiled, plain) = (tiled_tensors(stages), plain_tensors(stages));
        let to_pack = distinct_weights(stages).filter_map(|weight| {
            let layout = layout_to_pack(weight, &tiled, checkpoint)?;
            Some((weight, layout.matrix_bytes(weight.outputs())))
        });
        let (to_pack, sizes): (Vec<&Weight>, Vec<usize>) = to_pack.unzip();
        let sizes = to_pack.iter().zip(sizes).map(|(weight, bytes)| (weight.matrices(), bytes));
        // One reservation, in the order in which the loop below takes the parts. `take` fails if
        // the two lists ever differ.
        let mut memory = WeightArena::reserve(sizes, thread_pool.placement().nodes().len())?;
        let tensors: Vec<String> =
            to_pack.iter().flat_map(|weight| weight.parts.iter().map(|part| part.tensor.clone())).collect();
        let source = SourcePages::new(checkpoint, &tensors, keep_pages);
        let mut loaded = LoadedWeights { weights: Vec::new(), index: HashMap::new() };
        let total = distinct_weights(stages).map(|weight| weight.bytes() as u64).sum();
        let mut done = 0;
        for weight in distinct_weights(stages) {
            let key = weight.key().to_owned();
            let layout = if layout_to_pack(weight, &tiled, checkpoint).is_some() {
                WeightLayout::Tiles
            } else {
                WeightLayout::Rows
            };
            let layout = (layout, plain.contains(weight.key()));
            loaded.weights.push(LoadedWeight::load(weight, &source, layout, &mut memory, thread_pool)?);
            loaded.index.insert(key, loaded.weights.len() - 1);
            done += weight.bytes() as u64;
            progress(done, total);
        }
        source.finish();
        Ok(loaded)
    }

    /// Index of a plan's weight in `weights`. Every weight of a loaded plan is there.
    pub(crate) fn find(&self, weight: &Weight) -> usize {
        self.index.get(weight.key()).copied().unwrap_or_default()
    }
}
