//! The header of a packed file from any bytes, without the prelude, whose checksum would refuse them all.
#![no_main]

use formats::pack::Directory;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let _ = Directory::parse(bytes);
    let Ok(directory) = Directory::parse_body(bytes) else { return };
    for tensor in &directory.tensors {
        assert!(tensor.start >= directory.data_start);
        assert!(tensor.start + tensor.bytes <= bytes.len() as u64 + formats::pack::PAGE);
        if tensor.tile_rows.is_none() {
            let rows: usize = tensor.shape.iter().rev().skip(1).product();
            let row = tensor.ty.row_bytes(tensor.shape.last().copied().unwrap_or(1));
            assert_eq!(row.map(|row| (row * rows) as u64), Some(tensor.bytes));
        }
    }
});
