//! The history of typed lines, in a file that only its owner can read.

use crate::output::say;
use latent_formats::{InputError, input_file, output_file};
use rustyline::history::{FileHistory, History as _};
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

/// Maximum bytes of a history file.
// rustyline limits the number of entries when it writes.
const MAX_BYTES: u64 = 16 << 20;

/// The history file.
pub(super) struct ChatHistory {
    path: PathBuf,
}

impl ChatHistory {
    /// Reads the history; `None` without a home folder. Problems are reported once and are not
    /// fatal.
    pub(super) fn open(entries: &mut FileHistory) -> Option<ChatHistory> {
        let path = place(&|name| std::env::var_os(name))?;
        match read(&path, entries) {
            Ok(()) => Some(ChatHistory { path }),
            Err(problem) => {
                say(&format!("(the input history is disabled: {}: {problem})", path.display()));
                None
            }
        }
    }

    pub(super) fn append(&self, entries: &mut FileHistory) {
        // If a named pipe replaced the file, opening it would block. A history that cannot be
        // written is not fatal.
        // `append` and not `save`: several chats share the file, and `save` would drop the lines of
        // the others.
        if fs::metadata(&self.path).map_or(true, |metadata| metadata.is_file()) {
            let _ = entries.append(&self.path);
        }
    }
}

/// $XDG_STATE_HOME/latent/history, by default ~/.local/state/latent/history. On Windows
/// %LOCALAPPDATA%\latent\history.
fn place(variable: &dyn Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    // The XDG Base Directory specification: relative paths must be ignored.
    let folder = |name: &str| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let state = if cfg!(windows) { folder("LOCALAPPDATA") } else { folder("XDG_STATE_HOME") };
    let home = || folder("HOME").map(|home| home.join(".local").join("state"));
    Some(state.or_else(home)?.join("latent").join("history"))
}

fn read(path: &Path, entries: &mut FileHistory) -> Result<(), String> {
    if let Some(folder) = path.parent() {
        output_file::make_private_folder(folder).map_err(|error| error.to_string())?;
    }
    match input_file::open(path) {
        Err(InputError::Io { error, .. }) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(InputError::Io { error, .. }) => Err(error.to_string()),
        Err(_) => Err("it is not a regular file".into()),
        Ok((_, metadata)) if metadata.len() > MAX_BYTES => Err(format!("it has more than {MAX_BYTES} bytes")),
        Ok(_) => entries.load(path).map_err(|error| error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustyline::Config;

    #[test]
    fn the_history_path_follows_xdg() {
        let of = |state: Option<&'static str>, home: Option<&'static str>| {
            place(&move |name| match name {
                "XDG_STATE_HOME" => state.map(OsString::from),
                "HOME" => home.map(OsString::from),
                _ => None,
            })
        };
        if cfg!(unix) {
            assert_eq!(of(Some("/s"), Some("/h")), Some("/s/latent/history".into()));
            assert_eq!(of(Some("relative"), Some("/h")), Some("/h/.local/state/latent/history".into()));
            assert_eq!(of(None, Some("/h")), Some("/h/.local/state/latent/history".into()));
        }
        assert_eq!(of(None, None), None);
    }

    fn entries() -> FileHistory {
        FileHistory::with_config(
            &Config::builder().max_history_size(super::super::input::MAX_HISTORY_ENTRIES).unwrap().build(),
        )
    }

    #[test]
    fn the_history_is_private_and_limited() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("latent").join("history");
        let mut first = entries();
        assert_eq!(read(&path, &mut first), Ok(()));
        let history = ChatHistory { path: path.clone() };
        for i in 0..1200 {
            first.add(&format!("message {i}\nwith a second line")).unwrap();
            if i % 100 == 0 || i == 1199 {
                history.append(&mut first);
            }
        }
        let mut second = entries();
        assert_eq!(read(&path, &mut second), Ok(()));
        assert_eq!(second.len(), 1000);
        assert_eq!(second.iter().last().unwrap(), "message 1199\nwith a second line");
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
            assert_eq!((mode(&path), mode(path.parent().unwrap())), (0o600, 0o700));
        }
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        assert!(read(&path, &mut entries()).unwrap_err().contains("regular file"));
    }
}
