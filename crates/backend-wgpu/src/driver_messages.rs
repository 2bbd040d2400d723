//! Suppression of driver messages during the enumeration of adapters.
//!
//! Mesa queries the device of a Wayland desktop. Without a desktop, libwayland prints an error
//! about `XDG_RUNTIME_DIR` each time.

/// Runs `work`. On a machine without a desktop, standard error is redirected to a file meanwhile,
/// and then printed without the lines about the missing desktop.
#[cfg(target_os = "linux")]
pub(crate) fn without_desktop<T>(work: impl FnOnce() -> T) -> T {
    use std::io::{Read, Seek, Write};
    use std::sync::{Mutex, PoisonError};

    /// Held while standard error is redirected: a second redirection would restore the first one's
    /// file.
    static REDIRECTED: Mutex<()> = Mutex::new(());

    /// Restores standard error.
    struct StderrGuard(std::os::fd::OwnedFd);

    impl Drop for StderrGuard {
        fn drop(&mut self) {
            // Cannot fail: the saved descriptor is open.
            let _ = rustix::stdio::dup2_stderr(&self.0);
        }
    }

    // The condition of libwayland, which accepts absolute paths only.
    if std::env::var_os("XDG_RUNTIME_DIR").is_some_and(|folder| folder.as_encoded_bytes().starts_with(b"/")) {
        return work();
    }
    let _alone = REDIRECTED.lock().unwrap_or_else(PoisonError::into_inner);
    let redirected = || {
        let file = tempfile::tempfile().ok()?;
        let own = rustix::io::dup(rustix::stdio::stderr()).ok()?;
        rustix::stdio::dup2_stderr(&file).ok()?;
        Some((file, StderrGuard(own)))
    };
    let Some((mut file, restored)) = redirected() else { return work() };
    let done = work();
    // Before printing: the lines would otherwise go to the file again.
    drop(restored);
    let mut printed = Vec::new();
    if file.rewind().and_then(|()| file.read_to_end(&mut printed)).is_ok() {
        for line in printed.split_inclusive(|byte| *byte == b'\n') {
            if !String::from_utf8_lossy(line).contains("XDG_RUNTIME_DIR") {
                // Ignore a closed standard error.
                let _ = std::io::stderr().write_all(line);
            }
        }
    }
    done
}

/// Runs `work`.
#[cfg(not(target_os = "linux"))]
pub(crate) fn without_desktop<T>(work: impl FnOnce() -> T) -> T {
    work()
}
