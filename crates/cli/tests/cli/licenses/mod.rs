//! The notices of third parties, which `latent licenses` prints, name exactly the packages that the
//! program is made from; so do those of the C library, the Python package and the page.
//!
//! `UPDATE_LICENSES=1 cargo test --release -p latent-cli --test cli licenses` writes them anew,
//! from what cargo knows of all platforms.

mod locked;
mod notices;
mod spdx;

use std::collections::BTreeSet;
use std::sync::OnceLock;

const ANEW: &str = "UPDATE_LICENSES=1 cargo test --release -p latent-cli --test cli licenses";

/// What is made from packages of others, and the file with their notices.
const PROGRAMS: [(&str, &str); 4] = [
    ("latent-cli", "crates/cli/THIRD-PARTY.txt"),
    ("latent-capi", "crates/capi/THIRD-PARTY.txt"),
    ("latent-python", "python/THIRD-PARTY.txt"),
    ("latent-web", "crates/web/THIRD-PARTY.txt"),
];

/// Whether the files are to be written anew.
fn updating() -> bool {
    std::env::var_os("UPDATE_LICENSES").is_some()
}

/// The notices of each program.
fn committed() -> &'static [(&'static str, String)] {
    static TEXTS: OnceLock<Vec<(&str, String)>> = OnceLock::new();
    TEXTS.get_or_init(|| {
        let read = |(program, path)| {
            let file = locked::root().join(path);
            if updating() {
                std::fs::write(&file, notices::make(program)).unwrap();
            }
            (program, std::fs::read_to_string(file).unwrap())
        };
        PROGRAMS.into_iter().map(read).collect()
    })
}

#[test]
fn the_notices_name_the_packages_of_the_lock_file() {
    for (program, notices) in committed() {
        let named = notices::packages(notices);
        let locked = locked::packages(program);
        let missing: Vec<_> = locked.difference(&named).collect();
        let gone: Vec<_> = named.difference(&locked).collect();
        assert!(
            missing.is_empty() && gone.is_empty(),
            "THIRD-PARTY.txt of {program} lacks {missing:?} and names {gone:?}, which Cargo.lock has not: run {ANEW}"
        );
        assert!(named.len() > 50, "{program}: {}", named.len());
    }
}

#[test]
fn every_package_has_the_text_of_a_licence() {
    for (program, notices) in committed() {
        assert!(notices.len() < 200 << 10, "{program}: {} bytes", notices.len());
        let linked: BTreeSet<_> = notices::linked(notices);
        let covered = notices::covered(notices);
        assert_eq!(linked, covered, "{program}");
        for begin in ["Apache License", "Permission is hereby granted, free of charge"] {
            assert!(notices.contains(begin), "{program}: {begin}");
        }
    }
}

#[test]
fn licenses_prints_the_notices() {
    let output = assert_cmd::Command::cargo_bin("latent").unwrap().arg("licenses").output().unwrap();
    assert!(output.status.success());
    let printed = String::from_utf8(output.stdout).unwrap();
    assert!(
        printed.starts_with("Latent may be used under the terms of the MIT License or of the Apache License"),
        "{printed}"
    );
    // a program that was built before the file was written prints the file of before
    assert!(updating() || printed.ends_with(&committed()[0].1));
}
