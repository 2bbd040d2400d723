//! The `latent` program.

fn main() {}
