//! llama.cpp's file of log-probabilities: `llama-perplexity` writes it with `--kl-divergence-base`
//! and reads it with `--kl-divergence`.
//!
//! Little-endian: `_logits_`; tokens per chunk, vocabulary size and number of chunks, each u32; all
//! tokens, each u32. Then a record per scored position: scale and minimum, each f32, and a u16 per
//! token of the vocabulary, padded to an even count. A log-probability is `scale · u16 + minimum`.
//! Those more than 16 below the largest are raised to that.

use crate::chunks::TokenChunks;
use crate::error::EvalError;
use crate::log_softmax::LogSoftmax;
use latent_formats::{InputError, OutputFile, input_file};
use std::fs::File;
use std::io::{BufReader, Read, Write};
use std::path::{Path, PathBuf};

const MAGIC: &[u8; 8] = b"_logits_";

/// Bytes before the tokens.
const HEADER: u64 = 8 + 3 * 4;

/// Log-probabilities further below the largest are clamped, as in llama.cpp.
const RANGE: f32 = 16.0;

/// Bytes per position: scale, minimum, and two bytes per token.
fn record_bytes(vocab: usize) -> usize {
    // llama.cpp stores a record as an even number of u16 in total.
    8 + 2 * vocab.next_multiple_of(2)
}

/// A logits file that is being written. If dropped before it is finished, no file remains.
#[derive(Debug)]
pub struct LogitsWriter {
    out: OutputFile,
    record: Vec<u8>,
}

impl LogitsWriter {
    /// Creates the file at `path` for a model of `vocab` tokens.
    pub fn create(path: &Path, chunks: &TokenChunks, vocab: usize) -> Result<LogitsWriter, EvalError> {
        // Only the owner can read the file, because its tokens are the evaluated text.
        let mut out = OutputFile::create_private(path)?;
        let mut header = MAGIC.to_vec();
        for number in [chunks.context(), vocab, chunks.count()] {
            let number = u32::try_from(number).map_err(|_| EvalError::LogitsFile {
                path: path.to_owned(),
                problem: format!("{number} does not fit into the 32 bits of this file format"),
            })?;
            header.extend(number.to_le_bytes());
        }
        chunks.tokens().iter().for_each(|token| header.extend(token.to_le_bytes()));
        out.write_all(&header).map_err(|error| out.failed(error))?;
        Ok(LogitsWriter { out, record: Vec::with_capacity(record_bytes(vocab)) })
    }

    /// Adds the next position.
    pub fn add(&mut self, softmax: &LogSoftmax, logits: &[f32]) -> Result<(), EvalError> {
        let LogSoftmax { max, ln_sum, .. } = *softmax;
        let min = logits.iter().copied().fold(f32::INFINITY, f32::min).max(max - RANGE);
        // The range maps to all 16 bits: `max` becomes 65535.
        let scale = (max - min) / 65535.0;
        self.record.clear();
        self.record.extend(scale.to_le_bytes());
        self.record.extend((min - max - ln_sum as f32).to_le_bytes());
        // With equal logits the scale is 0, and the quotient would be infinite.
        let inverse = if scale > 0.0 { 1.0 / scale } else { 0.0 };
        for logit in logits {
            // Rounded to nearest even, as by `nearest_int` in llama.cpp.
            let quant = if *logit > min { (inverse * (logit - min)).round_ties_even() as u16 } else { 0 };
            self.record.extend(quant.to_le_bytes());
        }
        self.record.resize(record_bytes(logits.len()), 0);
        Ok(self.out.write_all(&self.record).map_err(|error| self.out.failed(error))?)
    }

    /// Renames the complete file to its target.
    pub fn finish(self) -> Result<(), EvalError> {
        self.out.finish()?;
        Ok(())
    }
}

/// A reader of a logits file.
#[derive(Debug)]
pub struct LogitsReader {
    path: PathBuf,
    file: BufReader<File>,
    vocab: usize,
    chunks: TokenChunks,
    record: Vec<u8>,
}

/// Log-probabilities of one position.
#[derive(Clone, Copy, Debug)]
pub struct BaseRow<'a> {
    scale: f32,
    minimum: f32,
    quants: &'a [u8],
}

impl BaseRow<'_> {
    /// ln p of each token.
    pub fn ln_p(&self) -> impl Iterator<Item = f32> + '_ {
        let quants = self.quants.chunks_exact(2).map(|bytes| u16::from_le_bytes([bytes[0], bytes[1]]));
        quants.map(|quant| self.scale * f32::from(quant) + self.minimum)
    }
}

impl LogitsReader {
    /// Opens a file for a model of `vocab` tokens and reads its tokens.
    ///
    /// # Errors
    /// Anything but a plain file; a file of another format or vocabulary, or without all of its
    /// positions.
    pub fn open(path: &Path, vocab: usize) -> Result<LogitsReader, EvalError> {
        let (file, metadata) = input_file::open(path)?;
        let wrong = |problem: String| EvalError::LogitsFile { path: path.to_owned(), problem };
        let io = |error| InputError::Io { path: path.to_owned(), error };
        let bytes = metadata.len();
        // A record of a vocabulary of 128k tokens has 256 KiB, more than the default buffer.
        let mut file = BufReader::with_capacity(1 << 20, file);
        let mut header = [0; HEADER as usize];
        if bytes < HEADER {
            return Err(wrong(format!("{bytes} bytes are too few for a logits file")));
        }
        file.read_exact(&mut header).map_err(io)?;
        if &header[..8] != MAGIC {
            return Err(wrong(
                "it does not begin with _logits_: pass a logits file of llama-perplexity or `latent eval`"
                    .into(),
            ));
        }
        let number = |at: usize| {
            u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]) as usize
        };
        let (context, theirs, count) = (number(8), number(12), number(16));
        if theirs != vocab {
            return Err(EvalError::Vocabulary { path: path.to_owned(), theirs, ours: vocab });
        }
        if context < 4 || count == 0 {
            return Err(wrong(format!("{count} chunks of {context} tokens have nothing to compare")));
        }
        let tokens = count as u64 * context as u64;
        // The scored rows of a chunk, as in `TokenChunks::scored`.
        let records = count as u64 * (context - 1 - context / 2) as u64;
        // u128: three numbers of 32 bits from the file can overflow 64 bits. The size is checked
        // before any allocation that depends on them.
        let expected =
            u128::from(HEADER) + 4 * u128::from(tokens) + u128::from(records) * record_bytes(vocab) as u128;
        if u128::from(bytes) != expected {
            return Err(wrong(format!(
                "{count} chunks of {context} tokens take {expected} bytes, but it has {bytes}: it is damaged \
                 or incomplete"
            )));
        }
        let tokens = read_tokens(&mut file, tokens as usize).map_err(io)?;
        // Refused before the run, by an error that names the file.
        if let Some(token) = tokens.iter().find(|token| **token as usize >= vocab) {
            return Err(wrong(format!("token {token} is out of range: the vocabulary has {vocab}")));
        }
        let chunks = TokenChunks::cut(tokens, context, None)?;
        Ok(LogitsReader { path: path.to_owned(), file, vocab, chunks, record: vec![0; record_bytes(vocab)] })
    }

    /// The text of the file.
    pub fn chunks(&self) -> &TokenChunks {
        &self.chunks
    }

    /// Reads the next position, in the order of [`run_chunks`](crate::run_chunks).
    pub fn read(&mut self) -> Result<BaseRow<'_>, EvalError> {
        let io = |error| InputError::Io { path: self.path.clone(), error };
        self.file.read_exact(&mut self.record).map_err(io)?;
        let float = |at: usize| f32::from_le_bytes([0, 1, 2, 3].map(|i| self.record[at + i]));
        let (scale, minimum) = (float(0), float(4));
        // NaN would turn every mean of the report into NaN without naming the file.
        if !(scale.is_finite() && minimum.is_finite()) {
            let problem = "it has scales that are NaN or infinite".into();
            return Err(EvalError::LogitsFile { path: self.path.clone(), problem });
        }
        Ok(BaseRow { scale, minimum, quants: &self.record[8..8 + 2 * self.vocab] })
    }
}

/// Reads `count` tokens. The caller has checked that the file has their bytes.
fn read_tokens(file: &mut impl Read, count: usize) -> std::io::Result<Vec<u32>> {
    let mut bytes = vec![0; 4 * count];
    file.read_exact(&mut bytes)?;
    Ok(bytes.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(vocab: usize) -> (tempfile::TempDir, PathBuf, Vec<Vec<f32>>) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("base");
        let chunks = TokenChunks::cut((0..16).map(|i| i % vocab as u32).collect(), 8, None).unwrap();
        let logit = |p: usize, i: usize| ((p * vocab + i) as f32 * 1.7).sin() * 5.0;
        let rows: Vec<Vec<f32>> = (0..6).map(|p| (0..vocab).map(|i| logit(p, i)).collect()).collect();
        let mut writer = LogitsWriter::create(&path, &chunks, vocab).unwrap();
        rows.iter().for_each(|row| writer.add(&LogSoftmax::of(row).unwrap(), row).unwrap());
        writer.finish().unwrap();
        (folder, path, rows)
    }

    #[test]
    fn log_probabilities_come_back_within_half_a_step() {
        for vocab in [7, 8] {
            let (_folder, path, rows) = written(vocab);
            let mut reader = LogitsReader::open(&path, vocab).unwrap();
            assert_eq!((reader.chunks().count(), reader.chunks().context()), (2, 8));
            for row in &rows {
                let sum: f64 = row.iter().map(|l| f64::from(*l).exp()).sum();
                let found: Vec<f32> = reader.read().unwrap().ln_p().collect();
                assert_eq!(found.len(), vocab);
                for (logit, ln_p) in row.iter().zip(found) {
                    assert!((f64::from(ln_p) - (f64::from(*logit) - sum.ln())).abs() < 1e-4);
                }
            }
            assert!(reader.read().is_err());
        }
    }

    #[test]
    fn other_files_are_refused() {
        let (_folder, path, _) = written(7);
        let whole = std::fs::read(&path).unwrap();
        let refused = |bytes: &[u8], vocab: usize| {
            std::fs::write(&path, bytes).unwrap();
            LogitsReader::open(&path, vocab).unwrap_err().to_string()
        };
        assert!(refused(&whole, 9).contains("7 tokens, but this one has 9"));
        assert!(refused(&whole[..whole.len() - 1], 7).contains("damaged"));
        assert!(refused(b"", 7).contains("too few"));
        assert!(refused(b"a text that is long enough to be one", 7).contains("_logits_"));
        let with = |at: usize, number: u32| {
            let mut bytes = whole.clone();
            bytes[at..at + 4].copy_from_slice(&number.to_le_bytes());
            bytes
        };
        assert!(refused(&with(8, 0), 7).contains("0 tokens"));
        assert!(refused(&with(16, u32::MAX), 7).contains("damaged"));
        assert!(refused(&with(24, 7), 7).contains("token 7"));
        std::fs::write(&path, with(20 + 64, f32::NAN.to_bits())).unwrap();
        assert!(LogitsReader::open(&path, 7).unwrap().read().unwrap_err().to_string().contains("NaN"));
    }
}
