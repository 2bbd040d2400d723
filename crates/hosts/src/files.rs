//! Model files of each rank: common files must be equal, and ranks exchange descriptions of missing
//! ones.

use crate::wire::{Reader, Writer};
use crate::wrong_message;
use latent_backend::{Channel, Communicator, RankDifference, RankError};
use latent_formats::identity::{FNV_START, Identity, fnv};
use latent_formats::{Checkpoint, FileIdentity, FileTensors, TensorHead};
use latent_types::TensorType;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

/// The model files of a rank.
struct RankInventory {
    /// The identity of the model, if no file is missing.
    whole: Option<Identity>,
    /// A hash that is the same for every subset of one set of files.
    set: u64,
    files: Vec<FileIdentity>,
}

/// Compares the model files of all ranks. Completes a checkpoint with missing files by the names,
/// types and shapes of their tensors on other ranks, so that all ranks plan the same model. All
/// ranks must call it.
///
/// # Errors
/// [`RankError::Differs`] with a file that differs between two ranks, or a lost rank.
pub fn share(
    communicator: &dyn Communicator,
    checkpoint: &Arc<Checkpoint>,
) -> Result<Arc<Checkpoint>, RankError> {
    let own = has(checkpoint);
    let wrong = |rank| wrong_message(communicator, rank, "a truncated list of files".into());
    let mut message = Vec::new();
    if communicator.rank() > 0 {
        communicator.send(0, Channel::Answers, &written(&own))?;
        communicator.receive(0, Channel::Commands, &mut message)?;
        // Empty: no rank lacks a file.
        if message.is_empty() {
            return Ok(Arc::clone(checkpoint));
        }
        communicator.send(0, Channel::Answers, &tensors_written(&checkpoint.tensors_by_file()))?;
        communicator.receive(0, Channel::Commands, &mut message)?;
        let (fingerprint, rest) = message.split_first_chunk::<8>().ok_or_else(|| wrong(0))?;
        let tensors = tensors_read(rest).ok_or_else(|| wrong(0))?;
        return Ok(completed(checkpoint, &tensors, u64::from_le_bytes(*fingerprint)));
    }
    let mut all = vec![own];
    for from in 1..communicator.ranks() {
        communicator.receive(from, Channel::Answers, &mut message)?;
        all.push(read(&message).ok_or_else(|| wrong(from))?);
    }
    if let Err(difference) = compare(&all, &|rank| communicator.host(rank)) {
        let error = RankError::Differs(difference);
        communicator.fail(&error.to_string());
        return Err(error);
    }
    let others = || 1..communicator.ranks();
    let whole = all.iter().all(|has| has.whole.is_some());
    let reply: &[u8] = if whole { &[] } else { &[1] };
    others().try_for_each(|to| communicator.send(to, Channel::Commands, reply))?;
    // Lists of 100,000 tensors take megabytes. They are only sent if a rank lacks a file.
    if whole {
        return Ok(Arc::clone(checkpoint));
    }
    let mut union = TensorUnion::default();
    union.add(checkpoint.tensors_by_file());
    for from in others() {
        communicator.receive(from, Channel::Answers, &mut message)?;
        union.add(tensors_read(&message).ok_or_else(|| wrong(from))?);
    }
    let fingerprint = fingerprint(&all);
    let answer = [&fingerprint.to_le_bytes()[..], &tensors_written(&union.files)].concat();
    others().try_for_each(|to| communicator.send(to, Channel::Commands, &answer))?;
    Ok(completed(checkpoint, &union.files, fingerprint))
}

fn has(checkpoint: &Checkpoint) -> RankInventory {
    let whole = checkpoint.is_whole().then(|| checkpoint.identity());
    RankInventory { whole, set: checkpoint.set_identity(), files: checkpoint.file_identities() }
}

fn completed(checkpoint: &Arc<Checkpoint>, tensors: &[FileTensors], fingerprint: u64) -> Arc<Checkpoint> {
    match checkpoint.is_whole() {
        true => Arc::clone(checkpoint),
        false => Arc::new(checkpoint.with_tensors_of(tensors, fingerprint)),
    }
}

/// Returns the first difference between the files of two ranks.
fn compare(all: &[RankInventory], host: &dyn Fn(usize) -> String) -> Result<(), Box<RankDifference>> {
    let same = "give all ranks the same file, or copies of it";
    let differ = |rank, other, what: String, [found, expected]: [String; 2], advice: &str| {
        Box::new(RankDifference {
            rank,
            host: host(rank),
            other,
            what,
            found,
            expected,
            advice: advice.to_owned(),
        })
    };
    let hex = |identity: Identity| format!("{:016x}-{:016x}", identity.header, identity.sample);
    // A model in one file may have another name on another host, so it is compared by its identity.
    // Shards are matched by name.
    let of_several = |has: &RankInventory| has.whole.is_none() || has.files.len() > 1;
    let mut first: HashMap<&str, (usize, &FileIdentity)> = HashMap::new();
    for (rank, has) in all.iter().enumerate().filter(|(_, has)| of_several(has)) {
        for file in &has.files {
            let (other, expected) = *first.entry(&file.name).or_insert((rank, file));
            if expected != file {
                let shown = |file: &FileIdentity| format!("{} bytes, {}", file.bytes, hex(file.identity));
                let advice = format!("rank {other} is on host {}: {same}", host(other));
                let values = [shown(file), shown(expected)];
                return Err(differ(rank, other, format!("file {}", file.name), values, &advice));
            }
        }
    }
    // A rank that lacks files has no identity of the whole model. The hash of the set is known to
    // all ranks.
    let whole = all.iter().all(|has| has.whole.is_some());
    for (rank, has) in all.iter().enumerate().skip(1) {
        let (what, advice, found) = match whole {
            true => ("model file", same, [has, &all[0]].map(|has| has.whole.map(hex).unwrap_or_default())),
            false => {
                let advice =
                    "give all ranks files of the same model, with unchanged names, and the same config.json";
                ("set of files", advice, [has, &all[0]].map(|has| format!("{:016x}", has.set)))
            }
        };
        if found[0] != found[1] {
            return Err(differ(rank, 0, what.to_owned(), found, advice));
        }
    }
    Ok(())
}

/// A fingerprint of the model from the headers of all files that any rank has.
fn fingerprint(all: &[RankInventory]) -> u64 {
    // Sorted by name, so that the result does not depend on which rank has which files.
    let files: BTreeMap<&str, &FileIdentity> =
        all.iter().flat_map(|has| &has.files).map(|file| (file.name.as_str(), file)).collect();
    files.values().fold(FNV_START, |hash, file| {
        let numbers = [file.bytes, file.identity.header].map(u64::to_le_bytes);
        fnv(fnv(hash, file.name.as_bytes()), numbers.as_flattened())
    })
}

/// The tensors of all ranks' files, without duplicates.
#[derive(Default)]
struct TensorUnion {
    files: Vec<FileTensors>,
    places: HashMap<String, usize>,
    tensors: HashSet<String>,
}

impl TensorUnion {
    fn add(&mut self, files: Vec<FileTensors>) {
        for FileTensors { file, mut tensors } in files {
            // Files that several ranks have are listed by each of them.
            tensors.retain(|head| self.tensors.insert(head.name.clone()));
            match self.places.get(&file) {
                Some(place) => self.files[*place].tensors.append(&mut tensors),
                None => {
                    self.places.insert(file.clone(), self.files.len());
                    self.files.push(FileTensors { file, tensors });
                }
            }
        }
    }
}

fn write_identity(out: &mut Writer, identity: Identity) {
    out.u64(identity.header);
    out.u64(identity.sample);
}

fn written(has: &RankInventory) -> Vec<u8> {
    let mut out = Writer::default();
    out.u32(u32::from(has.whole.is_some()));
    write_identity(&mut out, has.whole.unwrap_or(Identity { header: 0, sample: 0 }));
    out.u64(has.set);
    out.usize(has.files.len());
    for file in &has.files {
        out.bytes(file.name.as_bytes());
        out.u64(file.bytes);
        write_identity(&mut out, file.identity);
    }
    out.0
}

fn read(message: &[u8]) -> Option<RankInventory> {
    let mut from = Reader(message);
    let whole = from.u32()? == 1;
    let identity = read_identity(&mut from)?;
    let set = from.u64()?;
    let mut files = Vec::new();
    for _ in 0..from.usize()? {
        let name = read_text(&mut from)?;
        files.push(FileIdentity { name, bytes: from.u64()?, identity: read_identity(&mut from)? });
    }
    from.is_done().then_some(RankInventory { whole: whole.then_some(identity), set, files })
}

fn read_identity(from: &mut Reader<'_>) -> Option<Identity> {
    Some(Identity { header: from.u64()?, sample: from.u64()? })
}

fn read_text(from: &mut Reader<'_>) -> Option<String> {
    Some(String::from_utf8_lossy(from.bytes()?).into_owned())
}

fn tensors_written(files: &[FileTensors]) -> Vec<u8> {
    let mut out = Writer::default();
    out.usize(files.len());
    for FileTensors { file, tensors } in files {
        out.bytes(file.as_bytes());
        out.usize(tensors.len());
        for head in tensors {
            out.bytes(head.name.as_bytes());
            out.bytes(head.ty.name().as_bytes());
            out.usize(head.shape.len());
            head.shape.iter().for_each(|size| out.usize(*size));
            out.u64(head.bytes);
        }
    }
    out.0
}

fn tensors_read(message: &[u8]) -> Option<Vec<FileTensors>> {
    let mut from = Reader(message);
    let mut files = Vec::new();
    for _ in 0..from.usize()? {
        let (file, mut tensors) = (read_text(&mut from)?, Vec::new());
        for _ in 0..from.usize()? {
            let name = read_text(&mut from)?;
            let ty = TensorType::from_name(&read_text(&mut from)?).ok()?;
            let mut shape = Vec::new();
            for _ in 0..from.usize()? {
                shape.push(from.usize()?);
            }
            tensors.push(TensorHead { name, ty, shape, bytes: from.u64()? });
        }
        files.push(FileTensors { file, tensors });
    }
    from.is_done().then_some(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(name: &str, sample: u64) -> FileIdentity {
        FileIdentity { name: name.into(), bytes: 9, identity: Identity { header: 1, sample } }
    }

    fn some(files: &[(&str, u64)]) -> RankInventory {
        let files = files.iter().map(|(name, sample)| file(name, *sample)).collect();
        RankInventory { whole: None, set: 7, files }
    }

    #[test]
    fn a_file_that_differs_is_named_with_both_ranks() {
        let host = |rank: usize| format!("h{rank}");
        let parts = |third| [some(&[("a", 1)]), some(&[("b", 2)]), some(&[("a", 1), ("b", third)])];
        assert_eq!(compare(&parts(2), &host), Ok(()));
        let problem = compare(&parts(3), &host).unwrap_err().to_string();
        let text =
            "rank 2 on host h2 differs from rank 1 in file b: 9 bytes, 0000000000000001-0000000000000003";
        assert!(problem.contains(text) && problem.contains("rank 1 is on host h1: give all"), "{problem}");
        let other = [some(&[("a", 1)]), RankInventory { set: 8, ..some(&[("b", 2)]) }];
        let problem = compare(&other, &host).unwrap_err().to_string();
        assert!(problem.contains("rank 1 on host h1 differs from rank 0 in set of files"), "{problem}");
    }

    #[test]
    fn a_single_file_is_compared_by_its_identity_and_not_by_its_name() {
        let whole = |name, header| RankInventory {
            whole: Some(Identity { header, sample: 4 }),
            ..some(&[(name, 5)])
        };
        let host = |_: usize| String::new();
        assert_eq!(compare(&[whole("a", 3), whole("b", 3)], &host), Ok(()));
        let problem = compare(&[whole("a", 3), whole("a", 2)], &host).unwrap_err().to_string();
        assert!(problem.contains("in model file: 0000000000000002-0000000000000004"), "{problem}");
    }

    #[test]
    fn lists_of_tensors_arrive_as_they_were_sent() {
        let head = |name: &str| TensorHead {
            name: name.into(),
            ty: TensorType::Q4_K,
            shape: vec![3, 256],
            bytes: 432,
        };
        let file = |file: &str, names: &[&str]| FileTensors {
            file: file.into(),
            tensors: names.iter().copied().map(head).collect(),
        };
        let files = vec![file("a", &["x", "y"]), file("b", &[])];
        let message = tensors_written(&files);
        assert_eq!(tensors_read(&message), Some(files.clone()));
        assert_eq!(tensors_read(&message[..message.len() - 1]), None);
        let mut union = TensorUnion::default();
        union.add(files);
        union.add(vec![file("b", &["z", "x"]), file("c", &["w"])]);
        assert_eq!(union.files, [file("a", &["x", "y"]), file("b", &["z"]), file("c", &["w"])]);
    }
}
