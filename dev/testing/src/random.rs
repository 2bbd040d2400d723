//! Random numbers and rows of random blocks, the same on every machine.

use latent_types::TensorType;

/// SplitMix64 (Steele, Lea and Flood 2014).
pub(crate) struct Random(u64);

impl Random {
    /// A generator for one tensor, which does not depend on the order in which tensors are written.
    pub(crate) fn of_tensor(seed: u64, name: &str) -> Random {
        let mix = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        Random(name.bytes().fold(0xcbf2_9ce4_8422_2325 ^ seed, mix))
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number near the normal distribution: the sum of four uniform ones, scaled to unit variance.
    pub(crate) fn normal(&mut self) -> f32 {
        let bits = self.next();
        let part = |i: u32| f32::from((bits >> (16 * i)) as u16) / 65536.0 - 0.5;
        (part(0) + part(1) + part(2) + part(3)) * 3f32.sqrt()
    }
}

/// Numbers of a tensor: how they are spread.
#[derive(Clone, Copy)]
pub(crate) struct NumberSpread {
    pub(crate) mean: f32,
    pub(crate) deviation: f32,
}

impl NumberSpread {
    /// Norm weights near 1, router biases small, matrices with 1/√inputs, embeddings of unit size.
    pub(crate) fn of(name: &str, shape: &[usize]) -> NumberSpread {
        let inputs = shape.last().copied().unwrap_or(1) as f32;
        if name.ends_with("ssm_a") || name.ends_with("A_log") {
            // rates of decay near 1, or their logarithms
            NumberSpread { mean: if name.ends_with("ssm_a") { 1.0 } else { 0.0 }, deviation: 0.2 }
        } else if name.ends_with("ssm_dt.bias") || name.ends_with("dt_bias") {
            // states that fade slowly, as those of trained models
            NumberSpread { mean: -3.0, deviation: 1.0 }
        } else if name.contains("norm") {
            NumberSpread { mean: 1.0, deviation: 0.1 }
        } else if shape.len() == 1 {
            NumberSpread { mean: 0.0, deviation: 0.02 }
        } else if name.contains("embd") || name.contains("embed") {
            NumberSpread { mean: 0.0, deviation: 1.0 }
        } else {
            NumberSpread { mean: 0.0, deviation: 1.0 / inputs.sqrt() }
        }
    }
}

/// Some encoded rows of `cols` numbers.
pub(crate) fn rows(
    random: &mut Random,
    ty: TensorType,
    rows: usize,
    cols: usize,
    spread: NumberSpread,
) -> Result<Vec<u8>, latent_quant::QuantError> {
    let numbers: Vec<f32> =
        (0..rows * cols).map(|_| spread.mean + spread.deviation * random.normal()).collect();
    let mut bytes = vec![0; ty.row_bytes(cols).unwrap_or(0) * rows];
    latent_quant::encode(ty, &numbers, &mut bytes)?;
    Ok(bytes)
}
