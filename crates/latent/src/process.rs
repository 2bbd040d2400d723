//! Detection of forked children. A child has a copy of its parent's memory, but none of its other
//! threads.

use crate::error::{Error, ErrorKind};

/// The process that started threads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Process(u32);

impl Process {
    pub(crate) fn this() -> Process {
        Process(std::process::id())
    }

    pub(crate) fn is_this(self) -> bool {
        // A child has another id. Comparing ids needs no unsafe code, unlike a `pthread_atfork`
        // handler.
        self.0 == std::process::id()
    }

    /// Checks that this process has the threads of a model.
    pub(crate) fn check(self) -> Result<(), Error> {
        self.check_that("loaded the model", "load the model in the child")
    }

    /// Checks that this process has the threads. In the error, `did` is what the parent did, and
    /// `advice` what to do in the child.
    pub(crate) fn check_that(self, did: &str, advice: &str) -> Result<(), Error> {
        if self.is_this() {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Forked,
            format!(
                "process {} was forked from process {}, which {did}: its threads do not exist here; {advice} \
                 (with Python's multiprocessing, \
                 start processes by \"spawn\")",
                std::process::id(),
                self.0
            ),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_names_both_processes() {
        assert_eq!(Process::this().check(), Ok(()));
        let error = Process(std::process::id() + 1).check_that("began", "begin in the child").unwrap_err();
        assert_eq!(*error.kind(), ErrorKind::Forked);
        assert!(error.to_string().contains(&std::process::id().to_string()), "{error}");
        assert!(
            error.message().contains("which began: its threads do not exist here; begin in the child"),
            "{error}"
        );
    }
}
