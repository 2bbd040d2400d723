//! Top-k search for logits on the device, so that the host need not read whole rows of the
//! vocabulary.

use crate::buffers::{Buffer, whole};
use crate::commands::{Commands, ShaderBinding};
use crate::device::Device;
use crate::error::GpuError;
use crate::pipeline::ShaderPipeline;
use crate::shader::Shader;
use latent_backend::{MAX_TOP_LOGITS, TokenLogit};
use latent_graph::LM_HEAD_ROWS;
use std::ops::Range;
use std::sync::Arc;

const TEXT: &str = include_str!("largest/largest.wgsl");
const LOGITS: &str = "
fn token_at(at: u32) -> u32 { return at % params.items; }
fn bits_at(at: u32) -> u32 { return source[at]; }
";
const PAIRS: &str = "
fn token_at(at: u32) -> u32 { return source[2u * at]; }
fn bits_at(at: u32) -> u32 { return source[2u * at + 1u]; }
";

/// Logits per workgroup.
const SLICE: usize = 4096;

/// Bytes of a (token, logit) pair.
const PAIR: u64 = 8;

/// The token of an unused pair: the row has fewer logits than requested.
const EMPTY_PAIR: u32 = u32::MAX;

/// Finds the largest logits, in two passes if a row has several slices.
pub(crate) struct TopLogitsSearch {
    of_logits: Arc<ShaderPipeline>,
    of_pairs: Arc<ShaderPipeline>,
    vocab: usize,
    /// Results of the first pass: the largest logits of each slice.
    of_slices: Buffer,
    /// The largest logits of each row.
    found: Buffer,
}

fn slices(vocab: usize) -> usize {
    vocab.div_ceil(SLICE)
}

/// Bytes of the results per slice, and of the results per row.
fn sizes(vocab: usize) -> [u64; 2] {
    let rows = (LM_HEAD_ROWS * MAX_TOP_LOGITS) as u64 * PAIR;
    // With one slice, the first pass writes the results, and its own buffer stays empty.
    [if slices(vocab) > 1 { slices(vocab) as u64 * rows } else { 0 }, rows]
}

/// The shaders of the first pass (over logits) and of the second (over pairs).
pub(crate) fn shaders() -> [Shader; 2] {
    [Shader::new("largest_logits", TEXT).after(LOGITS), Shader::new("largest_pairs", TEXT).after(PAIRS)]
}

/// Device memory of a [`TopLogitsSearch`].
pub(crate) fn bytes(vocab: usize) -> u64 {
    sizes(vocab).into_iter().map(whole).sum()
}

impl TopLogitsSearch {
    /// Creates a search in rows of `vocab` logits.
    pub(crate) fn new(device: &Arc<Device>, vocab: usize) -> Result<TopLogitsSearch, GpuError> {
        let [of_slices, found] = sizes(vocab);
        let [of_logits, of_pairs] = shaders();
        Ok(TopLogitsSearch {
            of_logits: device.pipeline(&of_logits)?,
            of_pairs: device.pipeline(&of_pairs)?,
            vocab,
            of_slices: Buffer::new(device, "the largest logits", of_slices)?,
            found: Buffer::new(device, "the largest logits", found)?,
        })
    }

    /// Finds the `keep` largest logits of each row.
    pub(crate) fn record(&self, commands: &mut Commands, logits: &Buffer, rows: usize, keep: usize) {
        let (slices, words) = (slices(self.vocab), |sizes: [usize; 3]| sizes.map(|size| size as u32));
        let groups = |slices: usize| [slices as u32, rows as u32, 1];
        // Longer rows are cut into slices. A second pass searches the results of the slices.
        let into = if slices > 1 { &self.of_slices } else { &self.found };
        let bindings = [logits, into].map(ShaderBinding::from);
        let params = words([self.vocab, SLICE, keep]);
        commands.call(&self.of_logits, bindings, &params, groups(slices));
        if slices > 1 {
            let bindings = [&self.of_slices, &self.found].map(ShaderBinding::from);
            let params = words([slices * keep, slices * keep, keep]);
            commands.call(&self.of_pairs, bindings, &params, groups(1));
        }
    }

    /// The location of a row's results.
    pub(crate) fn of_row(&self, row: usize, keep: usize) -> (&Buffer, Range<u64>) {
        let bytes = keep as u64 * PAIR;
        (&self.found, row as u64 * bytes..(row as u64 + 1) * bytes)
    }
}

/// Decodes the results of a row, in ascending order of tokens.
pub(crate) fn pairs(bytes: &[u8]) -> Vec<TokenLogit> {
    let words = |bytes: &[u8; 8]| {
        let [token, bits] =
            [&bytes[..4], &bytes[4..]].map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]));
        TokenLogit { token, logit: f32::from_bits(bits) }
    };
    let mut found: Vec<TokenLogit> = bytes.as_chunks().0.iter().map(words).collect();
    found.retain(|pair| pair.token != EMPTY_PAIR);
    // `Logits::Largest` promises ascending tokens.
    found.sort_unstable_by_key(|pair| pair.token);
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buffers::float_bytes;

    /// Computes the result on the host.
    fn expected(row: &[f32], keep: usize) -> Vec<(u32, u32)> {
        let mut all: Vec<(u32, f32)> = (0..).zip(row.iter().copied()).collect();
        // This removes NaN too, since comparisons with it are false.
        all.retain(|(_, logit)| *logit > f32::NEG_INFINITY);
        all.sort_by(|a, b| b.1.partial_cmp(&a.1).unwrap().then(a.0.cmp(&b.0)));
        all.truncate(keep);
        all.sort_by_key(|(token, _)| *token);
        all.into_iter().map(|(token, logit)| (token, logit.to_bits())).collect()
    }

    #[test]
    fn the_device_finds_the_same_logits_as_the_host() {
        let Some(device) = crate::testing::device() else { return };
        let mut seed = 7u32;
        let mut random = || {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            seed >> 8
        };
        // One slice, several slices, and a short last slice.
        for vocab in [100, SLICE, 3 * SLICE, 5 * SLICE + 77] {
            let largest = TopLogitsSearch::new(&device, vocab).unwrap();
            let mut any: Vec<f32> = (0..vocab).map(|_| random() as f32 / 1e6 - 8.0).collect();
            any[vocab / 2] = f32::NAN;
            any[vocab / 3] = f32::INFINITY;
            // Many equal logits, with zeros of both signs.
            let ties: Vec<f32> =
                (0..vocab).map(|_| [-1.0, -0.0, 0.0, 0.5][(random() % 4) as usize]).collect();
            let equal = vec![-3.25; vocab];
            let mut few = vec![f32::NEG_INFINITY; vocab];
            (few[vocab - 1], few[3], few[vocab / 2]) = (-1e30, 2.0, f32::MIN_POSITIVE / 4.0);
            let none = vec![f32::NAN; vocab];
            let rows = [any, ties, equal, few, none];
            let logits = Buffer::with(&device, "logits", &float_bytes(&rows.concat())).unwrap();
            for keep in [1, 2, 41, MAX_TOP_LOGITS] {
                let mut commands = Commands::new(&device);
                largest.record(&mut commands, &logits, rows.len(), keep);
                commands.submit(&[]).unwrap();
                for (number, row) in rows.iter().enumerate() {
                    let (buffer, range) = largest.of_row(number, keep);
                    let found = pairs(&buffer.read("the largest", range).unwrap());
                    let found: Vec<(u32, u32)> =
                        found.into_iter().map(|pair| (pair.token, pair.logit.to_bits())).collect();
                    assert_eq!(found, expected(row, keep), "row {number} of {vocab} logits, {keep} wanted");
                }
            }
        }
    }
}
