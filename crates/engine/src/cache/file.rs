//! Saving a sequence to a file and reading it back.
//!
//! ```text
//! magic "LATNTKV1" | fingerprint u64 | tokens u64 | streams u32 | cache type u32
//! per stream: layer u32, kind u32, width u32
//! token ids u32 × tokens
//! per stream: rows, tokens × width numbers of the cache type
//! checksum u64 (FNV-1a of everything before)
//! ```
//!
//! An attachment may follow: bytes that mean nothing to the cache, such as the conversation that the tokens were rendered from. Files without one
//! end after the checksum.
//!
//! ```text
//! magic "LATNTAT1" | length u64 | bytes | checksum u64 (FNV-1a of the attachment from its magic on)
//! ```

use super::{CacheFull, KvCache, KvError, Sequence};
use latent_backend::{BackendError, slot};
use latent_formats::{InputError, OutputError, OutputFile, input_file};
use latent_graph::ir::KvLayerKind;
use latent_types::CacheType;
use std::io::{self, BufReader, Read, Write};
use std::path::{Path, PathBuf};

const MAGIC: &[u8; 8] = b"LATNTKV1";
const ATTACHMENT: &[u8; 8] = b"LATNTAT1";

/// Bytes of an attachment without its content: magic, length, checksum.
const ATTACHMENT_FRAME: u64 = 24;

/// Largest attachment, in bytes.
pub const MAX_ATTACHMENT: usize = 64 << 20;

/// Start value of FNV-1a.
const FNV_START: u64 = 0xcbf2_9ce4_8422_2325;

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
    /// The backend's memory failed.
    #[error(transparent)]
    Backend(BackendError),
    /// It does not fit.
    #[error("{}: {full}; start with --ctx-size {} or more", path.display(), full.rows)]
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
        Checked { inner, sum: FNV_START }
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

/// A sequence with its tokens and its attachment.
pub type Restored = (Sequence, Vec<u32>, Option<Vec<u8>>);

fn write_attachment(out: &mut impl Write, bytes: &[u8]) -> io::Result<()> {
    let mut out = Checked::new(out);
    out.put(ATTACHMENT)?;
    out.put(&(bytes.len() as u64).to_le_bytes())?;
    out.put(bytes)?;
    let sum = out.sum;
    out.inner.write_all(&sum.to_le_bytes())
}

/// The content of an attachment of `size` bytes in all, at most [`MAX_ATTACHMENT`] and its frame; none where it is damaged.
fn read_attachment<R: Read>(input: &mut Checked<R>, size: u64) -> io::Result<Option<Vec<u8>>> {
    input.sum = FNV_START;
    let mut magic = [0; 8];
    input.take(&mut magic)?;
    let content = size - ATTACHMENT_FRAME;
    if &magic != ATTACHMENT || input.u64()? != content {
        return Ok(None);
    }
    let mut bytes = vec![0; content as usize];
    input.take(&mut bytes)?;
    let sum = input.sum;
    Ok((input.u64()? == sum).then_some(bytes))
}

fn type_id(ty: CacheType) -> u32 {
    CacheType::ALL.iter().position(|&t| t == ty).unwrap_or(0) as u32
}

fn kind_id(kind: KvLayerKind) -> u32 {
    match kind {
        KvLayerKind::Latent => 0,
        KvLayerKind::Expanded => 1,
    }
}

impl KvCache {
    /// Writes `sequence` and its `tokens` to a file, which appears when it is whole.
    ///
    /// # Errors
    /// [`CacheFileError::Output`].
    pub(crate) fn save(
        &self,
        sequence: &Sequence,
        tokens: &[u32],
        fingerprint: u64,
        path: &Path,
    ) -> Result<(), CacheFileError> {
        self.save_with(sequence, tokens, fingerprint, None, path)
    }

    /// The same with an attachment of at most [`MAX_ATTACHMENT`] bytes.
    ///
    /// # Errors
    /// [`CacheFileError::Output`]; [`CacheFileError::Io`] for an attachment that is too large.
    pub(crate) fn save_with(
        &self,
        sequence: &Sequence,
        tokens: &[u32],
        fingerprint: u64,
        attachment: Option<&[u8]>,
        path: &Path,
    ) -> Result<(), CacheFileError> {
        if let Some(bytes) = attachment.filter(|bytes| bytes.len() > MAX_ATTACHMENT) {
            let problem = format!("the attachment has {} bytes, more than {MAX_ATTACHMENT}", bytes.len());
            let error = io::Error::new(io::ErrorKind::InvalidInput, problem);
            return Err(CacheFileError::Io { path: path.to_owned(), error });
        }
        let mut file = OutputFile::create(path)?;
        let written = self.write(sequence, tokens, fingerprint, attachment, &mut file);
        written.map_err(|error| file.failed(error))?;
        file.finish()?;
        Ok(())
    }

    fn write(
        &self,
        sequence: &Sequence,
        tokens: &[u32],
        fingerprint: u64,
        attachment: Option<&[u8]>,
        file: &mut OutputFile,
    ) -> io::Result<()> {
        let layout = self.layout();
        let mut out = Checked::new(file);
        out.put(MAGIC)?;
        out.put(&fingerprint.to_le_bytes())?;
        out.put(&(sequence.len() as u64).to_le_bytes())?;
        out.put(&(self.layout().layers.len() as u32).to_le_bytes())?;
        out.put(&type_id(self.layout().cache_type).to_le_bytes())?;
        for kv_layer in &self.layout().layers {
            for number in [kv_layer.layer as u32, kind_id(kv_layer.kind), kv_layer.width as u32] {
                out.put(&number.to_le_bytes())?;
            }
        }
        for row in 0..sequence.len() {
            out.put(&tokens.get(row).copied().unwrap_or(0).to_le_bytes())?;
        }
        let mut row = Vec::new();
        for layer in 0..layout.layers.len() {
            row.resize(layout.row(layer).bytes(), 0);
            for position in 0..sequence.len() {
                let slot = slot(sequence.block_table(), position);
                self.store.read_row(layer, slot, &mut row).map_err(io::Error::other)?;
                out.put(&row)?;
            }
        }
        let sum = out.sum;
        out.inner.write_all(&sum.to_le_bytes())?;
        attachment.map_or(Ok(()), |bytes| write_attachment(&mut out.inner, bytes))
    }

    /// Reads a sequence back, with its tokens.
    ///
    /// # Errors
    /// When the file cannot be read, is damaged, belongs to another model or cache type, or does not fit.
    pub(crate) fn restore(
        &mut self,
        path: &Path,
        fingerprint: u64,
    ) -> Result<(Sequence, Vec<u32>), CacheFileError> {
        let (sequence, tokens, _) = self.restore_with(path, fingerprint)?;
        Ok((sequence, tokens))
    }

    /// Reads a sequence back, with its tokens and the attachment, if it has one.
    ///
    /// # Errors
    /// As for [`restore`](Self::restore).
    pub(crate) fn restore_with(&mut self, path: &Path, fingerprint: u64) -> Result<Restored, CacheFileError> {
        let io = |error: io::Error| match error.kind() {
            io::ErrorKind::UnexpectedEof => {
                CacheFileError::Damaged { path: path.to_owned(), problem: "it ends too early".into() }
            }
            _ => CacheFileError::Io { path: path.to_owned(), error },
        };
        let (file, metadata) = input_file::open(path)?;
        let mut input = Checked::new(BufReader::new(file));
        let (rows, trailing) = self.read_header(&mut input, path, fingerprint, metadata.len())?;
        let mut tokens = Vec::with_capacity(rows);
        for _ in 0..rows {
            tokens.push(input.u32().map_err(io)?);
        }
        let mut sequence = Sequence::default();
        self.reserve(&mut sequence, rows).map_err(|error| match error {
            KvError::Full(full) => CacheFileError::Full { path: path.to_owned(), full },
            KvError::Backend(error) => CacheFileError::Backend(error),
        })?;
        let damaged =
            |problem: &str| CacheFileError::Damaged { path: path.to_owned(), problem: problem.into() };
        let result = self.read_rows(&mut input, &sequence, rows).map_err(io).and_then(|sum_agrees| {
            if !sum_agrees {
                return Err(damaged("its checksum is wrong"));
            }
            if trailing == 0 { Ok(None) } else { read_attachment(&mut input, trailing).map_err(io) }
        });
        let attachment = match result {
            Ok(attachment) => attachment,
            Err(error) => {
                self.release(sequence);
                return Err(error);
            }
        };
        if trailing > 0 && attachment.is_none() {
            self.release(sequence);
            return Err(damaged("what follows the cache is damaged: its length or checksum is wrong"));
        }
        self.advance(&mut sequence, rows);
        Ok((sequence, tokens, attachment))
    }

    /// Checks the header; returns the number of rows that follow, and the bytes of the file after the cache.
    fn read_header<R: Read>(
        &self,
        input: &mut Checked<R>,
        path: &Path,
        fingerprint: u64,
        size: u64,
    ) -> Result<(usize, u64), CacheFileError> {
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
        let kv_layers = input.u32().map_err(early)?;
        let ty = input.u32().map_err(early)?;
        if ty != type_id(self.layout().cache_type) {
            let found =
                CacheType::ALL.get(ty as usize).map_or_else(|| format!("number {ty}"), |ty| ty.to_string());
            return mismatch("cache type", found, self.layout().cache_type.to_string());
        }
        if kv_layers as usize != self.layout().layers.len() {
            return mismatch(
                "number of cache streams",
                kv_layers.to_string(),
                self.layout().layers.len().to_string(),
            );
        }
        for kv_layer in &self.layout().layers {
            let expected = [kv_layer.layer as u32, kind_id(kv_layer.kind), kv_layer.width as u32];
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
        let header = 8 + 8 + 8 + 4 + 4 + 12 * self.layout().layers.len() as u64;
        let row = 4 + self.token_bytes() as u64;
        let expected = row.checked_mul(rows).and_then(|bytes| bytes.checked_add(header + 8));
        let longest = ATTACHMENT_FRAME + MAX_ATTACHMENT as u64;
        let trailing = expected
            .and_then(|expected| size.checked_sub(expected))
            .filter(|trailing| *trailing == 0 || (ATTACHMENT_FRAME..=longest).contains(trailing));
        let Some(trailing) = trailing else {
            return Err(damaged(format!(
                "it says {rows} tokens, which does not agree with its {size} bytes"
            )));
        };
        let rows = usize::try_from(rows).map_err(|_| damaged(format!("it says {rows} tokens")))?;
        Ok((rows, trailing))
    }

    /// Reads the rows of every stream; whether the checksum agrees.
    fn read_rows<R: Read>(
        &mut self,
        input: &mut Checked<R>,
        sequence: &Sequence,
        rows: usize,
    ) -> io::Result<bool> {
        let mut row = Vec::new();
        for layer in 0..self.layout().layers.len() {
            row.resize(self.layout().row(layer).bytes(), 0);
            for position in 0..rows {
                input.take(&mut row)?;
                let slot = slot(sequence.block_table(), position);
                self.store.write_row(layer, slot, &row).map_err(io::Error::other)?;
            }
        }
        let sum = input.sum;
        Ok(input.u64()? == sum)
    }
}
