//! Saving a sequence to a file and reading it back.
//!
//! ```text
//! magic "LATNTKV1" | fingerprint u64 | tokens u64 | streams u32 | cache type u32
//! per stream: layer u32, kind u32, width u32
//! token ids u32 × tokens
//! per stream: rows, tokens × width numbers of the cache type
//! checksum u64 (FNV-1a of everything before)
//! ```

use super::{CacheFull, CachePool, PAGE_ROWS, Sequence};
use base::CacheType;
use formats::{InputError, OutputError, OutputFile, input_file};
use graph::ir::StreamKind;
use std::io::{self, BufReader, Read, Write};
use std::path::{Path, PathBuf};

const MAGIC: &[u8; 8] = b"LATNTKV1";

/// Why a saved sequence cannot be written or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CacheFileError {
    /// The file cannot be written.
    #[error(transparent)]
    Output(#[from] OutputError),
    /// It is no plain file, or cannot be opened.
    #[error(transparent)]
    Input(#[from] InputError),
    /// The file cannot be read.
    #[error("{}: {error}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the operating system says.
        error: io::Error,
    },
    /// It is no saved sequence, or a damaged one.
    #[error("{}: not a saved Latent sequence: {problem}; save it again", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// It belongs to another model or another kind of cache.
    #[error("{}: saved with another {what}: {found}, but this session has {expected}", path.display())]
    Mismatch {
        /// The file.
        path: PathBuf,
        /// What differs.
        what: &'static str,
        /// What the file has.
        found: String,
        /// What the session has.
        expected: String,
    },
    /// It does not fit.
    #[error("{}: {full}", path.display())]
    Full {
        /// The file.
        path: PathBuf,
        /// How full the cache is.
        full: CacheFull,
    },
}

/// Counts a checksum of what passes through.
struct Checked<T> {
    inner: T,
    sum: u64,
}

impl<T> Checked<T> {
    fn new(inner: T) -> Checked<T> {
        Checked { inner, sum: 0xcbf2_9ce4_8422_2325 }
    }

    fn count(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.sum = (self.sum ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }
}

impl<W: Write> Checked<W> {
    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.count(bytes);
        self.inner.write_all(bytes)
    }
}

impl<R: Read> Checked<R> {
    fn take(&mut self, bytes: &mut [u8]) -> io::Result<()> {
        self.inner.read_exact(bytes)?;
        self.count(bytes);
        Ok(())
    }

    fn u32(&mut self) -> io::Result<u32> {
        let mut bytes = [0; 4];
        self.take(&mut bytes)?;
        Ok(u32::from_le_bytes(bytes))
    }

    fn u64(&mut self) -> io::Result<u64> {
        let mut bytes = [0; 8];
        self.take(&mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }
}

fn type_id(ty: CacheType) -> u32 {
    CacheType::ALL.iter().position(|&t| t == ty).unwrap_or(0) as u32
}

fn kind_id(kind: StreamKind) -> u32 {
    match kind {
        StreamKind::Latent => 0,
        StreamKind::Expanded => 1,
    }
}

impl CachePool {
    /// Writes `sequence` and its `tokens` to a file, which appears when it is whole.
    ///
    /// # Errors
    /// [`CacheFileError::Output`].
    pub fn save(
        &self,
        sequence: &Sequence,
        tokens: &[u32],
        fingerprint: u64,
        path: &Path,
    ) -> Result<(), CacheFileError> {
        let mut file = OutputFile::create(path)?;
        let written = self.write(sequence, tokens, fingerprint, &mut file);
        written.map_err(|error| file.failed(error))?;
        file.finish()?;
        Ok(())
    }

    fn write(
        &self,
        sequence: &Sequence,
        tokens: &[u32],
        fingerprint: u64,
        file: &mut OutputFile,
    ) -> io::Result<()> {
        let mut out = Checked::new(file);
        out.put(MAGIC)?;
        out.put(&fingerprint.to_le_bytes())?;
        out.put(&(sequence.len() as u64).to_le_bytes())?;
        out.put(&(self.streams.len() as u32).to_le_bytes())?;
        out.put(&type_id(self.ty).to_le_bytes())?;
        for (stream, _) in &self.streams {
            for number in [stream.layer as u32, kind_id(stream.kind), stream.width as u32] {
                out.put(&number.to_le_bytes())?;
            }
        }
        for row in 0..sequence.len() {
            out.put(&tokens.get(row).copied().unwrap_or(0).to_le_bytes())?;
        }
        for (_, memory) in &self.streams {
            for row in 0..sequence.len() {
                let page = sequence.pages()[row / PAGE_ROWS] as usize;
                out.put(memory.row(page * PAGE_ROWS + row % PAGE_ROWS))?;
            }
        }
        let sum = out.sum;
        out.inner.write_all(&sum.to_le_bytes())
    }

    /// Reads a sequence back, with its tokens.
    ///
    /// # Errors
    /// When the file cannot be read, is damaged, belongs to another model or cache type, or does not fit.
    pub fn restore(&mut self, path: &Path, fingerprint: u64) -> Result<(Sequence, Vec<u32>), CacheFileError> {
        let io = |error: io::Error| match error.kind() {
            io::ErrorKind::UnexpectedEof => {
                CacheFileError::Damaged { path: path.to_owned(), problem: "it ends too early".into() }
            }
            _ => CacheFileError::Io { path: path.to_owned(), error },
        };
        let (file, metadata) = input_file::open(path)?;
        let mut input = Checked::new(BufReader::new(file));
        let rows = self.read_header(&mut input, path, fingerprint, metadata.len())?;
        let mut tokens = Vec::with_capacity(rows);
        for _ in 0..rows {
            tokens.push(input.u32().map_err(io)?);
        }
        let mut sequence = Sequence::default();
        self.reserve(&mut sequence, rows)
            .map_err(|full| CacheFileError::Full { path: path.to_owned(), full })?;
        let result = self.read_rows(&mut input, &sequence, rows).map_err(io).and_then(|sum_agrees| {
            let problem = "its checksum is wrong".into();
            if sum_agrees { Ok(()) } else { Err(CacheFileError::Damaged { path: path.to_owned(), problem }) }
        });
        if let Err(error) = result {
            self.release(sequence);
            return Err(error);
        }
        self.advance(&mut sequence, rows);
        Ok((sequence, tokens))
    }

    /// Checks the header; returns the number of rows that follow.
    fn read_header<R: Read>(
        &self,
        input: &mut Checked<R>,
        path: &Path,
        fingerprint: u64,
        size: u64,
    ) -> Result<usize, CacheFileError> {
        let damaged = |problem: String| CacheFileError::Damaged { path: path.to_owned(), problem };
        let early = |_: io::Error| damaged("it ends too early".into());
        let mismatch = |what, found: String, expected: String| {
            Err(CacheFileError::Mismatch { path: path.to_owned(), what, found, expected })
        };
        let mut magic = [0; 8];
        input.take(&mut magic).map_err(early)?;
        if &magic != MAGIC {
            return Err(damaged("its first bytes are not LATNTKV1".into()));
        }
        let found = input.u64().map_err(early)?;
        if found != fingerprint {
            return mismatch("model", format!("fingerprint {found:016x}"), format!("{fingerprint:016x}"));
        }
        let rows = input.u64().map_err(early)?;
        let streams = input.u32().map_err(early)?;
        let ty = input.u32().map_err(early)?;
        if ty != type_id(self.ty) {
            let found =
                CacheType::ALL.get(ty as usize).map_or_else(|| format!("number {ty}"), |ty| ty.to_string());
            return mismatch("cache type", found, self.ty.to_string());
        }
        if streams as usize != self.streams.len() {
            return mismatch("number of cache streams", streams.to_string(), self.streams.len().to_string());
        }
        for (stream, _) in &self.streams {
            let expected = [stream.layer as u32, kind_id(stream.kind), stream.width as u32];
            for number in expected {
                let found = input.u32().map_err(early)?;
                if found != number {
                    return mismatch(
                        "cache stream",
                        format!("{found}"),
                        format!("layer, kind and width {expected:?}"),
                    );
                }
            }
        }
        let header = 8 + 8 + 8 + 4 + 4 + 12 * self.streams.len() as u64;
        let row = 4 + self.token_bytes() as u64;
        let expected = row.checked_mul(rows).and_then(|bytes| bytes.checked_add(header + 8));
        if expected != Some(size) {
            return Err(damaged(format!(
                "it says {rows} tokens, which does not agree with its {size} bytes"
            )));
        }
        usize::try_from(rows).map_err(|_| damaged(format!("it says {rows} tokens")))
    }

    /// Reads the rows of every stream; whether the checksum agrees.
    fn read_rows<R: Read>(
        &mut self,
        input: &mut Checked<R>,
        sequence: &Sequence,
        rows: usize,
    ) -> io::Result<bool> {
        for (_, memory) in &mut self.streams {
            for row in 0..rows {
                let page = sequence.pages()[row / PAGE_ROWS] as usize;
                input.take(memory.row_mut(page * PAGE_ROWS + row % PAGE_ROWS))?;
            }
        }
        let sum = input.sum;
        Ok(input.u64()? == sum)
    }
}
