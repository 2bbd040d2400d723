//! Ranks that have only the files of their own tensors: GGUF shards, and the safetensors files of a
//! folder.

use crate::support::ranks::on_ranks_of;
use crate::support::{all_logits, bits};
use latent_backend::Communicator;
use latent_engine::{Engine, EngineError, EngineOptions, files_of_rank};
use latent_formats::safetensors::{Header, Writer};
use latent_formats::{Checkpoint, FormatError};
use latent_graph::passes::Precision;
use latent_graph::{CheckpointTensors, GraphError, ModelConfig, Partition};
use latent_hosts::LocalRank;
use latent_testing::{FourBitLayout, FourBitRecipe, ModelRecipe, RandomWeightTypes};
use latent_types::TensorType;
use serde_json::{Map, Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Writes a model into a folder. Gives the path to open.
type ModelWriter = dyn Fn(&Path) -> PathBuf;

const TOKENS: [u32; 7] = [6, 5, 99, 30, 7, 42, 11];

fn options() -> EngineOptions {
    EngineOptions {
        precision: Precision::Exact,
        context: Some(128),
        threads: Some(1),
        ..EngineOptions::default()
    }
}

/// A model whose files are distributed over one folder per rank.
struct SpreadModel {
    folder: tempfile::TempDir,
    /// The path to open, relative to the folder of each rank.
    opened: PathBuf,
    whole: PathBuf,
    /// The names of the files of each rank.
    files: Vec<Vec<String>>,
}

impl SpreadModel {
    /// Distributes the files of the model that `write` writes over the folders of the ranks.
    fn new(partition: &str, write: &ModelWriter) -> SpreadModel {
        let folder = tempfile::tempdir().unwrap();
        let all = folder.path().join("all");
        let whole = write(&all);
        let file = Checkpoint::open(&whole).unwrap();
        let partition: Partition = partition.parse().unwrap();
        let files = (0..partition.ranks()).map(|rank| needed(&file, &partition, rank)).collect();
        let opened = whole.strip_prefix(&all).unwrap().to_owned();
        let spread = SpreadModel { folder, opened, whole, files };
        for (rank, files) in spread.files.iter().enumerate() {
            fs::create_dir(spread.of(rank)).unwrap();
            let weights = |name: &str| name.ends_with(".safetensors") || name.ends_with(".gguf");
            for name in fs::read_dir(&all).unwrap().map(|entry| entry.unwrap().file_name()) {
                let name = name.into_string().unwrap();
                if !weights(&name) || files.contains(&name) {
                    fs::copy(all.join(&name), spread.of(rank).join(&name)).unwrap();
                }
            }
        }
        spread
    }

    fn of(&self, rank: usize) -> PathBuf {
        self.folder.path().join(rank.to_string())
    }

    fn opened(&self, rank: usize) -> PathBuf {
        self.of(rank).join(&self.opened)
    }

    /// The result of `lead` on rank 0, or the errors of all ranks.
    fn run<T: Send>(
        &self,
        partition: &str,
        lead: impl FnOnce(&mut Engine) -> T + Send,
    ) -> Result<T, Vec<String>> {
        let own = |rank: LocalRank| -> Arc<dyn Communicator> { Arc::new(rank) };
        let open = |rank| Arc::new(Checkpoint::open_for_rank(&self.opened(rank)).unwrap());
        let cpu = latent_backends::cpu;
        let lead = |mut engine: Engine| lead(&mut engine);
        let (led, followed) = on_ranks_of(&open, &own, partition, &cpu, &|_| options(), lead);
        let followed: Vec<String> =
            followed.into_iter().filter_map(Result::err).map(|error| error.to_string()).collect();
        match led {
            Ok(found) if followed.is_empty() => Ok(found),
            led => Err(led.err().map(|error| error.to_string()).into_iter().chain(followed).collect()),
        }
    }
}

/// The files that a rank needs.
fn needed(file: &Checkpoint, partition: &Partition, rank: usize) -> Vec<String> {
    let whole = ModelConfig::from_checkpoint(file).unwrap();
    let part = partition.part(&whole, rank, partition.ranks()).map_err(GraphError::from).unwrap();
    let config = whole.of_part(part);
    let backend = latent_backends::cpu();
    let resolved = options().resolve(&*backend, &config).unwrap();
    let stages = resolved.stages(&config, &CheckpointTensors(file)).unwrap();
    files_of_rank(file, &stages).unwrap()
}

fn tiny(ty: TensorType) -> ModelRecipe {
    ModelRecipe { layers: Some(4), ..ModelRecipe::new("tiny-v3", RandomWeightTypes::from(ty)) }
}

fn gguf(folder: &Path) -> PathBuf {
    fs::create_dir(folder).unwrap();
    let recipe = ModelRecipe { shards: Some(6), ..tiny(TensorType::Q8_0) };
    recipe.write_gguf(&folder.join("model.gguf")).unwrap().first
}

/// Splits the safetensors file of a folder into `count` files with an index.
fn cut(folder: &Path, count: usize) -> PathBuf {
    let single = folder.join("model.safetensors");
    let bytes = fs::read(&single).unwrap();
    fs::remove_file(&single).unwrap();
    let tensors = Header::parse(&bytes, bytes.len() as u64).unwrap().tensors;
    let mut map = Map::new();
    for (number, part) in tensors.chunks(tensors.len().div_ceil(count)).enumerate() {
        let name = format!("model-{:05}-of-{count:05}.safetensors", number + 1);
        let mut writer = Writer::new();
        for tensor in part {
            writer.tensor(tensor.name.clone(), tensor.ty, &tensor.shape).unwrap();
            map.insert(tensor.name.clone(), name.clone().into());
        }
        let mut out = Vec::new();
        let data = |i: usize| &bytes[part[i].start as usize..][..part[i].bytes as usize];
        writer.write(&mut out, |i, out| out.write_all(data(i))).unwrap();
        fs::write(folder.join(name), out).unwrap();
    }
    let index = json!({"weight_map": Value::Object(map)});
    fs::write(folder.join("model.safetensors.index.json"), index.to_string()).unwrap();
    folder.to_owned()
}

fn bf16(folder: &Path) -> PathBuf {
    tiny(TensorType::BF16).write_folder(folder).unwrap();
    cut(folder, 6)
}

/// A folder in which the scales follow all weights, so that they are in other files.
fn fp8(folder: &Path) -> PathBuf {
    tiny(TensorType::F8_E4M3).write_folder(folder).unwrap();
    cut(folder, 9)
}

/// A folder in which the tensors of some weights are in two files.
fn four_bit(folder: &Path) -> PathBuf {
    let plain = tempfile::tempdir().unwrap();
    let form = FourBitRecipe::new(FourBitLayout::PackQuantized, false);
    tiny(TensorType::F32).write_four_bit(&form, folder, &plain.path().join("plain")).unwrap();
    cut(folder, 7)
}

#[test]
fn ranks_with_their_own_files_give_the_bits_of_one_host_with_all() {
    let forms: [(&str, &ModelWriter); 4] =
        [("GGUF", &gguf), ("BF16", &bf16), ("FP8", &fp8), ("4-bit", &four_bit)];
    for (form, write) in forms {
        let mut fewer = 0;
        for partition in ["pipeline=2", "pipeline=4", "layers=1:3"] {
            let spread = SpreadModel::new(partition, write);
            let file = Arc::new(Checkpoint::open(&spread.whole).unwrap());
            fewer += spread.files.iter().filter(|files| files.len() < file.files()).count();
            let mut alone =
                Engine::load(&*latent_backends::cpu(), &file, &options(), &mut |_, _| {}).unwrap();
            let alone = all_logits(&mut alone, &TOKENS, 3);
            let shared = spread.run(partition, |engine| all_logits(engine, &TOKENS, 3)).unwrap();
            assert!(bits(&shared) == bits(&alone), "{form} {partition}");
        }
        assert!(fewer > 4, "{form}: {fewer} ranks have fewer files than there are");
    }
}

#[test]
fn experts_and_heads_need_the_files_that_have_them() {
    for (write, partition) in [(&gguf as &ModelWriter, "tensor=2"), (&bf16, "pipeline=2,experts=2")] {
        let spread = SpreadModel::new(partition, write);
        let rows = spread.run(partition, |engine| all_logits(engine, &TOKENS, 3).len()).unwrap();
        assert_eq!(rows, TOKENS.len(), "{partition}: {:?}", spread.files);
    }
}

#[test]
fn a_missing_file_of_a_rank_is_named() {
    for (write, only) in [
        (&gguf as &ModelWriter, false),
        (&bf16, false),
        (&fp8, false),
        (&four_bit, false),
        (&gguf, true),
        (&bf16, true),
    ] {
        let spread = SpreadModel::new("pipeline=2", write);
        // The last file of rank 1. Rank 0 may have it too.
        let lost = spread.files[1].last().unwrap();
        fs::remove_file(spread.of(1).join(lost)).unwrap();
        if only {
            // No rank has the file.
            let _ = fs::remove_file(spread.of(0).join(lost));
        } else {
            let whole = spread.whole.parent().filter(|_| spread.whole.is_file()).unwrap_or(&spread.whole);
            fs::copy(whole.join(lost), spread.of(0).join(lost)).unwrap();
        }
        let errors = spread.run("pipeline=2", |_| ()).unwrap_err();
        assert_eq!(errors.len(), 2, "{errors:?}");
        // GGUF has no index: the tensors of a shard that no rank has are unknown.
        let unknown = only && lost.ends_with(".gguf");
        let said = |error: &String| match unknown {
            false => {
                error.contains("this rank runs tensor ")
                    && error.contains(&format!("{lost}, which is missing on this host"))
            }
            true => error.contains("no rank has") && error.contains(lost.as_str()),
        };
        assert!(errors.iter().any(said), "{lost}: {errors:?}");
    }
}

#[test]
fn a_file_that_differs_between_ranks_is_named() {
    for write in [&gguf as &ModelWriter, &bf16] {
        let spread = SpreadModel::new("pipeline=4", write);
        // A file that two ranks have, if possible not rank 0.
        let has = |name: &String| (0..4).rev().filter(|rank| spread.files[*rank].contains(name)).collect();
        let two = |name: &String| {
            Some((name.clone(), has(name))).filter(|(_, ranks): &(_, Vec<usize>)| ranks.len() > 1)
        };
        let (name, ranks) = spread.files[3].iter().chain(&spread.files[2]).find_map(two).unwrap();
        let path = spread.of(ranks[0]).join(&name);
        let mut bytes = fs::read(&path).unwrap();
        let last = bytes.len() - 1;
        bytes[last] ^= 1;
        fs::write(&path, bytes).unwrap();
        let errors = spread.run("pipeline=4", |_| ()).unwrap_err();
        let other = ranks.last().unwrap();
        let text = format!("rank {} on host this process differs from rank {other} in file {name}", ranks[0]);
        assert!(errors.len() == 4 && errors[0].contains(&text), "{text}: {errors:?}");
    }
}

#[test]
fn a_single_rank_needs_all_files() {
    for (write, problem) in [(&gguf as &ModelWriter, "is missing: "), (&bf16, "which is not in the folder")] {
        let spread = SpreadModel::new("pipeline=2", write);
        let refused = Checkpoint::open(&spread.opened(1)).err().unwrap().to_string();
        assert!(refused.contains(problem), "{refused}");
        // This holds for a checkpoint that was opened for a rank too.
        let file = Arc::new(Checkpoint::open_for_rank(&spread.opened(1)).unwrap());
        let refused = Engine::load(&*latent_backends::cpu(), &file, &options(), &mut |_, _| {}).err();
        let Some(EngineError::Format(FormatError::Set { problem, .. })) = refused else {
            panic!("{refused:?}");
        };
        assert!(problem.contains("only ranks that share a model can load it without"), "{problem}");
    }
}

#[test]
fn the_first_shard_is_needed_on_every_rank() {
    let spread = SpreadModel::new("pipeline=2", &gguf);
    let first = spread.files[1][0].clone();
    fs::remove_file(spread.of(1).join(&first)).unwrap();
    let other = spread.of(1).join(spread.files[1].last().unwrap());
    let refused = Checkpoint::open_for_rank(&other).err().unwrap().to_string();
    assert!(refused.contains("shard 1 of 6 is missing") && refused.contains("every rank needs"), "{refused}");
}

#[test]
fn the_config_before_loading_is_that_of_the_model() {
    for write in [&gguf as &ModelWriter, &bf16] {
        let spread = SpreadModel::new("pipeline=4", write);
        let whole = ModelConfig::from_checkpoint(&Checkpoint::open(&spread.whole).unwrap()).unwrap();
        for rank in 0..4 {
            let file = Checkpoint::open_for_rank(&spread.opened(rank)).unwrap();
            let found = ModelConfig::before_loading(&file).unwrap();
            assert_eq!(
                (found.vocab_size, found.context_length, found.layers, found.moe.is_some()),
                (whole.vocab_size, whole.context_length, whole.layers, whole.moe.is_some())
            );
        }
    }
}
