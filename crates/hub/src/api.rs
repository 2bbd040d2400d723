//! The hub's API: the commit of a revision, its files, and their addresses.

use crate::answer::{AttemptError, HubResponse, bad, message};
use crate::client::HubClient;
use crate::digest::is_commit;
use crate::error::HubError;
use crate::listing::{RepoFile, TreeEntry};
use crate::paths::escaped;
use crate::repo::Repo;
use serde::Deserialize;

/// Maximum bytes of one JSON response; a page of 1000 files has some 300 kB.
const MAX_JSON: u64 = 32 << 20;

/// Maximum bytes of a listing; a file takes some 300 bytes.
const MAX_LISTING: u64 = 64 << 20;

/// Maximum number of files of a repository.
const MAX_FILES: usize = 100_000;

/// Maximum number of pages of a listing.
const MAX_PAGES: usize = 1000;

/// The subject of a request, for messages.
pub(crate) struct HubQuery<'a> {
    pub(crate) repo: &'a Repo,
    pub(crate) revision: &'a str,
    /// The file of a download.
    pub(crate) file: Option<&'a str>,
}

#[derive(Deserialize)]
struct Revision {
    sha: String,
}

impl HubClient {
    /// The web page of a repository.
    pub(crate) fn page(&self, repo: &Repo) -> String {
        format!("{}/{repo}", self.endpoint)
    }

    /// The commit of a branch or tag.
    pub(crate) fn commit(
        &self,
        repo: &Repo,
        revision: &str,
        note: &dyn Fn(String),
    ) -> Result<String, HubError> {
        let url = format!("{}/api/models/{repo}/revision/{}", self.endpoint, escaped(revision, ""));
        let question = HubQuery { repo, revision, file: None };
        self.persist(note, &|| 0, |exchange| {
            let answer = self.expect_ok(&question, exchange.get(&url, &[])?)?;
            let bytes = exchange.read(answer, MAX_JSON)?;
            let found: Revision = serde_json::from_slice(&bytes).map_err(|error| not_json(&url, &error))?;
            // The commit becomes the name of a folder.
            if is_commit(&found.sha) {
                Ok(found.sha)
            } else {
                Err(bad(&url, "the answer does not contain a commit").into())
            }
        })
    }

    /// All files of a commit.
    pub(crate) fn files(
        &self,
        repo: &Repo,
        commit: &str,
        note: &dyn Fn(String),
    ) -> Result<Vec<RepoFile>, HubError> {
        let url = format!("{}/api/models/{repo}/tree/{commit}", self.endpoint);
        let question = HubQuery { repo, revision: commit, file: None };
        let mut query = "recursive=true".to_owned();
        let mut files = Vec::new();
        // Bytes, files and pages are limited, because a server could list without end.
        let mut left = MAX_LISTING;
        for _ in 0..MAX_PAGES {
            let page = format!("{url}?{query}");
            // Each page has its own attempts, so that an error does not restart the listing.
            let (entries, next, bytes) = self.persist(note, &|| 0, |exchange| {
                let answer = self.expect_ok(&question, exchange.get(&page, &[])?)?;
                let next = next_query(&answer);
                let bytes = exchange.read(answer, MAX_JSON)?;
                let entries: Vec<TreeEntry> =
                    serde_json::from_slice(&bytes).map_err(|error| not_json(&url, &error))?;
                Ok((entries, next, bytes.len() as u64))
            })?;
            let too_long = || bad(&url, &format!("its pages have more than {MAX_LISTING} bytes"));
            left = left.checked_sub(bytes).ok_or_else(too_long)?;
            files.extend(entries.into_iter().filter_map(TreeEntry::into_file));
            if files.len() > MAX_FILES {
                return Err(bad(&url, &format!("it lists more than {MAX_FILES} files")));
            }
            match next {
                None => return Ok(files),
                Some(next) if next == query => return Err(bad(&url, "its next page is the same page")),
                Some(next) => query = next,
            }
        }
        Err(bad(&url, &format!("it lists more than {MAX_PAGES} pages")))
    }

    /// The address of a file's bytes.
    pub(crate) fn address(&self, repo: &Repo, commit: &str, path: &str) -> String {
        format!("{}/{repo}/resolve/{commit}/{}", self.endpoint, escaped(path, "/"))
    }

    /// Converts responses other than 2xx to errors.
    pub(crate) fn expect_ok(
        &self,
        question: &HubQuery<'_>,
        answer: HubResponse,
    ) -> Result<HubResponse, HubError> {
        let code = answer.headers.get("x-error-code").and_then(|code| code.to_str().ok()).unwrap_or_default();
        let repo = question.repo.clone();
        let page = self.page(&repo);
        match (answer.status, code) {
            (200..=299, _) => Ok(answer),
            (404 | 410, "RevisionNotFound") => {
                Err(HubError::NoRevision { repo, revision: question.revision.into() })
            }
            // Mirrors may send no error code.
            (404 | 410, "RepoNotFound" | "") if question.file.is_none() => {
                Err(HubError::NoRepo { repo, page })
            }
            (404 | 410, _) if question.file.is_some() => Err(HubError::NoFile {
                repo,
                file: question.file.unwrap_or_default().into(),
                there: "although the hub lists it: try again later".into(),
            }),
            // Only from the hub itself: from the CDN, 403 means that a signed address has expired.
            (401 | 403, _) if answer.own => Err(HubError::Access {
                gated: code == "GatedRepo",
                message: message(&answer),
                status: answer.status,
                token: self.has_token(),
                repo,
                page,
            }),
            (status, _) => {
                Err(bad(&answer.from, &format!("the server returned status {status}{}", message(&answer))))
            }
        }
    }
}

fn not_json(url: &str, error: &serde_json::Error) -> AttemptError {
    bad(url, &format!("unexpected JSON in the answer: {error}")).into()
}

/// The query of the next page, from the `Link` header. Only the query is used, because mirrors name
/// the hub itself here.
fn next_query(answer: &HubResponse) -> Option<String> {
    let links = answer.headers.get("link")?.to_str().ok()?;
    let next = links.split(',').find(|link| {
        link.split(';').skip(1).any(|part| matches!(part.trim(), "rel=\"next\"" | "rel=next"))
    })?;
    let url = next.split_once('<')?.1.split_once('>')?.0;
    let query = url.split_once('?')?.1;
    Some(query.split('#').next().unwrap_or_default().to_owned())
}
