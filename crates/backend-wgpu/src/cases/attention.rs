//! Cases of attention: to latents, and to keys and values of a head.

use super::job::RecordedJob;
use crate::GpuError;
use crate::buffers::{Buffer, float_bytes, floats, word_bytes};
use crate::cache::row_words;
use crate::commands::Commands;
use crate::device::Device;
use crate::ops::flash::{FlashBuffers, FlashShader, KvSource};
use crate::ops::latent_attention::{LatentAttention, LatentBuffers, LatentSplits};
use crate::run::AttentionQueries;
use crate::step_data::{QUERIES, TILE_QUERIES, TaskRange};
use latent_backend::{BackendError, KV_BLOCK};
use latent_conformance::{ExpandedCase, ExpandedOperands, LatentCase, LatentOperands, SCALE};
use latent_graph::config::AttentionShape;
use latent_graph::ir::{KvLayer, KvLayerKind};
use latent_types::{ActivationType, CacheType};
use std::sync::Arc;

/// Largest number of bytes of partial results.
const MAX_SCRATCH: u64 = 32 << 20;

/// Whether shaders compute the case: in f32, from rows that are whole words.
pub(super) fn serves_latent(case: &LatentCase) -> bool {
    case.activation == ActivationType::F32 && !case.separate && row_words(&latents(case), case.cache).is_ok()
}

/// Whether shaders compute a case of keys and values.
pub(super) fn serves_expanded(case: &ExpandedCase) -> bool {
    case.activation == ActivationType::F32 && !case.selects
}

/// The shape of attention, from the widths of a latent, of the two parts of a head's key, and of
/// its value.
fn shape(heads: usize, kv_lora_rank: usize, (nope, rope, v): (usize, usize, usize)) -> AttentionShape {
    AttentionShape {
        heads,
        q_lora_rank: None,
        kv_lora_rank,
        nope,
        rope,
        v,
        // Each query has its own scale in the step's words.
        softmax_scale: 1.0,
        temperature: None,
        output_gate: None,
        indexer: None,
    }
}

fn latents(case: &LatentCase) -> KvLayer {
    let row = case.row();
    KvLayer::of_rows(KvLayerKind::Latent, 0, row.width(), case.rope)
}

/// The words of a step: factors on scores, block tables, and tasks of attention.
#[derive(Default)]
struct StepWords(Vec<u32>);

impl StepWords {
    fn add(&mut self, words: impl IntoIterator<Item = u32>) -> u32 {
        let at = self.0.len() as u32;
        self.0.extend(words);
        at
    }

    /// Adds the tasks for the queries of one sequence, of at most `max_queries` each. `past` rows
    /// are cached before them.
    fn tasks(
        &mut self,
        (queries, max_queries): (usize, usize),
        blocks: u32,
        (past, kv_len): (usize, usize),
    ) -> TaskRange {
        let firsts = (0..queries).step_by(max_queries);
        let task =
            |first: usize| [0, first as u32, max_queries.min(queries - first) as u32, blocks, past as u32];
        TaskRange { at: self.add(firsts.flat_map(task)), count: queries.div_ceil(max_queries) as u32, kv_len }
    }
}

/// Buffers that both kinds of attention read and write.
struct AttentionBuffers {
    device: Arc<Device>,
    words: Buffer,
    q: Buffer,
    y: Buffer,
    cache: Buffer,
}

impl AttentionBuffers {
    fn new(
        device: &Arc<Device>,
        words: &StepWords,
        (queries, results): (&[f32], usize),
        cached: &[u8],
    ) -> Result<AttentionBuffers, GpuError> {
        Ok(AttentionBuffers {
            device: Arc::clone(device),
            words: Buffer::with(device, "words", &word_bytes(&words.0))?,
            q: Buffer::with(device, "queries", &float_bytes(queries))?,
            y: Buffer::new(device, "y", 4 * results as u64)?,
            cache: Buffer::with(device, "cached rows", cached)?,
        })
    }

    /// Queries and results with `heads` heads of these widths.
    fn queries(&self, scales: u32, heads: usize, [q, y]: [usize; 2]) -> AttentionQueries {
        let place = |width: usize| [0, (heads * width) as u32, width as u32];
        AttentionQueries {
            step: (&self.words).into(),
            scales,
            q: ((&self.q).into(), place(q)),
            y: ((&self.y).into(), place(y)),
        }
    }

    fn results(&self) -> Result<Vec<f32>, GpuError> {
        Ok(floats(&self.y.read("y", 0..self.y.bytes())?))
    }
}

/// Attention of all heads of the newest row of a sequence to latents.
pub(super) struct GpuLatentJob {
    buffers: AttentionBuffers,
    shaders: LatentAttention,
    partials: Buffer,
    case: LatentCase,
    /// The tasks for each copy of the cached rows.
    tasks: Vec<TaskRange>,
    splits: Option<LatentSplits>,
}

impl GpuLatentJob {
    pub(super) fn new(
        device: &Arc<Device>,
        case: &LatentCase,
        operands: &LatentOperands,
    ) -> Result<GpuLatentJob, BackendError> {
        let LatentCase { heads, latent, rope, rows, .. } = *case;
        // In latent space, the first part of a query and a result are as wide as a latent.
        let shape = shape(heads, latent, (latent, rope, latent));
        let shaders = LatentAttention::new(device, &shape, &latents(case), case.cache, None)?;
        // Word 0 is the factor on scores of all queries: `record` passes this offset.
        let mut words = StepWords(vec![SCALE.to_bits()]);
        let mut tasks = Vec::new();
        // Each part of the tables belongs to one copy of the cached rows.
        for table in operands.tables().chunks(rows.div_ceil(KV_BLOCK)) {
            let blocks = words.add(table.iter().copied());
            // The newest row attends: all others are before it.
            tasks.push(words.tasks((heads, QUERIES), blocks, (rows - 1, rows)));
        }
        // The case gives the number of splits, or leaves it to the shaders, as a model does.
        let splits = match case.splits {
            1 => shaders.splits(1, tasks[0], MAX_SCRATCH),
            count => LatentSplits::of(rows, count),
        };
        let count = splits.map_or(1, |splits| splits.count as usize);
        Ok(GpuLatentJob {
            buffers: AttentionBuffers::new(
                device,
                &words,
                (&operands.queries, heads * latent),
                operands.cached(),
            )?,
            partials: Buffer::new(device, "partial results", (shaders.partial_bytes(1) * count) as u64)?,
            shaders,
            case: *case,
            tasks,
            splits,
        })
    }
}

impl RecordedJob for GpuLatentJob {
    fn device(&self) -> &Arc<Device> {
        &self.buffers.device
    }

    fn record(&self, commands: &mut Commands, copy: usize) -> Result<(), GpuError> {
        let LatentCase { heads, latent, rope, .. } = self.case;
        let buffers = LatentBuffers {
            selected: None,
            queries: self.buffers.queries(0, heads, [latent + rope, latent]),
            kv: (&self.buffers.cache).into(),
            partials: (&self.partials).into(),
        };
        let tasks = self.tasks[copy % self.tasks.len()];
        self.shaders.attend(commands, &buffers, tasks, self.splits);
        if let Some(splits) = self.splits {
            self.shaders.combine(commands, &buffers, &(0..1), splits);
        }
        Ok(())
    }

    fn read(&self) -> Result<Vec<f32>, GpuError> {
        self.buffers.results()
    }
}

/// Attention of one head of the newest rows of a sequence to keys and values.
pub(super) struct GpuExpandedJob {
    buffers: AttentionBuffers,
    shader: FlashShader,
    states: Buffer,
    case: ExpandedCase,
    tasks: TaskRange,
    scales: u32,
}

impl GpuExpandedJob {
    pub(super) fn new(
        device: &Arc<Device>,
        case: &ExpandedCase,
        operands: &ExpandedOperands,
    ) -> Result<GpuExpandedJob, BackendError> {
        let ExpandedCase { queries, position, nope, rope, values, .. } = *case;
        let shape = shape(1, 1, (nope, rope, values));
        let width = nope + rope + values;
        let layer = KvLayer::of_rows(KvLayerKind::Expanded, 0, width, 0);
        let shader = FlashShader::new(device, &shape, &layer, CacheType::F32, (KvSource::Cache, false))?;
        let kv_len = position + queries;
        let blocks = kv_len.div_ceil(KV_BLOCK);
        let mut words = StepWords::default();
        let scales = words.add(operands.scales.iter().map(|scale| scale.to_bits()));
        // Blocks are in reverse order, so that a shader that ignores the table reads wrong rows.
        let table = words.add((0..blocks as u32).rev());
        let tasks = words.tasks((queries, TILE_QUERIES), table, (position, kv_len));
        let mut rows = vec![0.0; blocks * KV_BLOCK * width];
        for (at, (key, value)) in operands.rows(case).enumerate() {
            let slot = (blocks - 1 - at / KV_BLOCK) * KV_BLOCK + at % KV_BLOCK;
            let (to_key, to_value) = rows[slot * width..][..width].split_at_mut(key.len());
            to_key.copy_from_slice(key);
            to_value.copy_from_slice(value);
        }
        Ok(GpuExpandedJob {
            buffers: AttentionBuffers::new(
                device,
                &words,
                (&operands.queries, queries * values),
                &float_bytes(&rows),
            )?,
            shader,
            // A maximum and a sum in f32 for each query of the only head.
            states: Buffer::new(device, "states", 8 * queries as u64)?,
            case: *case,
            tasks,
            scales,
        })
    }
}

impl RecordedJob for GpuExpandedJob {
    fn device(&self) -> &Arc<Device> {
        &self.buffers.device
    }

    fn record(&self, commands: &mut Commands, _: usize) -> Result<(), GpuError> {
        let ExpandedCase { nope, rope, values, .. } = self.case;
        let buffers = FlashBuffers {
            queries: self.buffers.queries(self.scales, 1, [nope + rope, values]),
            r: None,
            kv: &[(&self.buffers.cache).into()],
            states: (&self.states).into(),
        };
        self.shader.call(commands, self.tasks, &(0..self.tasks.kv_len), buffers);
        Ok(())
    }

    fn read(&self) -> Result<Vec<f32>, GpuError> {
        self.buffers.results()
    }
}
