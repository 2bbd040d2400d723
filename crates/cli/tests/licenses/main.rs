//! The notices of third parties, which `latent licenses` prints, name exactly the packages that the program is made from.
//!
//! `UPDATE_LICENSES=1 cargo test --release -p latent --test licenses` writes them anew, from what cargo knows of all platforms.
#![allow(missing_docs, reason = "tests")]

mod locked;
mod notices;
mod spdx;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

const ANEW: &str = "UPDATE_LICENSES=1 cargo test --release -p latent --test licenses";

fn file() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("THIRD-PARTY.txt")
}

/// Whether the file is to be written anew.
fn updating() -> bool {
    std::env::var_os("UPDATE_LICENSES").is_some()
}

fn committed() -> &'static str {
    static TEXT: OnceLock<String> = OnceLock::new();
    TEXT.get_or_init(|| {
        if updating() {
            std::fs::write(file(), notices::make()).unwrap();
        }
        std::fs::read_to_string(file()).unwrap()
    })
}

#[test]
fn the_notices_name_the_packages_of_the_lock_file() {
    let named = notices::packages(committed());
    let locked = locked::packages();
    let missing: Vec<_> = locked.difference(&named).collect();
    let gone: Vec<_> = named.difference(&locked).collect();
    assert!(
        missing.is_empty() && gone.is_empty(),
        "THIRD-PARTY.txt lacks {missing:?} and names {gone:?}, which Cargo.lock has not: run {ANEW}"
    );
    assert!(named.len() > 50, "{}", named.len());
}

#[test]
fn every_package_has_the_text_of_a_licence() {
    let notices = committed();
    assert!(notices.len() < 200 << 10, "{} bytes", notices.len());
    let linked: BTreeSet<_> = notices::linked(notices);
    let covered = notices::covered(notices);
    assert_eq!(linked, covered);
    for begin in
        ["Apache License", "Permission is hereby granted, free of charge", "The origin of this software"]
    {
        assert!(notices.contains(begin), "{begin}");
    }
}

#[test]
fn the_program_prints_them() {
    let output = assert_cmd::Command::cargo_bin("latent").unwrap().arg("licenses").output().unwrap();
    assert!(output.status.success());
    let printed = String::from_utf8(output.stdout).unwrap();
    assert!(
        printed.starts_with("Latent may be used under the terms of the MIT License or of the Apache License"),
        "{printed}"
    );
    // a program that was built before the file was written prints the file of before
    assert!(updating() || printed.ends_with(committed()));
}
