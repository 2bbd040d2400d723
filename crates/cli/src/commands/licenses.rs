//! Under which terms Latent and what it is made from may be used.

use crate::output;
use anyhow::Result;

/// Latent's own terms; the notices of others follow.
const OWN: &str = "Latent may be used under the terms of the MIT License or of the Apache License, version 2.0, as you choose.
The program contains the Rust standard library and the third-party packages listed here with their licences
(MIT or Apache-2.0).

";

/// Packages of others and the texts of their licences: `crates/cli/tests/cli/licenses` writes the file.
const OTHERS: &str = include_str!("../../THIRD-PARTY.txt");

pub(super) fn run() -> Result<()> {
    output::now(&[OWN, OTHERS].concat())
}
