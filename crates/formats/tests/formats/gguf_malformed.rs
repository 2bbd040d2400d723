//! Malformed GGUF files: the cases of llama.cpp's test-gguf, and published vulnerabilities of
//! loaders.

use crate::support::*;

fn with(change: impl FnOnce(&mut RawGguf)) -> Vec<u8> {
    let mut raw = RawGguf::valid();
    change(&mut raw);
    raw.bytes()
}

#[test]
fn the_unchanged_file_is_valid() {
    let checkpoint = open(RawGguf::valid().bytes()).unwrap();
    assert_eq!(checkpoint.tensor("a").unwrap().info.shape, [2, 4]);
    assert_eq!(checkpoint.tensor("b").unwrap().data, (32..64).collect::<Vec<u8>>());
}

// ---- test-gguf: the prelude

#[test]
fn bad_magic() {
    refused(with(|f| f.magic = *b"FUGG"), &["model.gguf", "[46, 55, 47, 47]", "not a GGUF file"]);
}

#[test]
fn version_0() {
    refused(with(|f| f.version = 0), &["version 0 is not supported", "2 and 3"]);
}

#[test]
fn version_1() {
    refused(with(|f| f.version = 1), &["version 1 is not supported", "convert"]);
}

#[test]
fn version_of_the_future() {
    refused(with(|f| f.version = 4), &["version 4 is not supported"]);
}

#[test]
fn big_endian() {
    refused(with(|f| f.version = 3u32.swap_bytes()), &["big-endian (version 3", "convert it"]);
}

#[test]
fn empty_and_shorter_than_its_head() {
    refused(Vec::new(), &["magic bytes", "truncated"]);
    for len in 4..24 {
        refused(RawGguf::valid().bytes()[..len].to_vec(), &["truncated"]);
    }
}

#[test]
fn number_of_tensors_2_64_minus_1() {
    refused(
        with(|f| f.tensor_count = Some(u64::MAX)),
        &["number of tensors", "18446744073709551615", "limit"],
    );
}

#[test]
fn number_of_keys_2_64_minus_1() {
    refused(
        with(|f| f.key_count = Some(u64::MAX)),
        &["number of metadata keys", "18446744073709551615", "limit"],
    );
}

#[test]
fn more_tensors_and_keys_than_the_file_can_hold() {
    refused(with(|f| f.tensor_count = Some(60_000)), &["list of 60000 tensors", "1500000 bytes"]);
    refused(with(|f| f.key_count = Some(16_000)), &["list of 16000 metadata keys", "224000 bytes"]);
}

// ---- test-gguf: keys

#[test]
fn key_length_minus_1() {
    let mut bytes = RawGguf::valid().bytes();
    bytes[24..32].copy_from_slice(&u64::MAX.to_le_bytes());
    refused(bytes, &["length of metadata key number 0", "18446744073709551615", "limit"]);
}

#[test]
fn empty_key() {
    refused(with(|f| f.keys[1].0.clear()), &["metadata key number 1", "empty"]);
}

#[test]
fn key_that_is_not_utf8() {
    refused(with(|f| f.keys[1].0 = vec![0xff, 0xfe]), &["metadata key number 1", "UTF-8"]);
}

#[test]
fn bad_value_type() {
    refused(with(|f| f.keys[1].1 = 13), &["deepseek2.block_count", "unknown value type 13"]);
    refused(with(|f| f.keys[1].1 = u32::MAX), &["deepseek2.block_count", "value type 4294967295"]);
}

#[test]
fn bad_type_of_array_elements() {
    let file = RawGguf::valid().with_key("list", ARRAY, &array(77, 1, &[0; 8]));
    refused(file.bytes(), &["metadata key list", "value type 77"]);
}

#[test]
fn array_of_arrays() {
    let file = RawGguf::valid().with_key("list", ARRAY, &array(ARRAY, 1, &array(U32, 1, &[0; 4])));
    refused(file.bytes(), &["metadata key list", "arrays of arrays"]);
}

#[test]
fn duplicate_key() {
    refused(
        with(|f| f.keys.push(f.keys[1].clone())),
        &["metadata key \"deepseek2.block_count\" occurs twice"],
    );
}

#[test]
fn a_boolean_that_is_neither() {
    let file = RawGguf::valid().with_key("flag", 7, &[2]);
    refused(file.bytes(), &["metadata key flag", "2 is not a boolean"]);
}

// ---- general.alignment

#[test]
fn alignment_of_another_type() {
    let text = RawGguf::valid().with_key("general.alignment", STRING, &string("32"));
    refused(text.bytes(), &["general.alignment", "\"32\"", "not an unsigned integer"]);
    let float = RawGguf::valid().with_key("general.alignment", F32, &32f32.to_le_bytes());
    refused(float.bytes(), &["general.alignment", "32", "not an unsigned integer"]);
}

/// A file of 57 bytes with alignment 0 caused a division by zero in another engine.
#[test]
fn alignment_0_of_a_file_of_57_bytes() {
    let file =
        RawGguf { keys: Vec::new(), tensors: Vec::new(), data: Vec::new(), alignment: 1, ..RawGguf::valid() };
    let bytes = file.with_key("general.alignment", U32, &0u32.to_le_bytes()).bytes();
    assert_eq!(bytes.len(), 57);
    refused(bytes, &["general.alignment", "0 is not a power of two"]);
}

#[test]
fn alignment_that_is_not_a_power_of_two_or_overflows_padding() {
    for bad in [3u32, 33, 1 << 21, 1 << 31, u32::MAX] {
        let file = RawGguf::valid().with_key("general.alignment", U32, &bad.to_le_bytes());
        refused(file.bytes(), &["general.alignment", &bad.to_string(), "power of two of at most 1048576"]);
    }
}

#[test]
fn alignment_that_contradicts_the_offsets() {
    let file = RawGguf::valid().with_key("general.alignment", U32, &64u32.to_le_bytes());
    refused(file.bytes(), &["tensor b", "offset 32", "alignment 64"]);
}

// ---- test-gguf: tensors

#[test]
fn tensor_name_too_long() {
    refused(with(|f| f.tensors[1].name = vec![b'x'; 1025]), &["length of tensor number 1", "1025", "1024"]);
}

#[test]
fn tensor_name_that_is_empty_or_not_utf8() {
    refused(with(|f| f.tensors[1].name.clear()), &["tensor number 1", "empty"]);
    refused(with(|f| f.tensors[1].name = vec![0x80]), &["tensor number 1", "UTF-8"]);
}

#[test]
fn too_many_dimensions() {
    for bad in [5, 64, u32::MAX] {
        refused(
            with(|f| f.tensors[1].dimensions = Some(bad)),
            &["dimensions of tensor b", &bad.to_string(), "limit of 4"],
        );
    }
}

#[test]
fn negative_dimension() {
    for bad in [u64::MAX, 1 << 63] {
        refused(with(|f| f.tensors[1].sizes = vec![bad]), &["tensor b", &bad.to_string(), "negative"]);
    }
}

#[test]
fn dimension_0_is_an_empty_tensor() {
    let checkpoint = open(with(|f| f.tensors[1].sizes = vec![8, 0, 3])).unwrap();
    let empty = checkpoint.tensor("b").unwrap();
    assert_eq!((empty.info.shape.as_slice(), empty.data.len()), ([3, 0, 8].as_slice(), 0));
}

#[test]
fn product_of_dimensions_overflows() {
    refused(with(|f| f.tensors[1].sizes = vec![1 << 40; 3]), &["tensor b", "overflows"]);
    refused(with(|f| f.tensors[1].sizes = vec![i64::MAX as u64; 4]), &["tensor b"]);
    // No elements, but the product of some dimensions overflows.
    for sizes in [[0, 1 << 40, 1 << 40], [1 << 40, 0, 1 << 40], [1 << 40, 1 << 40, 0]] {
        refused(with(|f| f.tensors[1].sizes = sizes.to_vec()), &["tensor b", "overflows"]);
    }
}

#[test]
fn number_of_bytes_overflows() {
    // The size of 2^62 numbers of four bytes wraps to 0.
    refused(with(|f| f.tensors[1].sizes = vec![1 << 62]), &["tensor b"]);
    refused(with(|f| f.tensors[1].sizes = vec![1 << 31, 1 << 31]), &["tensor b", "overflows"]);
}

/// 4 × (2^30 − 1) × (2^30 + 1) numbers of F32 have 2^64 − 16 bytes. Padded to 32, the size wraps to
/// 0.
#[test]
fn padded_size_wraps() {
    refused(with(|f| f.tensors[1].sizes = vec![4, (1 << 30) - 1, (1 << 30) + 1]), &["tensor b", "overflows"]);
}

/// A tensor of an exabyte in a file of four megabytes (CVE-2026-33298).
#[test]
fn an_exabyte_in_a_small_file() {
    refused(
        with(|f| f.tensors[1].sizes = vec![1 << 29, 1 << 29]),
        &["tensor b", "extends past the end of the file"],
    );
}

#[test]
fn unknown_and_retired_types_of_tensors() {
    for bad in [4, 5, 31, 32, 33, 36, 37, 38, 43, 1000, u32::MAX] {
        refused(with(|f| f.tensors[1].ty = bad), &["tensor b", &format!("unknown tensor type {bad}")]);
    }
}

#[test]
fn rows_with_incomplete_blocks() {
    refused(with(|f| f.tensors[1].ty = 8), &["tensor b", "row length 8", "block size 32", "Q8_0"]);
    refused(
        with(|f| (f.tensors[1].ty, f.tensors[1].sizes[0]) = (12, 255)),
        &["tensor b", "row length 255", "block size 256"],
    );
}

#[test]
fn offset_off_the_alignment() {
    refused(with(|f| f.tensors[1].offset = 33), &["tensor b", "offset 33", "alignment 32"]);
}

#[test]
fn offset_past_the_end() {
    for bad in [64, 1 << 40, u64::MAX - 31] {
        refused(with(|f| f.tensors[1].offset = bad), &["tensor b", "extends past the end of the file"]);
    }
}

#[test]
fn duplicate_tensor() {
    refused(with(|f| f.tensors[1].name = b"a".to_vec()), &["tensor \"a\" occurs twice"]);
}

#[test]
fn overlapping_tensors() {
    refused(with(|f| f.tensors[1].offset = 0), &["tensors a and b overlap at byte"]);
    // Also if the list has another order than the data.
    refused(
        with(|f| {
            f.tensors.swap(0, 1);
            f.tensors[0].offset = 0;
        }),
        &["overlap"],
    );
}

#[test]
fn data_truncated() {
    let bytes = RawGguf::valid().bytes();
    for cut in [1, 31, 32, 33, 64] {
        refused(
            bytes[..bytes.len() - cut].to_vec(),
            &["extends past the end of the file", "truncated: download it again"],
        );
    }
}

#[test]
fn every_truncation_is_refused() {
    let bytes = RawGguf::valid().bytes();
    for len in 0..bytes.len() {
        assert!(open(bytes[..len].to_vec()).is_err(), "{len} of {} bytes were accepted", bytes.len());
    }
}

#[test]
fn sizes_whose_sum_overflows() {
    // Each size fits into 63 bits, but not their sum.
    let huge = |name: &str, offset| tensor(name, &[1 << 60], 0, offset);
    refused(
        with(|f| f.tensors = vec![huge("a", 0), huge("b", 1 << 62), huge("c", 1 << 63)]),
        &["tensor a", "past the end"],
    );
}

// ---- vulnerabilities of other loaders (CVE-2024-21802, -21825, -21836, -23496, -23605;
// CVE-2025-66960)

#[test]
fn length_of_a_string_that_wraps() {
    for bad in [u64::MAX, u64::MAX - 7, 1 << 63, 1 << 40, (4 << 20) + 1] {
        let file = RawGguf::valid().with_key("text", STRING, &bad.to_le_bytes());
        refused(file.bytes(), &["metadata key text", &bad.to_string(), "limit"]);
    }
    let file = RawGguf::valid().with_key("text", STRING, &100_000u64.to_le_bytes());
    refused(file.bytes(), &["metadata key text", "claims 100000 bytes", "truncated"]);
}

#[test]
fn length_of_an_array_that_wraps() {
    for ty in [0, U32, STRING, 12] {
        for bad in [u64::MAX, 1 << 62, 1 << 61, (1 << 28) + 1] {
            let file = RawGguf::valid().with_key("list", ARRAY, &array(ty, bad, &[]));
            refused(file.bytes(), &["array of metadata key list", &bad.to_string(), "limit"]);
        }
    }
}

/// 160 bytes that claim 2^28 elements must not cause an allocation of gigabytes.
#[test]
fn array_larger_than_the_file() {
    for (ty, size) in [(0, 1), (1, 1), (2, 2), (3, 2), (4, 4), (6, 4), (7, 1), (8, 8), (10, 8), (12, 8)] {
        let count = 1u64 << 28;
        let file = RawGguf::valid().with_key("list", ARRAY, &array(ty, count, &[]));
        refused(file.bytes(), &["array of metadata key list", &format!("claims {} bytes", count * size)]);
    }
}

/// A token whose length another loader truncates to 32 bits (CVE-2025-49847).
#[test]
fn length_of_a_token_beyond_32_bits() {
    let elements = [&string("ok")[..], &((1u64 << 32) + 2).to_le_bytes(), b"xy"].concat();
    let file = RawGguf::valid().with_key("tokenizer.ggml.tokens", ARRAY, &array(STRING, 2, &elements));
    refused(file.bytes(), &["string 1 of metadata key tokenizer.ggml.tokens", "4294967298", "limit"]);
}

/// An engine trusted offsets when it wrote files, and leaked its memory (CVE-2026-7482).
#[test]
fn size_and_offset_past_the_end_never_give_bytes() {
    refused(with(|f| f.tensors[1].sizes = vec![9]), &["tensor b", "extends past the end of the file"]);
    refused(with(|f| f.data.truncate(40)), &["tensor b", "extends past the end of the file"]);
}

#[test]
fn keys_of_the_wrong_type_name_key_value_and_expectation() {
    let file = RawGguf::valid()
        .with_key("n", STRING, &string("many"))
        .with_key("minus", I32, &(-3i32).to_le_bytes())
        .with_key("list", ARRAY, &array(U32, 2, &[1, 0, 0, 0, 2, 0, 0, 0]));
    let checkpoint = open(file.bytes()).unwrap();
    let latent_formats::CheckpointSource::Gguf(source) = checkpoint.source() else {
        unreachable!("it is GGUF")
    };
    let metadata = &source.metadata;
    says(metadata.u64("n"), &["model.gguf", "key n", "\"many\"", "expected a non-negative integer"]);
    says(metadata.u64("minus"), &["key minus is -3", "expected a non-negative integer"]);
    says(metadata.f64("list"), &["key list is an array of 2 U32", "expected a number"]);
    says(metadata.str("minus"), &["expected a string"]);
    says(metadata.bool("n"), &["expected a boolean"]);
    says(metadata.strings("list"), &["expected an array of strings"]);
    says(metadata.numbers("n"), &["expected an array of numbers"]);
    assert!(metadata.u64("absent").unwrap().is_none());
}
