//! Decoding against the Python package gguf, bit by bit, and encoding where its rounding leaves no
//! choice.

use latent_types::TensorType;

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, n: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(n);
        self.0 = rest;
        taken
    }

    fn number(&mut self) -> usize {
        u32::from_le_bytes(self.take(4).try_into().unwrap()) as usize
    }
}

#[test]
fn codecs_agree_with_the_gguf_package_to_the_bit() {
    let mut reader = Reader(include_bytes!("../golden/golden.bin"));
    let mut formats = 0;
    while !reader.0.is_empty() {
        let len = reader.number();
        let name = std::str::from_utf8(reader.take(len)).unwrap();
        let (encodes, name) = name.strip_prefix("encode:").map_or((false, name), |rest| (true, rest));
        let ty = TensorType::from_name(name).unwrap();
        let blocks = reader.number();
        let bytes = reader.take(blocks * ty.block_bytes());
        let expected: Vec<f32> = reader
            .take(blocks * ty.block_len() * 4)
            .chunks_exact(4)
            .map(|b| f32::from_le_bytes(b.try_into().unwrap()))
            .collect();
        if encodes {
            let mut found = vec![0; bytes.len()];
            latent_quant::encode(ty, &expected, &mut found).unwrap();
            assert_eq!(found, bytes, "{ty}");
        } else {
            let mut found = vec![0.0; expected.len()];
            latent_quant::decode(ty, bytes, &mut found).unwrap();
            for (i, (a, b)) in found.iter().zip(&expected).enumerate() {
                let same = a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan());
                assert!(same, "{ty} block {} number {i}: {a:?} {b:?}", i / ty.block_len());
            }
        }
        formats += 1;
    }
    assert_eq!(formats, 25 + 1 + 5 + 8);
}
