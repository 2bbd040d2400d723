//! Models in several files: safetensors folders with an index, and GGUF shards.

use crate::source::FuzzSource;
use latent_formats::gguf::{Writer, WriterValue};
use latent_formats::{Checkpoint, Outline};
use serde_json::{Map, Value, json};
use std::fs;
use std::path::{Path, PathBuf};

const TENSORS: [&str; 8] =
    ["a", "b", "c.weight", "model.norm.weight", "x.weight", "x.weight_scale_inv", "é", ""];

/// Opens a set of small files, some of which make false claims about the others. If they open,
/// every tensor must be complete, and the outline must agree with the checkpoint.
///
/// # Panics
/// If a tensor reaches beyond its file, or the two readers differ.
pub fn shards(bytes: &[u8]) {
    let mut source = FuzzSource::new(bytes);
    let Ok(folder) = tempfile::tempdir() else { return };
    let path = if source.once_in(2) {
        gguf(&mut source, folder.path())
    } else {
        safetensors(&mut source, folder.path())
    };
    damage(&mut source, folder.path());
    let outline = Outline::open(&path);
    // Opened like on one of several ranks, which may have only some of the files.
    if let Ok(part) = Checkpoint::open_for_rank(&path) {
        let whole = part.is_whole();
        assert_eq!(part.file_identities().len(), part.files());
        let completed = part.with_tensors_of(&part.tensors_by_file(), 0);
        assert_eq!((completed.tensors().len(), completed.is_whole()), (part.tensors().len(), whole));
    }
    let Ok(checkpoint) = Checkpoint::open(&path) else { return };
    let outline =
        outline.unwrap_or_else(|error| panic!("the checkpoint opens, but not its outline: {error}"));
    assert_eq!(outline.tensors().len(), checkpoint.tensors().len());
    for info in checkpoint.tensors() {
        if info.is_stored() {
            let tensor = checkpoint.tensor(&info.name);
            let tensor = tensor.unwrap_or_else(|| panic!("tensor {:?} is listed and not found", info.name));
            assert_eq!(tensor.data.len(), info.bytes, "{}", info.name);
        }
        let row = info.ty.row_bytes(info.shape.last().copied().unwrap_or(1));
        assert_eq!(row.map(|row| row * info.rows()), Some(info.bytes), "{}", info.name);
        let mut scratch = Vec::new();
        if let Ok(Some(rows)) = checkpoint.rows(&info.name) {
            assert_eq!(rows.read(0..info.rows(), &mut scratch).len(), info.bytes, "{}", info.name);
        }
        let head = outline.tensor(&info.name);
        assert_eq!(head.map(|head| (head.ty, &head.shape)), Some((info.ty, &info.shape)), "{}", info.name);
    }
}

fn write(path: &Path, bytes: &[u8]) {
    // Names that the file system refuses are skipped.
    let _ = fs::write(path, bytes);
}

/// Truncates, extends, overwrites or removes one of the files.
fn damage(source: &mut FuzzSource<'_>, folder: &Path) {
    if !source.once_in(3) {
        return;
    }
    let Ok(entries) = fs::read_dir(folder) else { return };
    let mut files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    // The order of a folder's entries is arbitrary, but an input must always damage the same file.
    files.sort_unstable();
    let Some(file) = files.get(source.below(8)) else { return };
    let Ok(mut bytes) = fs::read(file) else { return };
    match source.below(4) {
        0 => drop(fs::remove_file(file)),
        1 => bytes.truncate(bytes.len() * source.below(256) / 256),
        2 => bytes.extend(std::iter::repeat_n(0, source.below(100))),
        _ => {
            for _ in 0..1 + source.below(3) {
                let at = (source.byte() as usize) << 8 | source.byte() as usize;
                let length = bytes.len().max(1);
                if let Some(byte) = bytes.get_mut(at % length) {
                    *byte = source.byte();
                }
            }
        }
    }
    if file.exists() {
        write(file, &bytes);
    }
}

fn safetensors(source: &mut FuzzSource<'_>, folder: &Path) -> PathBuf {
    let config = if source.once_in(4) {
        json!({"quantization_config": {"quant_method": "fp8", "weight_block_size": [source.number(), source.number()]}})
    } else {
        json!({"model_type": "deepseek_v3"})
    };
    write(&folder.join("config.json"), config.to_string().as_bytes());
    let count = source.below(5);
    let mut map = Map::new();
    for number in 0..count {
        // In some names, a number of shards that the folder does not have.
        let total = if source.once_in(12) { count + 1 } else { count };
        let name = if count == 1 && source.once_in(2) {
            "model.safetensors".into()
        } else {
            format!("model-{:05}-of-{total:05}.safetensors", number + 1)
        };
        let (bytes, held) = shard(source);
        write(&folder.join(&name), &bytes);
        map.extend(held.into_iter().map(|tensor| (tensor, Value::from(name.clone()))));
    }
    for _ in 0..source.below(3) {
        falsify(source, &mut map);
    }
    let mut index = json!({"metadata": {"total_size": source.number()}, "weight_map": map});
    if source.once_in(12) {
        index["weight_map"] = json!([source.number()]);
    }
    if count != 1 || source.once_in(2) {
        write(&folder.join("model.safetensors.index.json"), index.to_string().as_bytes());
    }
    folder.to_owned()
}

/// Changes an entry of the index, in most cases to a wrong one.
fn falsify(source: &mut FuzzSource<'_>, map: &mut Map<String, Value>) {
    let files = [
        "model-00001-of-00002.safetensors",
        "model-00003-of-00002.safetensors",
        "model.safetensors",
        "../model.safetensors",
        "/etc/passwd",
        "config.json",
        "",
        "a\0.safetensors",
    ];
    let tensor = *source.pick(&TENSORS);
    match source.below(4) {
        0 => drop(map.remove(tensor)),
        1 => drop(map.insert(tensor.into(), source.number().into())),
        _ => drop(map.insert(tensor.into(), (*source.pick(&files)).into())),
    }
}

/// A safetensors file, and the names of its tensors.
fn shard(source: &mut FuzzSource<'_>) -> (Vec<u8>, Vec<String>) {
    let mut header = Map::new();
    let mut at = 0usize;
    for _ in 0..source.below(4) {
        let name = *source.pick(&TENSORS);
        let (ty, size) =
            *source.pick(&[("F32", 4), ("F16", 2), ("BF16", 2), ("F8_E4M3", 1), ("I64", 8), ("Q4_K", 1)]);
        let shape: Vec<usize> = (0..source.below(3)).map(|_| source.below(5)).collect();
        let bytes = size * shape.iter().product::<usize>();
        let mut entry = json!({"dtype": ty, "shape": shape, "data_offsets": [at, at + bytes]});
        if source.once_in(16) {
            entry["data_offsets"][source.below(2)] = source.number().into();
        }
        if source.once_in(16) {
            entry["shape"] = json!([source.number(), source.number()]);
        }
        at += bytes;
        header.insert(name.into(), entry);
    }
    if source.once_in(8) {
        header.insert("__metadata__".into(), json!({"format": "pt"}));
    }
    let names = header.keys().filter(|name| *name != "__metadata__").cloned().collect();
    let header = Value::Object(header).to_string();
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(header.as_bytes());
    bytes.resize(bytes.len() + at, 0x3c);
    (bytes, names)
}

fn gguf(source: &mut FuzzSource<'_>, folder: &Path) -> PathBuf {
    let count = 1 + source.below(4);
    // Any shard of a set may be the one that the user names.
    let opened = source.below(count);
    let mut paths = Vec::new();
    let total = 2 * count as i64;
    for number in 0..count {
        let mut writer = Writer::new();
        // Only the first shard of a valid set has the model's metadata.
        if number == 0 || source.once_in(8) {
            writer.key("general.architecture", WriterValue::String("deepseek2".into()));
        }
        for (key, usual) in
            [("split.no", number as i64), ("split.count", count as i64), ("split.tensors.count", total)]
        {
            if !source.once_in(20) {
                let value = if source.once_in(20) { source.number() } else { usual };
                writer.key(key, number_of(source, value));
            }
        }
        let mut tensors = 0;
        for tensor in 0..2 {
            let name = if source.once_in(16) { "blk.0.a".into() } else { format!("blk.{number}.{tensor}") };
            let shape = [1 + source.below(3), 32];
            let ty = *source.pick(&[latent_types::TensorType::F32, latent_types::TensorType::Q8_0]);
            tensors += usize::from(writer.tensor(name, ty, &shape[source.below(2)..]).is_ok());
        }
        // The first two forms are wrong: another number of shards, and numbers without leading
        // zeros.
        let name = match source.below(16) {
            15 => format!("m-{:05}-of-{:05}.gguf", number + 1, count + 1),
            14 => format!("m-{}-of-{count}.gguf", number + 1),
            _ => format!("m-{:05}-of-{count:05}.gguf", number + 1),
        };
        let mut bytes = Vec::new();
        // More zeros than any of these tensors takes: at most three rows of 32 F32 numbers each,
        // and the padding.
        if writer.write_header(&mut bytes).is_ok() {
            bytes.resize(bytes.len() + tensors * 3 * 32 * 4 + 64, 0);
            write(&folder.join(&name), &bytes);
        }
        paths.push(folder.join(name));
    }
    paths.swap_remove(opened)
}

/// An integer in one of the types that files use for it.
fn number_of(source: &mut FuzzSource<'_>, number: i64) -> WriterValue {
    match source.below(6) {
        0 => WriterValue::I32(number as i32),
        1 => WriterValue::U64(number as u64),
        2 => WriterValue::I64(number),
        3 => WriterValue::U32(number as u32),
        _ => WriterValue::U16(number as u16),
    }
}
