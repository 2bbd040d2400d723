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
//! Files of models with recurrent layers also hold the snapshots of the sequence and, last, its
//! current state. Streams of kind 2 (recurrent layers) have no rows; their width is the number of
//! elements of a state.
//!
//! ```text
//! magic "LATNTKV2" | fingerprint u64 | tokens u64 | streams u32 | cache type u32 | states u32
//! per stream: layer u32, kind u32, width u32
//! token ids u32 × tokens
//! per stream with rows: rows, tokens × width numbers of the cache type
//! per state, in ascending order: position u64, per recurrent stream: elements f32
//! checksum u64
//! ```
//!
//! An attachment may follow: bytes that the cache does not interpret, such as the conversation that
//! the tokens were rendered from. Files without one end after the checksum.
//!
//! ```text
//! magic "LATNTAT1" | length u64 | bytes | checksum u64 (FNV-1a of the attachment from its magic on)
//! ```

use super::checked::ChecksumStream;
use super::draft_rows::DraftRows;
use super::full::{CacheFull, StatesFull};
use super::kv_cache::{KvCache, KvError};
use super::recurrent::{RecurrentState, Snapshot};
use super::sequence::Sequence;
use latent_backend::{BackendError, KV_BLOCK, LayerState, slot};
use latent_formats::{InputError, OutputError, OutputFile, input_file};
use latent_graph::ir::KvLayerKind;
use latent_types::{CacheType, Setting};
use std::io::{self, BufReader, Read, Write};
use std::path::{Path, PathBuf};

const MAGIC: &[u8; 8] = b"LATNTKV1";
const MAGIC_WITH_STATES: &[u8; 8] = b"LATNTKV2";
const ATTACHMENT: &[u8; 8] = b"LATNTAT1";

/// Bytes of an attachment without its content: magic, length, checksum.
const ATTACHMENT_FRAME: u64 = 24;

/// Maximum size of an attachment, in bytes.
pub const MAX_ATTACHMENT: usize = 64 << 20;

/// Why a saved sequence cannot be written or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages name the fields")]
pub enum CacheFileError {
    /// The file cannot be written.
    #[error(transparent)]
    Output(#[from] OutputError),
    /// The file is not a regular file, or cannot be opened.
    #[error(transparent)]
    Input(#[from] InputError),
    /// The file cannot be read.
    #[error("{}: {error}", path.display())]
    Io { path: PathBuf, error: io::Error },
    /// The file is not a saved sequence, or is damaged.
    #[error("{}: not a saved Latent sequence: {problem}; save it again", path.display())]
    Damaged { path: PathBuf, problem: String },
    /// The file belongs to another model or another kind of cache.
    #[error("{}: saved with another {what}: {found}, but this session has {expected}", path.display())]
    Mismatch { path: PathBuf, what: &'static str, found: String, expected: String },
    /// Some rows were embeddings, which the format cannot hold.
    #[error(
        "{}: not saved: the sequence has embeddings from position {position} on, but the file can hold \
         tokens only; save it before they run, or truncate it",
        path.display()
    )]
    Embeddings { path: PathBuf, position: usize },
    /// A context shift has moved some rows, so that no list of tokens describes them.
    #[error(
        "{}: not saved: a context shift has moved the rows from position {position} on, so tokens no longer \
         describe them; truncate the sequence to {position} rows",
        path.display()
    )]
    Shifted { path: PathBuf, position: usize },
    /// The backend's memory failed.
    #[error(transparent)]
    Backend(BackendError),
    /// The sequence does not fit into the KV cache.
    #[error("{}: {full}; start with {} or more", path.display(), Setting::Context.to(full.rows))]
    Full { path: PathBuf, full: CacheFull },
    /// No slot is free for the recurrent state.
    #[error("{}: {full}", path.display())]
    StatesFull { path: PathBuf, full: StatesFull },
}

/// Checks that the tokens of all rows of a sequence are known.
fn check_rows(sequence: &Sequence, path: &Path) -> Result<(), CacheFileError> {
    let path = || path.to_owned();
    let position = sequence.tokens().len();
    match sequence.embedded_from() {
        Some(position) => Err(CacheFileError::Embeddings { path: path(), position }),
        None if position < sequence.len() => Err(CacheFileError::Shifted { path: path(), position }),
        None => Ok(()),
    }
}

/// The model that files belong to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FileOwner {
    /// Identifies the model's checkpoint.
    pub fingerprint: u64,
    /// Number of tokens in its vocabulary.
    pub vocab: usize,
}

/// The layers of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SavedLayers {
    /// All layers but those of MTP, so that the file does not depend on whether tokens are drafted.
    Model,
    /// All layers, so that drafts can continue at the end of the sequence.
    ModelAndMtp,
}

/// The sizes in the header of a file.
struct Header {
    /// Number of tokens.
    rows: usize,
    /// Number of recurrent states.
    states: usize,
    /// Bytes after the first checksum.
    trailing: u64,
}

/// A sequence with its tokens, and its attachment.
pub(crate) type RestoredSequence = (Sequence, Option<Vec<u8>>);

/// Checks that a sequence and its attachment can be saved.
fn check_savable(sequence: &Sequence, attachment: Option<&[u8]>, path: &Path) -> Result<(), CacheFileError> {
    if let Some(bytes) = attachment.filter(|bytes| bytes.len() > MAX_ATTACHMENT) {
        let problem =
            format!("the attachment has {} bytes, more than the limit of {MAX_ATTACHMENT}", bytes.len());
        let error = io::Error::new(io::ErrorKind::InvalidInput, problem);
        return Err(CacheFileError::Io { path: path.to_owned(), error });
    }
    check_rows(sequence, path)
}

fn write_attachment(out: &mut impl Write, bytes: &[u8]) -> io::Result<()> {
    let mut out = ChecksumStream::new(out);
    out.put(ATTACHMENT)?;
    out.put(&(bytes.len() as u64).to_le_bytes())?;
    out.put(bytes)?;
    out.put_sum()
}

/// Reads an attachment that takes `size` bytes with its frame. The caller has checked that these
/// are at most [`MAX_ATTACHMENT`] and the frame. `None` if the attachment is damaged.
fn read_attachment<R: Read>(input: &mut ChecksumStream<R>, size: u64) -> io::Result<Option<Vec<u8>>> {
    // The attachment has a checksum of its own, which begins at its magic.
    input.restart();
    let mut magic = [0; 8];
    input.take(&mut magic)?;
    let content = size - ATTACHMENT_FRAME;
    if &magic != ATTACHMENT || input.u64()? != content {
        return Ok(None);
    }
    let mut bytes = vec![0; content as usize];
    input.take(&mut bytes)?;
    Ok(input.sum_agrees()?.then_some(bytes))
}

/// The first slot and the number of rows of each block of a sequence's first `rows` rows. The slots
/// of a block are consecutive, so that a block is read or written at once.
fn stretches(sequence: &Sequence, rows: usize) -> impl Iterator<Item = (usize, usize)> {
    let stretch = move |first: usize| (slot(sequence.block_table(), first), KV_BLOCK.min(rows - first));
    (0..rows).step_by(KV_BLOCK).map(stretch)
}

/// The number of a cache type in files. New types must be appended to [`CacheType::ALL`].
fn type_id(ty: CacheType) -> u32 {
    CacheType::ALL.iter().position(|&t| t == ty).unwrap_or(0) as u32
}

/// Layer, kind and width of a stream.
fn stream(layer: &LayerState) -> [u32; 3] {
    match layer {
        LayerState::PerToken(rows) => {
            // Numbers of the file format, independent of the enum's order. Kind 2 is a recurrent
            // state.
            let kind = match rows.kind {
                KvLayerKind::Latent => 0,
                KvLayerKind::Expanded => 1,
                KvLayerKind::Index => 3,
                KvLayerKind::ConvInputs => 4,
                KvLayerKind::DeltaState => 5,
            };
            [rows.layer as u32, kind, rows.width as u32]
        }
        LayerState::Recurrent(state) => [state.layer as u32, 2, state.shape.elements() as u32],
    }
}

impl KvCache {
    /// Writes `sequence`, its tokens and an attachment of at most [`MAX_ATTACHMENT`] bytes to a
    /// file, which appears when it is complete.
    ///
    /// # Errors
    /// [`CacheFileError::Output`], [`CacheFileError::Embeddings`], [`CacheFileError::Shifted`], and
    /// [`CacheFileError::Io`] for an attachment that is too large.
    pub(crate) fn save(
        &self,
        sequence: &Sequence,
        owner: FileOwner,
        attachment: Option<&[u8]>,
        which: SavedLayers,
        path: &Path,
    ) -> Result<(), CacheFileError> {
        check_savable(sequence, attachment, path)?;
        // Readable by its owner only: rows and tokens reveal the conversation.
        let mut file = OutputFile::create_private(path)?;
        let written = self.write(sequence, owner.fingerprint, attachment, which, &mut file);
        written.map_err(|error| file.failed(error))?;
        file.finish()?;
        Ok(())
    }

    /// The bytes of the file that [`save`](Self::save) would write. `path` is used in errors only.
    ///
    /// # Errors
    /// As for [`save`](Self::save).
    pub(crate) fn save_bytes(
        &self,
        sequence: &Sequence,
        owner: FileOwner,
        attachment: Option<&[u8]>,
        which: SavedLayers,
        path: &Path,
    ) -> Result<Vec<u8>, CacheFileError> {
        check_savable(sequence, attachment, path)?;
        let mut bytes = Vec::new();
        let written = self.write(sequence, owner.fingerprint, attachment, which, &mut bytes);
        written.map_err(|error| CacheFileError::Io { path: path.to_owned(), error })?;
        Ok(bytes)
    }

    fn write(
        &self,
        sequence: &Sequence,
        fingerprint: u64,
        attachment: Option<&[u8]>,
        which: SavedLayers,
        file: &mut impl Write,
    ) -> io::Result<()> {
        let layout = self.layout();
        let states = sequence.recurrent.as_ref().map_or_else(Vec::new, |state| state.states(sequence.len()));
        let mut out = ChecksumStream::new(file);
        out.put(if layout.is_recurrent() { MAGIC_WITH_STATES } else { MAGIC })?;
        out.put(&fingerprint.to_le_bytes())?;
        out.put(&(sequence.len() as u64).to_le_bytes())?;
        out.put(&(self.saved_layers(which).len() as u32).to_le_bytes())?;
        out.put(&type_id(layout.cache_type).to_le_bytes())?;
        if layout.is_recurrent() {
            out.put(&(states.len() as u32).to_le_bytes())?;
        }
        for number in self.saved_layers(which).iter().flat_map(stream) {
            out.put(&number.to_le_bytes())?;
        }
        for token in sequence.tokens() {
            out.put(&token.to_le_bytes())?;
        }
        let mut buffer = Vec::new();
        // A block at a time: on a GPU, reading one row takes as long as reading many.
        for layer in self.layers_with_rows(which) {
            for (slot, rows) in stretches(sequence, sequence.len()) {
                buffer.resize(rows * layout.row(layer).bytes(), 0);
                self.store.read_rows(layer, slot, &mut buffer).map_err(io::Error::other)?;
                out.put(&buffer)?;
            }
        }
        for Snapshot { position, slot } in &states {
            out.put(&(*position as u64).to_le_bytes())?;
            for (layer, shape) in layout.recurrent() {
                buffer.resize(shape.bytes(), 0);
                self.store.read_state(layer, slot.index(), &mut buffer).map_err(io::Error::other)?;
                out.put(&buffer)?;
            }
        }
        out.put_sum()?;
        attachment.map_or(Ok(()), |bytes| write_attachment(&mut out.inner, bytes))
    }

    /// The layers of a file.
    fn saved_layers(&self, which: SavedLayers) -> &[LayerState] {
        let layers = &self.layout().layers;
        match which {
            // The MTP layers are the last ones.
            SavedLayers::Model => &layers[..layers.len() - self.mtp_layers],
            SavedLayers::ModelAndMtp => layers,
        }
    }

    /// The indices of the saved layers that have rows.
    fn layers_with_rows(&self, which: SavedLayers) -> Vec<usize> {
        let layers = self.saved_layers(which).iter().enumerate();
        layers.filter(|(_, layer)| layer.per_token().is_some()).map(|(index, _)| index).collect()
    }

    /// Reads a sequence back, with its tokens and the attachment if it has one.
    ///
    /// # Errors
    /// When the file cannot be read, is damaged, belongs to another model or cache type, or does
    /// not fit.
    pub(crate) fn restore(
        &mut self,
        path: &Path,
        owner: FileOwner,
        which: SavedLayers,
    ) -> Result<RestoredSequence, CacheFileError> {
        let (file, metadata) = input_file::open(path)?;
        self.restore_from((BufReader::new(file), metadata.len()), path, owner, which)
    }

    /// [`restore`](Self::restore) from `size` bytes of `input`. `path` is used in errors only.
    ///
    /// # Errors
    /// As for [`restore`](Self::restore).
    pub(crate) fn restore_from(
        &mut self,
        (input, size): (impl Read, u64),
        path: &Path,
        owner: FileOwner,
        which: SavedLayers,
    ) -> Result<RestoredSequence, CacheFileError> {
        let io = |error: io::Error| match error.kind() {
            io::ErrorKind::UnexpectedEof => {
                CacheFileError::Damaged { path: path.to_owned(), problem: "it is truncated".into() }
            }
            _ => CacheFileError::Io { path: path.to_owned(), error },
        };
        let damaged =
            |problem: &str| CacheFileError::Damaged { path: path.to_owned(), problem: problem.into() };
        let mut input = ChecksumStream::new(input);
        let header = self.read_header(&mut input, path, owner.fingerprint, which, size)?;
        let Header { rows, states, trailing } = header;
        // The header was checked against the file's size, so `rows` bounds this allocation.
        let mut tokens = Vec::with_capacity(rows);
        for position in 0..rows {
            let token = input.u32().map_err(io)?;
            if token as usize >= owner.vocab {
                let vocab = owner.vocab;
                return Err(damaged(&format!(
                    "token id {token} at position {position} is out of range: the vocabulary has {vocab} tokens"
                )));
            }
            tokens.push(token);
        }
        // On an error below, dropping the sequence releases its blocks.
        let mut sequence = Sequence::default();
        self.reserve_blocks(&mut sequence, rows).map_err(|error| match error {
            KvError::Full(full) => CacheFileError::Full { path: path.to_owned(), full },
            KvError::States(full) => CacheFileError::StatesFull { path: path.to_owned(), full },
            KvError::Backend(error) => CacheFileError::Backend(error),
        })?;
        self.read_rows(&mut input, which, &sequence, rows).map_err(io)?;
        let states = self.read_states(&mut input, path, rows, states)?;
        // The rows are in their blocks by now, but no sequence has them before the checksum is
        // right.
        if !input.sum_agrees().map_err(io)? {
            return Err(damaged("its checksum does not match"));
        }
        let attachment =
            if trailing == 0 { None } else { read_attachment(&mut input, trailing).map_err(io)? };
        if trailing > 0 && attachment.is_none() {
            return Err(damaged(
                "the data after the cache is damaged: its length or checksum does not match",
            ));
        }
        sequence.recurrent = self.states.as_ref().map(|pool| RecurrentState::restored(pool, states));
        // A file without MTP rows leaves the draft state incomplete: nothing is drafted.
        if which == SavedLayers::ModelAndMtp && self.mtp_layers > 0 {
            sequence.draft = DraftRows::of_shared(rows);
        }
        sequence.advance_tokens(&tokens);
        Ok((sequence, attachment))
    }

    /// Reads the header and checks it against this cache and the size of the file.
    fn read_header<R: Read>(
        &self,
        input: &mut ChecksumStream<R>,
        path: &Path,
        fingerprint: u64,
        which: SavedLayers,
        size: u64,
    ) -> Result<Header, CacheFileError> {
        let damaged = |problem: String| CacheFileError::Damaged { path: path.to_owned(), problem };
        let early = |_: io::Error| damaged("it is truncated".into());
        let mismatch = |what, found: String, expected: String| {
            Err(CacheFileError::Mismatch { path: path.to_owned(), what, found, expected })
        };
        let mut magic = [0; 8];
        input.take(&mut magic).map_err(early)?;
        if &magic != MAGIC && &magic != MAGIC_WITH_STATES {
            return Err(damaged("its first bytes are neither LATNTKV1 nor LATNTKV2".into()));
        }
        let found = input.u64().map_err(early)?;
        // Compared before the sizes, which differ between models too: the error then names the
        // cause.
        if found != fingerprint {
            return mismatch("model", format!("fingerprint {found:016x}"), format!("{fingerprint:016x}"));
        }
        let recurrent = &magic == MAGIC_WITH_STATES;
        if recurrent != self.states.is_some() {
            let kind = |recurrent| if recurrent { "with recurrent state" } else { "without recurrent state" };
            return mismatch("kind of cache", kind(recurrent).into(), kind(!recurrent).into());
        }
        let rows = input.u64().map_err(early)?;
        let kv_layers = input.u32().map_err(early)?;
        let ty = input.u32().map_err(early)?;
        let states = if recurrent { input.u32().map_err(early)? } else { 0 };
        if ty != type_id(self.layout().cache_type) {
            let found =
                CacheType::ALL.get(ty as usize).map_or_else(|| format!("number {ty}"), |ty| ty.to_string());
            return mismatch("cache type", found, self.layout().cache_type.to_string());
        }
        let expected = self.saved_layers(which).len();
        if kv_layers as usize != expected {
            let streams = "with sparse attention, a layer with an indexer has two";
            let expected = format!("{expected} ({streams}: {})", Setting::SparseAttention);
            return mismatch("number of cache streams", kv_layers.to_string(), expected);
        }
        for expected in self.saved_layers(which).iter().map(stream) {
            for number in expected {
                let found = input.u32().map_err(early)?;
                if found != number {
                    let expected = format!("layer, kind and width {expected:?}");
                    return mismatch("cache stream", found.to_string(), expected);
                }
            }
        }
        let Some(trailing) = self.trailing(which, rows, states, size) else {
            return Err(damaged(format!("its {rows} tokens do not match its size of {size} bytes")));
        };
        // Fails on 32-bit platforms (WebAssembly) only.
        let rows = usize::try_from(rows).map_err(|_| damaged(format!("{rows} tokens are too many")))?;
        Ok(Header { rows, states: states as usize, trailing })
    }

    /// The number of bytes after the first checksum in a file of `size` bytes. `None` if the file
    /// is too short for its header, or the rest cannot be an attachment.
    fn trailing(&self, which: SavedLayers, rows: u64, states: u32, size: u64) -> Option<u64> {
        let layout = self.layout();
        // Magic, fingerprint, tokens, streams, cache type, the streams, and the number of states.
        let header = 8
            + 8
            + 8
            + 4
            + 4
            + 12 * self.saved_layers(which).len() as u64
            + 4 * u64::from(layout.is_recurrent());
        let token_bytes = LayerState::token_bytes(self.saved_layers(which), layout.cache_type);
        // Checked: `rows` and `states` are numbers of the file and may be anything.
        let rows = rows.checked_mul(4 + token_bytes as u64)?;
        let states = u64::from(states).checked_mul(8 + layout.state_bytes() as u64)?;
        let expected = rows.checked_add(states)?.checked_add(header + 8)?;
        let longest = ATTACHMENT_FRAME + MAX_ATTACHMENT as u64;
        let trailing = size.checked_sub(expected)?;
        (trailing == 0 || (ATTACHMENT_FRAME..=longest).contains(&trailing)).then_some(trailing)
    }

    /// Reads the rows of every stream.
    fn read_rows<R: Read>(
        &mut self,
        input: &mut ChecksumStream<R>,
        which: SavedLayers,
        sequence: &Sequence,
        rows: usize,
    ) -> io::Result<()> {
        let mut buffer = Vec::new();
        for layer in self.layers_with_rows(which) {
            for (slot, rows) in stretches(sequence, rows) {
                buffer.resize(rows * self.layout().row(layer).bytes(), 0);
                input.take(&mut buffer)?;
                self.store.write_rows(layer, slot, &buffer).map_err(io::Error::other)?;
            }
        }
        Ok(())
    }

    /// Reads `count` recurrent states of a sequence of `rows` rows. If too few slots are free, the
    /// older states are skipped.
    fn read_states<R: Read>(
        &mut self,
        input: &mut ChecksumStream<R>,
        path: &Path,
        rows: usize,
        count: usize,
    ) -> Result<Vec<Snapshot>, CacheFileError> {
        let Some(pool) = self.states.clone() else { return Ok(Vec::new()) };
        let damaged = || CacheFileError::Damaged {
            path: path.to_owned(),
            problem: "its states are out of order".into(),
        };
        let io = |error| CacheFileError::Io { path: path.to_owned(), error };
        let shapes: Vec<_> = self.layout().recurrent().map(|(layer, shape)| (layer, shape.bytes())).collect();
        let passed_over = count.saturating_sub(pool.available());
        let (mut states, mut last, mut bytes) = (Vec::new(), 0, Vec::new());
        for state in 0..count {
            let position = usize::try_from(input.u64().map_err(io)?).map_err(|_| damaged())?;
            if position <= last || position > rows {
                return Err(damaged());
            }
            last = position;
            // The oldest states are skipped if slots are scarce. They are still read, since the
            // checksum covers them.
            let slot = if state < passed_over { None } else { pool.take() };
            for &(layer, length) in &shapes {
                bytes.resize(length, 0);
                input.take(&mut bytes).map_err(io)?;
                if let Some(slot) = &slot {
                    self.store.write_state(layer, slot.index(), &bytes).map_err(CacheFileError::Backend)?;
                }
            }
            states.extend(slot.map(|slot| Snapshot { position, slot }));
        }
        // The last state must be the current one: without it the sequence cannot continue.
        if last != rows {
            return Err(damaged());
        }
        if rows > 0 && states.last().is_none_or(|state| state.position != rows) {
            return Err(CacheFileError::StatesFull { path: path.to_owned(), full: pool.full() });
        }
        Ok(states)
    }
}
