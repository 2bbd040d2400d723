//! Writing packed files: every weight that the plans read in tiles is packed, everything else goes over as it is.

use crate::cpu::{self, CpuOptions, Matrices};
use crate::error::EngineError;
use crate::memory::readable;
use crate::team::{self, Team, Topology};
use base::CacheType;
use formats::pack::{PackWriter, Tiles};
use formats::{Checkpoint, TensorInfo};
use graph::passes::{BindOptions, CacheForm, MlaChoice, Precision};
use graph::{CheckpointTensors, Contract};
use quant::tiles::TileLayout;
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufWriter};
use std::path::{Path, PathBuf};

/// Bytes that are packed at once, unless one tile alone takes more.
const PIECE: usize = 32 << 20;

/// Packs the model into the file `out`, with `threads` threads (none: one a core), and says how many bytes it has. The file appears when it is whole: until then
/// it has a name of its own, and is removed when anything fails. `progress` hears how many bytes of how many are written, and stops the work by
/// answering false.
///
/// # Errors
/// A model that cannot be run; a file that cannot be written; [`EngineError::Stopped`].
pub fn pack(
    checkpoint: &Checkpoint,
    out: &Path,
    threads: Option<usize>,
    progress: &mut dyn FnMut(u64, u64) -> bool,
) -> Result<u64, EngineError> {
    let layouts = layouts(checkpoint)?;
    let tiles: Vec<Option<Tiles>> =
        checkpoint.tensors().iter().map(|info| layouts.get(&*info.name).copied()).collect();
    let writer = PackWriter::new(checkpoint, &tiles)?;
    let total = writer.file_bytes();
    let threads = threads.unwrap_or_else(|| team::threads_for(&Topology::detect(), team::parallelism()));
    let mut team =
        Team::new(threads).map_err(|error| EngineError::System { what: "starting threads", error })?;
    let failed = |error: io::Error| {
        let full = matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded);
        let hint = if full { format!(" (the packed file takes {})", readable(total)) } else { String::new() };
        EngineError::PackIo { path: out.to_owned(), error, hint }
    };
    let (file, unfinished) = Unfinished::create(out).map_err(failed)?;
    let mut stopped = false;
    let mut done = 0;
    let mut buffer = Vec::new();
    let mut file = BufWriter::with_capacity(1 << 20, file);
    let written = writer.write(&mut file, |index, out| {
        let mut write = |bytes: &[u8]| {
            out.write_all(bytes)?;
            done += bytes.len() as u64;
            stopped = !progress(done, total);
            if stopped { Err(io::Error::other("stopped")) } else { Ok(()) }
        };
        let info = &checkpoint.tensors()[index];
        let Some(tensor) = checkpoint.tensor(&info.name) else { return Ok(()) };
        match tiles[index] {
            None => tensor.data.chunks(PIECE).try_for_each(&mut write)?,
            Some(tiles) => pack_tensor(info, tensor.data, tiles.rows, &mut buffer, &mut team, &mut write)?,
        }
        checkpoint.advise_dropped(&info.name);
        Ok(())
    });
    if stopped {
        return Err(EngineError::Stopped);
    }
    written.map_err(failed)?;
    let file = file.into_inner().map_err(|error| failed(error.into_error()))?;
    // whole on the disk before it has its name
    file.sync_all().map_err(failed)?;
    drop(file);
    unfinished.finish(out).map_err(failed)?;
    Ok(total)
}

/// The tensors that the plans of the default precision read in tiles. That depends on their formats alone, not on the machine.
fn layouts(checkpoint: &Checkpoint) -> Result<HashMap<String, Tiles>, EngineError> {
    let contract = Contract::from_checkpoint(checkpoint)?;
    let tier = cpu::tier_for(None).map_err(EngineError::Options)?;
    let options = CpuOptions {
        mla: MlaChoice::Auto,
        form: CacheForm::Latent,
        bind: BindOptions { precision: Precision::Default, tier, cache: CacheType::F16 },
        threads: 1,
        largest: crate::DEFAULT_LARGEST,
        context: contract.context_length,
    };
    let (trunk, head) = cpu::make_plans(&contract, &CheckpointTensors(checkpoint), &options)?;
    let tiled = cpu::tiled_tensors(trunk.iter().chain(&head));
    let mut layouts = HashMap::new();
    for weight in trunk[0].ir.weights.iter().chain(&head[0].ir.weights) {
        let layout = TileLayout::new(weight.ty, weight.inputs());
        let Some(layout) = layout.filter(|_| tiled.contains(weight.parts[0].tensor.as_str())) else {
            continue;
        };
        let rows = weight.outputs();
        let matrices = if weight.parts.len() > 1 { 1 } else { weight.stacked() };
        let tiles = Tiles { rows, bytes: matrices * layout.matrix_bytes(rows) };
        layouts.extend(weight.parts.iter().map(|part| (part.tensor.clone(), tiles)));
    }
    Ok(layouts)
}

/// Packs the matrices, of `outputs` rows each, of one tensor piece by piece.
fn pack_tensor(
    info: &TensorInfo,
    data: &[u8],
    outputs: usize,
    buffer: &mut Vec<u8>,
    team: &mut Team,
    write: &mut dyn FnMut(&[u8]) -> io::Result<()>,
) -> io::Result<()> {
    let inputs = info.shape.last().copied().unwrap_or(0);
    let bytes = info.ty.row_bytes(inputs).unwrap_or(0) * outputs;
    let matrix = |m: usize| &data[m * bytes..(m + 1) * bytes];
    let Some(matrices) = Matrices::new(info.ty, outputs, inputs, data.len() / bytes.max(1), &matrix) else {
        return Err(io::Error::other(format!("{} has no tiles", info.ty)));
    };
    let tile = matrices.tile_bytes();
    let step = (PIECE / tile).max(1);
    for first in (0..matrices.all_tiles()).step_by(step) {
        let count = step.min(matrices.all_tiles() - first);
        buffer.resize(count * tile, 0);
        matrices.pack_some(first, buffer, team);
        write(buffer)?;
    }
    Ok(())
}

/// A file that has not got its name yet; it is removed unless it is finished.
struct Unfinished(Option<PathBuf>);

impl Unfinished {
    /// A new file beside `out`.
    fn create(out: &Path) -> io::Result<(File, Unfinished)> {
        let name = out.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let path = out.with_file_name(format!(".{name}.{}.part", std::process::id()));
        let file = File::create(&path)?;
        Ok((file, Unfinished(Some(path))))
    }

    fn finish(mut self, out: &Path) -> io::Result<()> {
        match self.0.take() {
            None => Ok(()),
            Some(path) => std::fs::rename(&path, out).inspect_err(|_| self.0 = Some(path)),
        }
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        if let Some(path) = &self.0 {
            // nothing more can be done about it
            let _ = std::fs::remove_file(path);
        }
    }
}
