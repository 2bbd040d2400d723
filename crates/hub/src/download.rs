//! Download of one file: resumed, verified, and renamed when complete.

use crate::answer::{AttemptError, HubResponse, bad, unreachable};
use crate::api::HubQuery;
use crate::client::{Exchange, HubClient};
use crate::error::HubError;
use crate::listing::RepoFile;
use crate::lock::Lock;
use crate::part::{BUFFER, PartialFile};
use crate::repo::Repo;
use crate::store::RepoStore;
use std::cell::{Cell, RefCell};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Downloads of a repository's files into the cache folder.
pub(crate) struct Download<'a> {
    pub(crate) client: &'a HubClient,
    pub(crate) store: &'a RepoStore,
    pub(crate) repo: &'a Repo,
    pub(crate) commit: &'a str,
    /// Bytes of all files that are present.
    pub(crate) done: &'a AtomicU64,
    /// Set if another file has failed.
    pub(crate) halt: &'a AtomicBool,
    pub(crate) note: &'a (dyn Fn(String) + Sync),
}

impl Download<'_> {
    /// The partial file of a download. Its name is the expected hash, so that another commit with
    /// the same file can resume it.
    pub(crate) fn part_path(&self, file: &RepoFile) -> PathBuf {
        let name = match &file.digest {
            Some(digest) => digest.digits().to_owned(),
            None => {
                let mut hash = crate::digest::Hasher::new(None, 0);
                hash.update(file.path.as_bytes());
                format!("{}-{}", self.commit, &hash.finish().digits()[..16])
            }
        };
        self.store.parts().join(format!("{name}.part"))
    }

    /// Downloads a file to `target`, whose folder must exist. If it is stopped, the part remains.
    pub(crate) fn fetch(&self, file: &RepoFile, target: &Path) -> Result<(), HubError> {
        let path = self.part_path(file);
        // Two processes must not append to one part.
        let Some(lock) = Lock::wait(&path.with_extension("lock"), self.client, self.note)? else {
            return Ok(());
        };
        // Checked under the lock: another process may have completed the file meanwhile.
        let whole = || {
            std::fs::symlink_metadata(target).is_ok_and(|there| there.is_file() && there.len() == file.size)
        };
        // A new commit often changes only the README. Unchanged weights become hard links.
        let same = file.digest.as_ref().and_then(|digest| self.store.same_bytes(digest, file.size));
        if whole() || same.is_some_and(|same| std::fs::hard_link(same, target).is_ok()) {
            self.add(file.size);
            lock.remove();
            return Ok(());
        }
        // A wrong checksum after a resumed download may be due to bytes of an earlier process:
        // download the whole file once more.
        let resumed = match self.fetch_once(file, &path, target) {
            Err((HubError::Checksum { .. }, true)) => {
                (self.note)(format!(
                    "{}: the partial file of an earlier download is damaged; downloading it again",
                    file.path
                ));
                self.fetch_once(file, &path, target).map_err(|(error, _)| error)
            }
            other => other.map_err(|(error, _)| error),
        };
        resumed?;
        // After a stop the part is incomplete, and another process may wait for the lock.
        if !self.ended() {
            lock.remove();
        }
        Ok(())
    }

    /// Downloads a file once. The error is returned with whether the bytes of an earlier process
    /// were resumed.
    fn fetch_once(&self, file: &RepoFile, path: &Path, target: &Path) -> Result<(), (HubError, bool)> {
        let read = |bytes: u64| {
            self.add(bytes);
            !self.ended()
        };
        let part = PartialFile::open(path, file, &read).map_err(|error| (error, false))?;
        let resumed = part.resumed;
        let course = DownloadCourse::default();
        course.reached(part.len());
        let part = RefCell::new(part);
        let fetched = self.client.persist(self.note, &|| course.furthest.get(), |exchange| {
            self.attempt(exchange, file, &mut part.borrow_mut(), &course)
        });
        let mut part = part.into_inner();
        match fetched {
            Ok(()) if part.len() < file.size => return Ok(()),
            Ok(()) => {}
            // `stop` closes the connections, so that reads fail.
            Err(_) if self.ended() => return Ok(()),
            Err(error) => {
                // With a wrong size, the bytes are not of this file. Other errors keep them.
                if matches!(error, HubError::Size { .. }) {
                    self.take_back(part.len());
                    part.discard();
                }
                return Err((error, false));
            }
        }
        let resumed = resumed && part.resumed;
        let len = part.len();
        part.resumed = resumed;
        part.finish(target).map_err(|error| {
            self.take_back(len);
            (error, resumed)
        })
    }

    /// Requests the missing bytes once. Returns early if it is stopped.
    fn attempt(
        &self,
        exchange: &Exchange<'_>,
        file: &RepoFile,
        part: &mut PartialFile<'_>,
        course: &DownloadCourse,
    ) -> Result<(), AttemptError> {
        if part.len() == file.size || self.ended() {
            return Ok(());
        }
        let mut headers = Vec::new();
        // `If-Range` makes the server send the whole file if it has changed since.
        if part.len() > 0 {
            headers.push(("range", format!("bytes={}-", part.len())));
            headers.extend(part.etag().map(|etag| ("if-range", etag)));
        }
        let url = self.client.address(self.repo, self.commit, &file.path);
        let mut answer = exchange.get(&url, &headers)?;
        if answer.status == 200 && headers.len() > 1 && file.digest.is_some() {
            // The server's ETag has changed. The final checksum detects mixed bytes, so resume
            // without If-Range.
            headers.truncate(1);
            answer = exchange.get(&url, &headers)?;
        }
        let answer = self.usable(file, part, course, answer)?;
        if let Some(etag) = answer.headers.get("etag").and_then(|etag| etag.to_str().ok()) {
            part.set_etag(etag);
        }
        self.receive(exchange, file, part, course, answer)
    }

    /// Checks that a response has the missing bytes. If it has the whole file, the part is
    /// restarted.
    fn usable(
        &self,
        file: &RepoFile,
        part: &mut PartialFile<'_>,
        course: &DownloadCourse,
        answer: HubResponse,
    ) -> Result<HubResponse, AttemptError> {
        let host = answer.from.clone();
        // Limited: a server that ignores ranges and breaks off would be asked without end.
        let from_start = |part: &mut PartialFile<'_>| {
            if course.restarts.get() >= self.client.attempts() {
                let problem = format!("it restarted the file {} times", course.restarts.get());
                return Err(HubError::Unreachable { host: host.clone(), problem });
            }
            course.restarts.update(|restarts| restarts + 1);
            self.take_back(part.len());
            part.restart().map_err(HubError::io(&self.part_path(file)))
        };
        let status = answer.status;
        let text = |name| answer.headers.get(name).and_then(|value| value.to_str().ok());
        let starts_here = text("content-range").is_some_and(|range| continues(range, part.len(), file.size));
        if (part.len() > 0 && status == 416) || (status == 206 && !starts_here) {
            if part.len() > 0 {
                from_start(part)?;
            }
            return Err(unreachable(answer.from, "it does not continue the file where it stopped"));
        }
        if !answer.own && (400..500).contains(&status) {
            // The CDN's signed address has expired. The next attempt gets a new one from the hub.
            return Err(unreachable(answer.from, format!("it returned status {status}")));
        }
        let question = HubQuery { repo: self.repo, revision: self.commit, file: Some(&file.path) };
        // `identity` was requested. Compressed bytes would fail the checksum without a helpful
        // message.
        if text("content-encoding").is_some_and(|coding| coding != "identity") {
            let problem = "the server sends the file compressed, which was not requested";
            return Err(bad(&answer.from, problem).into());
        }
        let announced = text("content-length").and_then(|length| length.parse::<u64>().ok());
        let answer = self.client.expect_ok(&question, answer)?;
        if status != 206 && part.len() > 0 {
            from_start(part)?;
        }
        let expected = file.size - part.len();
        match announced {
            Some(bytes) if bytes != expected => {
                let got = format!("{} bytes", bytes.saturating_add(part.len()));
                Err(HubError::Size { file: file.path.clone(), expected: file.size, got }.into())
            }
            _ => Ok(answer),
        }
    }

    fn receive(
        &self,
        exchange: &Exchange<'_>,
        file: &RepoFile,
        part: &mut PartialFile<'_>,
        course: &DownloadCourse,
        answer: HubResponse,
    ) -> Result<(), AttemptError> {
        // The loop below compares the size with that of the listing.
        let mut reader = answer.body.into_with_config().limit(u64::MAX).reader();
        let mut buffer = vec![0; BUFFER];
        loop {
            if self.ended() {
                return Ok(());
            }
            let n = match reader.read(&mut buffer) {
                Ok(n) => n,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(error) => {
                    let (at, size) = (part.len(), file.size);
                    let problem = format!("the connection broke after {at} of {size} bytes: {error}");
                    return Err(unreachable(answer.from, problem));
                }
            };
            if n == 0 && part.len() < file.size {
                let problem = format!("the connection ended after {} of {} bytes", part.len(), file.size);
                return Err(unreachable(answer.from, problem));
            }
            if n == 0 {
                return Ok(());
            }
            if part.len() + n as u64 > file.size {
                return Err(HubError::Size {
                    file: file.path.clone(),
                    expected: file.size,
                    got: "more bytes".into(),
                }
                .into());
            }
            part.write(&buffer[..n])?;
            exchange.received(n);
            course.reached(part.len());
            self.add(n as u64);
        }
    }

    /// Whether to stop: the caller stopped, or another file failed.
    pub(crate) fn ended(&self) -> bool {
        self.client.stopped() || self.halt.load(Ordering::SeqCst)
    }

    fn add(&self, bytes: u64) {
        self.done.fetch_add(bytes, Ordering::Relaxed);
    }

    fn take_back(&self, bytes: u64) {
        self.done.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// State of a file's download over all attempts.
#[derive(Default)]
struct DownloadCourse {
    /// The furthest position reached. Bytes downloaded again do not count as progress.
    furthest: Cell<u64>,
    /// Number of restarts from the beginning.
    restarts: Cell<u32>,
}

impl DownloadCourse {
    fn reached(&self, position: u64) {
        self.furthest.set(self.furthest.get().max(position));
    }
}

/// Whether the header `Content-Range: bytes 5-9/10` covers a file of `size` bytes from `at` to its
/// end.
fn continues(range: &str, at: u64, size: u64) -> bool {
    let parse = || {
        let (span, total) = range.trim().strip_prefix("bytes")?.trim_start().split_once('/')?;
        let (first, last) = span.split_once('-')?;
        let (first, last): (u64, u64) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        let total = if total.trim() == "*" { size } else { total.trim().parse().ok()? };
        Some(first == at && last.checked_add(1) == Some(size) && total == size)
    };
    parse().unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::continues;

    #[test]
    fn a_range_continues_the_file_or_not() {
        assert!(continues("bytes 5-9/10", 5, 10) && continues("bytes 5-9/*", 5, 10));
        for range in [
            "bytes 0-9/10",
            "bytes 5-8/10",
            "bytes 5-9/11",
            "bytes */10",
            "5-9/10",
            "",
            "bytes 5-18446744073709551615/10",
        ] {
            assert!(!continues(range, 5, 10), "{range}");
        }
    }
}
