//! Releasing evicts the pages that reading brought into the page cache, and no other pages.
#![cfg(target_os = "linux")]

use latent_formats::Checkpoint;
use latent_formats::gguf::{Writer, WriterValue};
use latent_types::TensorType;
use std::fs::File;
use std::path::Path;

const ROWS: usize = 2048;
const NAMES: [&str; 3] = ["a", "b", "c"];

/// Three tensors of 8 MB on disk, without resident pages; `None` if the file system cannot evict
/// pages.
fn cold(path: &Path) -> Option<Checkpoint> {
    let mut writer = Writer::new();
    writer.key("general.architecture", WriterValue::String("deepseek2".into()));
    for name in NAMES {
        writer.tensor(name, TensorType::F32, &[ROWS, 1024]).unwrap();
    }
    let mut file = File::create(path).unwrap();
    writer.write(&mut file, |i, out| (0..ROWS).try_for_each(|_| out.write_all(&[i as u8; 4096]))).unwrap();
    file.sync_all().unwrap();
    let checkpoint = Checkpoint::open(path).unwrap();
    let nothing = checkpoint.nothing_resident();
    NAMES.iter().for_each(|name| checkpoint.release(name, 0..usize::MAX, &nothing));
    checkpoint.release_rest(&nothing);
    let now = checkpoint.resident_pages();
    // tmpfs does not evict pages.
    let cold = NAMES.iter().all(|name| !checkpoint.was_resident(name, 4 << 20..5 << 20, &now));
    cold.then_some(checkpoint)
}

/// Whether each piece of 64 KB of each tensor is resident.
fn state(checkpoint: &Checkpoint) -> Vec<bool> {
    let now = checkpoint.resident_pages();
    let pieces = NAMES.iter().flat_map(|name| (0..128).map(move |i| (name, i << 16..(i + 1) << 16)));
    pieces.map(|(name, part)| checkpoint.was_resident(name, part, &now)).collect()
}

/// Whether each piece of 64 KB is resident.
#[derive(Debug)]
struct ResidencyStates {
    /// After another process would have read one tensor.
    before: Vec<bool>,
    /// After all tensors were read and released.
    after: Vec<bool>,
    /// After all tensors were read again.
    again: Vec<bool>,
}

impl ResidencyStates {
    fn of(checkpoint: &Checkpoint) -> ResidencyStates {
        let tensor = |name: &str| checkpoint.tensor(name).unwrap();
        let read = |name: &str| tensor(name).data.iter().map(|b| u64::from(*b)).sum::<u64>();
        assert_eq!(read("b"), 8 << 20);
        checkpoint.drop_pages("b", 0..usize::MAX);
        let (staying, before) = (checkpoint.resident_pages(), state(checkpoint));
        for name in NAMES {
            read(name);
            // In parts, like packing. Parts need not end at page boundaries.
            for part in 0..11 {
                checkpoint.release(name, part * 777_777..(part + 1) * 777_777, &staying);
            }
            checkpoint.release(name, 0..usize::MAX, &staying);
        }
        checkpoint.release_rest(&staying);
        let after = state(checkpoint);
        // All data can be read again.
        assert_eq!(NAMES.map(read), [0, 8 << 20, 16 << 20]);
        ResidencyStates { before, after, again: state(checkpoint) }
    }

    fn are_right(&self) -> bool {
        let all = |pieces: &[bool]| pieces.iter().all(|resident| *resident);
        all(&self.before[128..256]) && !all(&self.before) && self.after == self.before && all(&self.again)
    }
}

/// The system may evict any page at any time, so the test fails only if all of its tries fail.
#[test]
fn release_restores_the_state_of_the_page_cache() {
    let folder = tempfile::tempdir().unwrap();
    let mut last = None;
    for _ in 0..20 {
        let Some(checkpoint) = cold(&folder.path().join("model.gguf")) else { return };
        let states = ResidencyStates::of(&checkpoint);
        if states.are_right() {
            return;
        }
        last = Some(states);
    }
    panic!("{last:?}");
}

#[test]
fn unknown_names_and_parts_are_ignored() {
    let folder = tempfile::tempdir().unwrap();
    let Some(checkpoint) = cold(&folder.path().join("model.gguf")) else { return };
    let before = checkpoint.resident_pages();
    assert!(checkpoint.was_resident("d", 0..8, &before));
    assert!(checkpoint.was_resident("a", 1 << 30..2 << 30, &before));
    checkpoint.release("d", 0..8, &before);
    checkpoint.release("a", 1 << 30..usize::MAX, &before);
    checkpoint.release("a", 50..50, &before);
}
