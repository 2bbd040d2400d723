//! GGUF and safetensors files built byte by byte, so that each field can be wrong.
#![allow(dead_code, reason = "each test program uses a part of it")]

use latent_formats::{Checkpoint, FormatError};

/// Numbers of value types in a GGUF file.
pub const U8: u32 = 0;
pub const U32: u32 = 4;
pub const I32: u32 = 5;
pub const F32: u32 = 6;
pub const STRING: u32 = 8;
pub const ARRAY: u32 = 9;
pub const U64: u32 = 10;

/// The parts of a GGUF file. Counts that are `None` are computed.
#[derive(Clone)]
pub struct RawGguf {
    pub magic: [u8; 4],
    pub version: u32,
    pub tensor_count: Option<u64>,
    pub key_count: Option<u64>,
    pub keys: Vec<(Vec<u8>, u32, Vec<u8>)>,
    pub tensors: Vec<RawTensor>,
    pub alignment: u64,
    pub data: Vec<u8>,
}

/// A tensor of a [`RawGguf`] file, with the innermost dimension first as in the file.
#[derive(Clone)]
pub struct RawTensor {
    pub name: Vec<u8>,
    pub dimensions: Option<u32>,
    pub sizes: Vec<u64>,
    pub ty: u32,
    pub offset: u64,
}

pub fn tensor(name: &str, sizes: &[u64], ty: u32, offset: u64) -> RawTensor {
    RawTensor { name: name.into(), dimensions: None, sizes: sizes.to_vec(), ty, offset }
}

/// A string in GGUF's encoding.
pub fn string(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat()
}

/// The head of an array.
pub fn array(ty: u32, count: u64, elements: &[u8]) -> Vec<u8> {
    [&ty.to_le_bytes()[..], &count.to_le_bytes(), elements].concat()
}

impl RawGguf {
    /// A valid file: two keys, and two F32 tensors of 4 × 2 and 8 numbers.
    pub fn valid() -> RawGguf {
        RawGguf {
            magic: *b"GGUF",
            version: 3,
            tensor_count: None,
            key_count: None,
            keys: vec![
                (b"general.architecture".to_vec(), STRING, string("deepseek2")),
                (b"deepseek2.block_count".to_vec(), U32, 2u32.to_le_bytes().to_vec()),
            ],
            tensors: vec![tensor("a", &[4, 2], 0, 0), tensor("b", &[8], 0, 32)],
            alignment: 32,
            data: (0..64).collect(),
        }
    }

    pub fn with_key(mut self, key: &str, ty: u32, value: &[u8]) -> RawGguf {
        self.keys.push((key.into(), ty, value.to_vec()));
        self
    }

    pub fn bytes(&self) -> Vec<u8> {
        let mut out = self.magic.to_vec();
        out.extend(self.version.to_le_bytes());
        out.extend(self.tensor_count.unwrap_or(self.tensors.len() as u64).to_le_bytes());
        out.extend(self.key_count.unwrap_or(self.keys.len() as u64).to_le_bytes());
        for (key, ty, value) in &self.keys {
            out.extend((key.len() as u64).to_le_bytes());
            out.extend(key);
            out.extend(ty.to_le_bytes());
            out.extend(value);
        }
        for t in &self.tensors {
            out.extend((t.name.len() as u64).to_le_bytes());
            out.extend(&t.name);
            out.extend(t.dimensions.unwrap_or(t.sizes.len() as u32).to_le_bytes());
            t.sizes.iter().for_each(|size| out.extend(size.to_le_bytes()));
            out.extend(t.ty.to_le_bytes());
            out.extend(t.offset.to_le_bytes());
        }
        while !(out.len() as u64).is_multiple_of(self.alignment) {
            out.push(0);
        }
        out.extend(&self.data);
        out
    }
}

/// The body of a packed file with two tensors: `a`, 2 × 4 of F32 in rows, and `b`, 2 matrices of 16
/// × 32 of Q4_0 in tiles.
pub fn packed_body() -> RawGguf {
    let words = |words: &[u64]| words.iter().flat_map(|n| n.to_le_bytes()).collect::<Vec<u8>>();
    let source = RawGguf { tensors: Vec::new(), data: Vec::new(), alignment: 1, ..RawGguf::valid() }.bytes();
    RawGguf {
        keys: vec![
            (b"general.architecture".to_vec(), STRING, string("latent-packed")),
            (b"general.alignment".to_vec(), U32, 4096u32.to_le_bytes().to_vec()),
        ],
        tensors: vec![tensor("a", &[32], 24, 0), tensor("b", &[576], 24, 4096)],
        alignment: 4096,
        data: vec![1; 4096 + 576],
        ..RawGguf::valid()
    }
    .with_key("latent.source.name", STRING, &string("model.gguf"))
    .with_key("latent.source.files", U64, &1u64.to_le_bytes())
    .with_key("latent.source.header_hash", U64, &7u64.to_le_bytes())
    .with_key("latent.source.sample_hash", U64, &8u64.to_le_bytes())
    .with_key("latent.source.gguf", ARRAY, &array(U8, source.len() as u64, &source))
    .with_key("latent.tensor.types", ARRAY, &array(STRING, 2, &[string("F32"), string("Q4_0")].concat()))
    .with_key("latent.tensor.dimensions", ARRAY, &array(U8, 2, &[2, 3]))
    .with_key("latent.tensor.shapes", ARRAY, &array(U64, 5, &words(&[2, 4, 2, 16, 32])))
    .with_key("latent.tensor.tile_rows", ARRAY, &array(U64, 2, &words(&[0, 16])))
}

/// A packed file with this body, all of which counts as the header.
pub fn packed(body: &[u8]) -> Vec<u8> {
    let hash = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
    let mut file = b"LATENTPK".to_vec();
    let lengths = [latent_formats::pack::VERSION.into(), 4096 + body.len() as u64, body.len() as u64];
    lengths.iter().for_each(|n| file.extend(n.to_le_bytes()));
    file.extend(body.iter().fold(0xcbf2_9ce4_8422_2325, hash).to_le_bytes());
    file.resize(4096, 0);
    file.extend(body);
    file
}

/// Opens bytes as an embedded file called `model.gguf`.
pub fn open(bytes: Vec<u8>) -> Result<Checkpoint, FormatError> {
    Checkpoint::from_static("model.gguf", bytes.leak())
}

/// Checks that bytes are rejected with a message that names the file and contains each of `parts`.
#[track_caller]
pub fn refused(bytes: Vec<u8>, parts: &[&str]) {
    says(open(bytes), parts);
}

/// Checks that the message of an error contains each of `parts`.
#[track_caller]
pub fn says<T>(result: Result<T, FormatError>, parts: &[&str]) {
    let Err(error) = result else { panic!("nothing was refused, expected {parts:?}") };
    let message = error.to_string();
    for part in parts {
        assert!(message.contains(part), "{message:?} lacks {part:?}");
    }
    assert!(message.lines().count() == 1, "{message:?} has several lines");
}

/// A safetensors file with this header and `data` bytes of data.
pub fn safetensors(header: &str, data: usize) -> Vec<u8> {
    let mut out = (header.len() as u64).to_le_bytes().to_vec();
    out.extend(header.as_bytes());
    out.extend((0..data).map(|i| i as u8));
    out
}
