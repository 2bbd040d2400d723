//! Parts of tensors that one of several ranks reads.

use crate::support::*;
use latent_formats::gguf::Writer;
use latent_formats::{Checkpoint, TensorPart};
use latent_types::TensorType;
use std::ops::Range;

/// Three matrices of four rows of six consecutive numbers, and two rows of two blocks.
fn checkpoint() -> Checkpoint {
    let mut writer = Writer::new();
    writer.tensor("counts", TensorType::F32, &[3, 4, 6]).unwrap();
    writer.tensor("blocks", TensorType::Q8_0, &[2, 64]).unwrap();
    let mut file = Vec::new();
    let write = |index, out: &mut dyn std::io::Write| match index {
        0 => (0..72).try_for_each(|i| out.write_all(&(i as f32).to_le_bytes())),
        _ => out.write_all(&(0..136).collect::<Vec<u8>>()),
    };
    writer.write(&mut file, write).unwrap();
    open(file).unwrap()
}

fn part(
    tensor: &str,
    whole: [usize; 3],
    matrices: Range<usize>,
    rows: Range<usize>,
    columns: Range<usize>,
) -> TensorPart {
    TensorPart { tensor: tensor.into(), whole, matrices, rows, columns }
}

#[test]
fn rows_of_a_part_are_those_of_the_tensor() {
    let whole = checkpoint();
    for (matrices, rows, columns, stored) in [
        (0..3, 0..4, 0..6, true),
        (1..3, 0..4, 0..6, true),
        (2..3, 1..3, 0..6, true),
        (0..3, 1..2, 0..6, false),
        (0..3, 0..4, 2..5, false),
        (1..2, 3..4, 1..3, true),
    ] {
        let cut = part("counts", [3, 4, 6], matrices.clone(), rows.clone(), columns.clone());
        let own = whole.parts(&[cut]).unwrap();
        let info = own.info("counts").unwrap();
        assert_eq!(
            (&info.shape[..], info.is_stored()),
            (&[matrices.len(), rows.len(), columns.len()][..], stored)
        );
        let mut expected = Vec::new();
        for matrix in matrices {
            for row in rows.clone() {
                expected.extend(columns.clone().map(|column| (matrix * 24 + row * 6 + column) as f32));
            }
        }
        let (read, mut scratch) = (own.rows("counts").unwrap().unwrap(), Vec::new());
        let bytes = read.read(0..info.rows(), &mut scratch).to_vec();
        let numbers: Vec<f32> =
            bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
        assert_eq!(numbers, expected);
        let last = info.rows() - 1;
        assert_eq!(read.bytes(last..last + 1), &bytes[bytes.len() - read.row_bytes()..]);
        assert_eq!(own.fingerprint(), whole.fingerprint());
        assert!(own.info("blocks").is_none(), "what is not asked for is not there");
    }
}

#[test]
fn a_cut_within_a_block_or_beyond_the_tensor_is_refused_by_name() {
    let whole = checkpoint();
    let own = whole.parts(&[part("blocks", [1, 2, 64], 0..1, 0..2, 32..64)]).unwrap();
    let mut scratch = Vec::new();
    assert_eq!(own.rows("blocks").unwrap().unwrap().read(0..2, &mut scratch).len(), 68);
    for (cut, problem) in [
        (part("blocks", [1, 2, 64], 0..1, 0..2, 16..64), "not aligned to blocks of 32"),
        (part("blocks", [1, 2, 64], 0..1, 1..3, 0..64), "its shape is [2, 64]"),
        (part("blocks", [1, 2, 32], 0..1, 0..1, 0..32), "its shape is [2, 64]"),
        (part("nothing", [1, 1, 1], 0..1, 0..1, 0..1), "not in the file"),
    ] {
        let name = cut.tensor.clone();
        let error = whole.parts(&[cut]).err().unwrap().to_string();
        assert!(error.contains(problem) && error.contains(&format!("tensor {name}")), "{error}");
    }
}
