//! Random numbers and rows of random blocks that are the same on every machine.

use latent_types::TensorType;

/// SplitMix64 (Steele, Lea and Flood 2014).
pub(crate) struct Random(u64);

impl Random {
    /// A generator for one tensor, which does not depend on the order in which tensors are written.
    pub(crate) fn of_tensor(seed: u64, name: &str) -> Random {
        // FNV-1a over the name.
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

    /// An approximately normal number of unit variance.
    pub(crate) fn normal(&mut self) -> f32 {
        let bits = self.next();
        let part = |i: u32| f32::from((bits >> (16 * i)) as u16) / 65536.0 - 0.5;
        // Each uniform part has the variance 1/12, so the sum of four has 1/3. Sums and products
        // are the same on every machine; the logarithm and sine of a Box-Muller transform may not
        // be.
        (part(0) + part(1) + part(2) + part(3)) * 3f32.sqrt()
    }
}

/// Mean and standard deviation of a tensor's numbers.
#[derive(Clone, Copy)]
pub(crate) struct NumberSpread {
    pub(crate) mean: f32,
    pub(crate) deviation: f32,
}

impl NumberSpread {
    /// Norm weights are near 1, router biases are small, matrices have the deviation 1/√inputs and
    /// embeddings have unit deviation.
    pub(crate) fn of(name: &str, shape: &[usize]) -> NumberSpread {
        let inputs = shape.last().copied().unwrap_or(1) as f32;
        if name.ends_with("ssm_a") || name.ends_with("A_log") {
            // Rates of decay near 1 (GGUF), or their logarithms (safetensors).
            NumberSpread { mean: if name.ends_with("ssm_a") { 1.0 } else { 0.0 }, deviation: 0.2 }
        } else if name.ends_with("ssm_dt.bias") || name.ends_with("dt_bias") {
            // softplus(-3) is about 0.05: recurrent states decay slowly, like those of trained
            // models.
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

/// Random rows of `cols` numbers, encoded in `ty`.
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
