//! The process that started threads. A child that is forked from it has its memory and none of its threads.

use crate::error::{Error, ErrorKind};

/// The process that started threads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Process(u32);

impl Process {
    pub(crate) fn this() -> Process {
        Process(std::process::id())
    }

    /// Whether this is the process.
    pub(crate) fn is_this(self) -> bool {
        self.0 == std::process::id()
    }

    /// Refuses what needs a model's threads in another process.
    pub(crate) fn check(self) -> Result<(), Error> {
        self.check_that("loaded the model", "load the model in the child")
    }

    /// Refuses what needs the threads in another process. `did` is what the process did, `advice` what can be done here.
    pub(crate) fn check_that(self, did: &str, advice: &str) -> Result<(), Error> {
        if self.is_this() {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Forked,
            format!(
                "process {} was forked from process {}, which {did}: its threads are not here; {advice} (with Python's multiprocessing, \
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
    fn another_process_is_told_which_it_is() {
        assert_eq!(Process::this().check(), Ok(()));
        let error = Process(std::process::id() + 1).check_that("began", "begin in the child").unwrap_err();
        assert_eq!(*error.kind(), ErrorKind::Forked);
        assert!(error.to_string().contains(&std::process::id().to_string()), "{error}");
        assert!(
            error.message().contains("which began: its threads are not here; begin in the child"),
            "{error}"
        );
    }
}
