//! Features of third-party crates that the whole workspace shares. See `Cargo.toml`.
