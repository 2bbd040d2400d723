//! What the entries for 4-bit weights refuse; their results are held by the table of cases.

use crate::buffers::Buffer;
use crate::commands::Commands;
use crate::matmul::rows::Matrix;
use crate::matmul::w4::{GroupScales, W4Codes, W4Operand, W4Shape, W4Weight, fused, reduce, striped};
use crate::testing::device;

#[test]
fn what_does_not_agree_is_an_error() {
    let Some(device) = device() else { return };
    let shape = W4Shape { k: 16, n: 3, group: 8 };
    let scales = GroupScales::E8m0(&[127; 6]);
    let operand = W4Operand { shape, words: &[0; 6], scales, codes: W4Codes::Fp4, zeros: &[] };
    let problem =
        |operand: W4Operand<'_>| W4Weight::upload(&device, "w", &operand).err().unwrap().to_string();
    assert!(problem(W4Operand { words: &[0; 5], ..operand }).contains("5 words"));
    assert!(problem(W4Operand { codes: W4Codes::Int4, ..operand }).contains("0 zero points"));
    assert!(problem(W4Operand { shape: W4Shape { group: 0, ..shape }, ..operand }).contains("groups of 0"));
    let weight = W4Weight::upload(&device, "w", &operand).unwrap();
    let buffer = Buffer::new(&device, "x", 4096).unwrap();
    let mut commands = Commands::new(&device);
    let (odd, rows) = (Matrix { first: 1, ..Matrix::new(&buffer, 16) }, Matrix::new(&buffer, 16));
    assert!(
        fused(&mut commands, &weight, &odd, &rows, 1).unwrap_err().to_string().contains("multiples of 4")
    );
    assert!(striped(&mut commands, &weight, (&rows, 1), (&buffer, 0), &rows).is_err());
    assert!(reduce(&mut commands, (&buffer, 1000), (4, 4), &rows).is_err());
}
