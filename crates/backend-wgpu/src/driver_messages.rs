//! Suppression of driver messages during the enumeration of adapters.
//!
//! Mesa queries the device of a Wayland desktop. Without a desktop, libwayland prints an error
//! about `XDG_RUNTIME_DIR` each time.

/// Runs `work`. On a machine without a desktop, lines about it are left out of what is printed on standard error meanwhile.
#[cfg(target_os = "linux")]
pub(crate) fn without_desktop<T>(work: impl FnOnce() -> T) -> T {
    use std::io::{Read, Seek, Write};
    use std::sync::{Mutex, PoisonError};

    /// Standard error is redirected once at a time.
    static REDIRECTED: Mutex<()> = Mutex::new(());

    /// Makes standard error what it was.
    struct StderrGuard(std::os::fd::OwnedFd);

    impl Drop for StderrGuard {
        fn drop(&mut self) {
            // it was open a moment ago
            let _ = rustix::stdio::dup2_stderr(&self.0);
        }
    }

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
    drop(restored);
    let mut printed = Vec::new();
    if file.rewind().and_then(|()| file.read_to_end(&mut printed)).is_ok() {
        for line in printed.split_inclusive(|byte| *byte == b'\n') {
            if !String::from_utf8_lossy(line).contains("XDG_RUNTIME_DIR") {
                // ignore a closed standard error
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
