//! Cache streams of a block, checked against its operations and evaluated for one layer.

use super::block::{Block, BlockKind, CacheKind, OpSpec, ReadRange, StreamSpec};
use super::form::Circuit;
use super::vars::ConfigVars;
use crate::error::{CacheError, CircuitError, GraphError};
use crate::ops::{K_ROPE, KvUse, Op};
use serde::Serialize;

/// Maximum elements of a cached row.
// More than any model has, and few enough that the size of a cache fits in 64 bits.
const MAX_ROW: usize = 1 << 24;

/// A cache stream of one layer: a row per token, read at every position, or one state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CacheStream {
    /// Its name in the block.
    pub name: String,
    pub layer: usize,
    /// The parts of its row, in order.
    pub row: Vec<RowPart>,
    /// Shape of a recurrent state.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<StateShape>,
    /// The operation of the circuit that writes it.
    pub written_by: String,
    /// The operations of the circuit that read it.
    pub read_by: Vec<String>,
}

/// The shape of a recurrent state: heads × rows × columns f32 elements in this order, all zero
/// before the first token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct StateShape {
    pub heads: usize,
    /// Rows of a head's matrix.
    pub rows: usize,
    /// Columns of a head's matrix.
    pub columns: usize,
}

impl StateShape {
    pub fn elements(&self) -> usize {
        self.heads.saturating_mul(self.rows).saturating_mul(self.columns)
    }

    pub fn bytes(&self) -> usize {
        size_of::<f32>().saturating_mul(self.elements())
    }
}

/// A part of a cached row.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RowPart {
    /// The stored value, by its name in the block.
    pub value: String,
    /// The port of the writing operation that receives it.
    pub port: &'static str,
    /// Elements.
    pub width: usize,
    /// Whether it is rotated by position.
    pub rotated: bool,
}

impl CacheStream {
    /// Elements per row.
    pub fn width(&self) -> usize {
        // Cannot overflow, because `streams` refuses rows beyond `MAX_ROW`.
        self.row.iter().map(|part| part.width).sum()
    }

    /// Elements of the key shared by all heads, which follow the latent.
    pub fn shared_key(&self) -> usize {
        self.row.iter().filter(|part| part.port == K_ROPE.name).map(|part| part.width).sum()
    }
}

/// The operation of this name; `None` for `mlp`, which is several.
fn op(word: &str) -> Option<&'static Op> {
    Op::ALL.iter().find(|op| op.word() == word)
}

fn kv(word: &str) -> KvUse {
    op(word).map(|op| op.spec().kv).unwrap_or_default()
}

impl StreamSpec {
    /// Number of `ops` that write it.
    fn writers(&self, ops: &[&OpSpec]) -> usize {
        ops.iter().filter(|op| op.op == self.written_by && kv(&op.op).stores).count()
    }

    /// Checks what does not depend on the config, against the operations of its block.
    fn check(&self, block: &Block, ops: &[&OpSpec]) -> Result<(), CacheError> {
        if block.kind != BlockKind::Attention {
            return Err(CacheError::NotAttention { kind: block.kind.name() });
        }
        let (kind, needs, fits) = match self.kind {
            CacheKind::PerToken => ("per_token", "`row`", !self.row.is_empty() && self.shape.is_empty()),
            CacheKind::Recurrent => ("recurrent", "`shape`", !self.shape.is_empty() && self.row.is_empty()),
        };
        if !fits {
            return Err(CacheError::Layout { kind, needs });
        }
        if self.writers(ops) == 0 {
            return Err(CacheError::NeverWritten { op: self.written_by.clone() });
        }
        if kv(&self.written_by).is_recurrent() != (self.kind == CacheKind::Recurrent) {
            return Err(CacheError::KindOfWriter { kind, op: self.written_by.clone() });
        }
        let reads = |word: &&String| ops.iter().any(|op| op.op == **word && kv(&op.op).attends);
        match self.read_by.iter().find(|word| !reads(word)) {
            Some(word) => Err(CacheError::NeverRead { op: word.clone() }),
            None if self.read_by.is_empty() => Err(CacheError::NoReader),
            None => Ok(()),
        }
    }

    /// Refuses what the form allows and no operation supports yet.
    fn run(&self) -> Result<(), CacheError> {
        let what = match (self.kind, &self.range) {
            (_, ReadRange::Last(window)) => format!("a window (the last {window} positions)"),
            _ if self.stride != "1" => format!("a row for several tokens (stride {})", self.stride),
            _ => return Ok(()),
        };
        Err(CacheError::NotRun { what })
    }
}

impl Circuit {
    fn cache(&self, block: &str, stream: &str, problem: CacheError) -> GraphError {
        let (block, stream) = (block.to_owned(), stream.to_owned());
        self.error(CircuitError::Cache { block, stream, problem })
    }

    /// Checks the cache of a block against all its operations, independent of the config.
    pub(super) fn check_cache(&self, name: &str, block: &Block) -> Result<(), GraphError> {
        let ops: Vec<&OpSpec> = block.ops.iter().collect();
        for (stream, spec) in &block.cache {
            spec.check(block, &ops).map_err(|problem| self.cache(name, stream, problem))?;
        }
        // The converse: an operation without a stream would write rows that the cache does not
        // allocate.
        for spec in &ops {
            let used = kv(&spec.op);
            let written = block.cache.values().any(|stream| stream.written_by == spec.op);
            let read = block.cache.values().any(|stream| stream.read_by.contains(&spec.op));
            let does = match (used.stores && !written, used.attends && !read) {
                (true, _) => "writes",
                (_, true) => "reads",
                _ => continue,
            };
            let (block, op) = (name.to_owned(), spec.op.clone());
            return Err(self.error(CircuitError::NoStream { block, op, does }));
        }
        Ok(())
    }

    /// The cache streams of a block in one layer with these variables.
    ///
    /// # Errors
    /// [`CircuitError::Cache`] if a stream contradicts the operations whose conditions hold, or is
    /// not supported; [`CircuitError::Expression`] for a width without a value.
    pub fn streams(
        &self,
        name: &str,
        layer: usize,
        vars: &ConfigVars,
    ) -> Result<Vec<CacheStream>, GraphError> {
        let Some(block) = self.blocks.get(name) else { return Ok(Vec::new()) };
        // The audit calls this too, for circuits that `check` may not have seen.
        self.check_cache(name, block)?;
        let mut ops = Vec::new();
        for op in &block.ops {
            if vars.hold(&op.when, &self.name)? {
                ops.push(op);
            }
        }
        let stream = |(stream, spec): (&String, &StreamSpec)| {
            let wrong = |problem| self.cache(name, stream, problem);
            spec.run().map_err(wrong)?;
            spec.check(block, &ops).map_err(wrong)?;
            let (op, count) = (spec.written_by.clone(), spec.writers(&ops));
            // Alternatives under opposite conditions are allowed; two that both hold are not.
            if count > 1 {
                return Err(wrong(CacheError::WrittenTwice { op, count }));
            }
            let writer = ops.iter().find(|op| op.op == spec.written_by);
            let row = self.row((name, stream), spec, writer.copied(), vars)?;
            let state = self.state((name, stream), spec, vars)?;
            let made = CacheStream {
                name: stream.clone(),
                layer,
                row,
                state,
                written_by: spec.written_by.clone(),
                read_by: spec.read_by.clone(),
            };
            let of_row = made.row.iter().fold(0usize, |sum, part| sum.saturating_add(part.width));
            let elements = made.state.map_or(of_row, |state| state.elements());
            // Sizes come from a model file and a user's circuit. Overflows are saturated and
            // refused here.
            if !(1..=MAX_ROW).contains(&elements) || made.row.iter().any(|part| part.width == 0) {
                return Err(wrong(CacheError::RowWidth { elements, most: MAX_ROW }));
            }
            Ok(made)
        };
        let mut made = Vec::new();
        for (name, spec) in &block.cache {
            if vars.hold(&spec.when, &self.name)? {
                made.push(stream((name, spec))?);
            }
        }
        Ok(made)
    }

    /// The shape of a recurrent state; `None` for a stream with rows.
    fn state(
        &self,
        (block, stream): (&str, &str),
        spec: &StreamSpec,
        vars: &ConfigVars,
    ) -> Result<Option<StateShape>, GraphError> {
        if spec.kind != CacheKind::Recurrent {
            return Ok(None);
        }
        let [heads, rows, columns] = &spec.shape[..] else {
            return Err(self.cache(block, stream, CacheError::StateShape { dimensions: spec.shape.len() }));
        };
        let size =
            |text: &str| vars.size(text, format_args!("block {block}, cache {stream}, {text}"), &self.name);
        Ok(Some(StateShape { heads: size(heads)?, rows: size(rows)?, columns: size(columns)? }))
    }

    /// The parts of a row. Each is an input of the writing operation.
    fn row(
        &self,
        (block, stream): (&str, &str),
        spec: &StreamSpec,
        writer: Option<&OpSpec>,
        vars: &ConfigVars,
    ) -> Result<Vec<RowPart>, GraphError> {
        let mut row = Vec::with_capacity(spec.row.len());
        for part in &spec.row {
            let place = format_args!("block {block}, cache {stream}, {}", part.value);
            let width = vars.size(&part.width, place, &self.name)?;
            let at = writer.and_then(|op| op.inputs.iter().position(|input| *input == part.value));
            let ports =
                op(&spec.written_by).zip(writer).map(|(op, use_of)| op.inputs_of(use_of.inputs.len()));
            // GLM-5.3-Flash has no rope part, so its store has no `k_rope` input.
            if at.is_none() && width == 0 {
                continue;
            }
            let Some(port) = ports.zip(at).and_then(|(mut ports, at)| ports.nth(at)) else {
                let (value, op) = (part.value.clone(), spec.written_by.clone());
                return Err(self.cache(block, stream, CacheError::RowValue { value, op }));
            };
            // In NoPE models the part is stored unrotated, and context shifts leave it.
            let rotated = part.rotated && vars.flag("rotated");
            row.push(RowPart { value: part.value.clone(), port: port.name, width, rotated });
        }
        Ok(row)
    }
}
