//! Memory maps of model files, and a clear message when a mapped file shrinks.
#![allow(unsafe_code, reason = "memory maps and the signal handler that explains a vanished page")]

use crate::error::FormatError;
use crate::in_use::InUse;
use crate::input_file::{self, InputError};
use memmap2::Mmap;
use std::path::Path;

/// The bytes of a whole file: mapped, or built into the program.
pub(crate) enum Bytes {
    Map(Mmap, #[expect(dead_code, reason = "held until the map goes")] InUse),
    Static(&'static [u8]),
}

impl Bytes {
    /// Maps a regular file.
    pub(crate) fn map(path: &Path) -> Result<Bytes, FormatError> {
        let io = |error| FormatError::Io { path: path.to_owned(), error };
        let (file, metadata) = input_file::open(path).map_err(|error| match error {
            InputError::Io { path, error } => FormatError::Io { path, error },
            _ => {
                let what =
                    "it is neither a file nor a folder; give the path of a .gguf file or a model folder";
                FormatError::NotAModel { path: path.to_owned(), what: what.into() }
            }
        })?;
        if metadata.len() == 0 {
            let what = "the file is empty; download it again".into();
            return Err(FormatError::NotAModel { path: path.to_owned(), what });
        }
        // SAFETY: the map is read only. Should another process shrink the file, reading a vanished page raises SIGBUS, which the
        // handler turns into a message; changed contents can only change numbers, since all ranges were checked and are kept apart.
        let map = unsafe { Mmap::map(&file) }.map_err(io)?;
        #[cfg(unix)]
        sigbus::watch(path, map.as_ptr() as usize, map.len());
        Ok(Bytes::Map(map, InUse::new(&metadata)))
    }

    pub(crate) fn get(&self) -> &[u8] {
        match self {
            Bytes::Map(map, _) => map,
            Bytes::Static(bytes) => bytes,
        }
    }

    /// Tells the system that these bytes will not be read again soon.
    pub(crate) fn drop_pages(&self, start: usize, len: usize) {
        #[cfg(unix)]
        if let Bytes::Map(map, _) = self {
            // SAFETY: a private read-only file mapping: dropped pages are read from the file again.
            let _ = unsafe { map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, start, len) };
        }
        #[cfg(not(unix))]
        let _ = (start, len);
    }

    /// Asks the system to begin reading these bytes.
    pub(crate) fn ask_for(&self, start: usize, len: usize) {
        #[cfg(unix)]
        if let Bytes::Map(map, _) = self {
            // a wish: whoever reads the bytes waits for them in any case
            let _ = map.advise_range(memmap2::Advice::WillNeed, start, len);
        }
        #[cfg(not(unix))]
        let _ = (start, len);
    }

    /// Waits until these bytes are in memory, and enters their pages into the process's tables.
    pub(crate) fn bring(&self, start: usize, len: usize) {
        #[cfg(target_os = "linux")]
        if let Bytes::Map(map, _) = self {
            // since Linux 5.14; before, they are entered when they are first read
            let _ = map.advise_range(memmap2::Advice::PopulateRead, start, len);
        }
        #[cfg(not(target_os = "linux"))]
        let _ = (start, len);
    }
}

impl Drop for Bytes {
    fn drop(&mut self) {
        #[cfg(unix)]
        if let Bytes::Map(map, _) = self {
            sigbus::forget(map.as_ptr() as usize);
        }
    }
}

/// The handler that names the file when a mapped page has vanished.
#[cfg(unix)]
mod sigbus {
    use std::path::Path;
    use std::sync::Once;
    use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};

    /// Maps that can be watched at once; further ones work without the message.
    const PLACES: usize = 1024;

    /// Bytes of a message; a longer path keeps its end.
    const MESSAGE: usize = 512;

    /// A watched map. A place is free while `start` is 0.
    struct Place {
        start: AtomicUsize,
        len: AtomicUsize,
        message: [AtomicU8; MESSAGE],
        message_len: AtomicUsize,
    }

    static WATCHED: [Place; PLACES] = [const {
        Place {
            start: AtomicUsize::new(0),
            len: AtomicUsize::new(0),
            message: [const { AtomicU8::new(0) }; MESSAGE],
            message_len: AtomicUsize::new(0),
        }
    }; PLACES];

    /// What handled SIGBUS before: an address of a handler, or SIG_DFL, or SIG_IGN.
    static PREVIOUS: AtomicUsize = AtomicUsize::new(0);

    pub(super) fn watch(path: &Path, start: usize, len: usize) {
        static INSTALL: Once = Once::new();
        INSTALL.call_once(install);
        let text = message(path);
        for place in &WATCHED {
            // claimed with an address that no map has, so that the handler never reads half an entry
            if place.start.compare_exchange(0, usize::MAX, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
                for (to, from) in place.message.iter().zip(text.bytes()) {
                    to.store(from, Ordering::Relaxed);
                }
                place.len.store(len, Ordering::SeqCst);
                place.message_len.store(text.len().min(MESSAGE), Ordering::SeqCst);
                place.start.store(start, Ordering::SeqCst);
                return;
            }
        }
    }

    fn message(path: &Path) -> String {
        let path = path.display().to_string();
        let path = latent_types::printable(&path);
        let what = ": the file has shrunk or its storage failed while it was in use; keep model files unchanged while Latent runs\n";
        let room = MESSAGE - "error: ".len() - what.len() - "…".len();
        let from =
            path.char_indices().map(|(at, _)| at).find(|at| path.len() - at <= room).unwrap_or(path.len());
        format!("error: {}{}{what}", if from > 0 { "…" } else { "" }, &path[from..])
    }

    pub(super) fn forget(start: usize) {
        for place in &WATCHED {
            if place.start.load(Ordering::SeqCst) == start {
                place.start.store(0, Ordering::SeqCst);
                return;
            }
        }
    }

    fn install() {
        // SAFETY: sigaction with a handler of the SA_SIGINFO kind, fully initialised; the handler only uses async-signal-safe calls.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = handle as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            libc::sigemptyset(&raw mut action.sa_mask);
            let mut previous: libc::sigaction = std::mem::zeroed();
            if libc::sigaction(libc::SIGBUS, &raw const action, &raw mut previous) == 0 {
                PREVIOUS.store(previous.sa_sigaction, Ordering::SeqCst);
            }
        }
    }

    extern "C" fn handle(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
        // SAFETY: the system passes a valid siginfo_t for a SA_SIGINFO handler.
        let address = unsafe { (*info).si_addr() } as usize;
        for place in &WATCHED {
            let start = place.start.load(Ordering::SeqCst);
            let len = place.len.load(Ordering::SeqCst);
            if start != 0 && start != usize::MAX && address >= start && address - start < len {
                let len = place.message_len.load(Ordering::SeqCst);
                // SAFETY: write, unlink and _exit are async-signal-safe; the message is static memory of at least this length, and no
                // thread rewrites it, since the map that faulted still exists. A name in the table is static memory that ends in a zero,
                // whatever is written over it meanwhile.
                unsafe {
                    libc::write(2, place.message.as_ptr().cast(), len);
                    for name in
                        crate::unfinished::PLACES_TAKEN.iter().filter_map(crate::unfinished::Place::name)
                    {
                        libc::unlink(name.as_ptr().cast());
                    }
                    libc::_exit(1);
                }
            }
        }
        // not ours: whoever was here before, or the default
        let previous = PREVIOUS.load(Ordering::SeqCst);
        // SAFETY: a handler stored by sigaction is called as the system would call it (one of the older kind ignores all but the first
        // argument); otherwise the default is restored, and the signal, raised again, ends the process.
        unsafe {
            if previous == libc::SIG_DFL || previous == libc::SIG_IGN {
                libc::signal(libc::SIGBUS, libc::SIG_DFL);
                libc::raise(libc::SIGBUS);
            } else {
                let previous: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) =
                    std::mem::transmute(previous);
                previous(signal, info, context);
            }
        }
    }
}
