//! `latent licenses`: the licenses of Latent and of its dependencies.

use crate::output;
use anyhow::Result;

/// Latent's own terms. The notices of dependencies follow.
const LATENT_TERMS: &str = "Latent may be used under the terms of the MIT License or of the Apache License, version 2.0, as you choose.
The program contains the Rust standard library and the third-party packages listed here with their licences
(MIT or Apache-2.0).

";

/// Dependencies and their license texts. `crates/cli/tests/cli/licenses` writes the file.
const DEPENDENCY_NOTICES: &str = include_str!("../../THIRD-PARTY.txt");

pub(super) fn run() -> Result<()> {
    output::multiline(&[LATENT_TERMS, DEPENDENCY_NOTICES].concat())
}
