//! Pulls from a test hub on loopback.
#![allow(missing_docs, reason = "tests")]

#[path = "../support/mod.rs"]
mod support;

mod access;
mod cache;
mod misdeeds;
mod no_progress;
mod pulls;
mod tls;

use latent_hub::{
    HubError, HubSettings, LocalModel, PullEvent, PullResult, QuantPolicy, find, pull, pull_with,
};
use std::path::{Path, PathBuf};
use std::time::Duration;
use support::Hub;

/// A temporary cache folder.
struct CacheFixture {
    folder: tempfile::TempDir,
    settings: HubSettings,
}

impl CacheFixture {
    fn new(hub: &Hub) -> CacheFixture {
        CacheFixture::with(&hub.url, &[])
    }

    fn with(endpoint: &str, variables: &[(&str, &str)]) -> CacheFixture {
        let folder = tempfile::tempdir().unwrap();
        let home = folder.path().as_os_str().to_owned();
        let mut settings = HubSettings::from_variables(&|name| match name {
            "HOME" => Some(home.clone()),
            "HF_ENDPOINT" => Some(endpoint.into()),
            _ => variables.iter().find(|(other, _)| *other == name).map(|(_, value)| (*value).into()),
        })
        .unwrap();
        settings.backoff = Duration::from_millis(5);
        settings.idle = Duration::from_secs(10);
        CacheFixture { folder, settings }
    }

    fn pull(&self, reference: &str) -> Result<PullResult, HubError> {
        self.pull_with(reference, &mut |_| true)
    }

    fn pull_with(
        &self,
        reference: &str,
        report: &mut dyn FnMut(PullEvent) -> bool,
    ) -> Result<PullResult, HubError> {
        pull(&self.settings, &reference.parse()?, report)
    }

    /// The error of a pull that must fail. No file may then have its final name.
    fn fails(&self, reference: &str) -> HubError {
        let error = self.pull(reference).expect_err("it should fail");
        let files = self.files();
        let stray = files.iter().find(|path| !path.starts_with("parts/") && *path != "lock");
        assert_eq!(stray, None, "{error}: {files:?}");
        error
    }

    fn find(&self, reference: &str) -> Option<LocalModel> {
        find(&self.settings, &reference.parse().unwrap()).unwrap()
    }

    /// The folder of the repository `o/n`.
    fn repo(&self) -> PathBuf {
        self.folder.path().join(".cache/latent/hub/o/n")
    }

    /// The files of the repository `o/n`.
    fn files(&self) -> Vec<String> {
        let mut files = Vec::new();
        walk(&self.repo(), &self.repo(), &mut files);
        files.sort();
        files
    }
}

fn walk(root: &Path, folder: &Path, files: &mut Vec<String>) {
    for entry in std::fs::read_dir(folder).into_iter().flatten() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            walk(root, &path, files);
        } else {
            files.push(path.strip_prefix(root).unwrap().to_str().unwrap().to_owned());
        }
    }
}
