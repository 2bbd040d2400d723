#!/usr/bin/env bash
# Creates a project outside of the workspace that depends on the crate `latent` by path, and runs
# the first program of docs/rust.md in it.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
# A separate target folder, kept between runs, so that the workspace is not rebuilt afterwards.
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$root/target}/embedding
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
cargo new --quiet --vcs none hello
cd hello
cargo add --quiet --offline latent --path "$root/crates/latent" --features demo ||
    cargo add --quiet latent --path "$root/crates/latent" --features demo
# Use the dependency versions that the workspace is tested with.
cp "$root/Cargo.lock" .
# Extract the first program of the page, unchanged.
awk '/^```rust$/ { inside = 1; next } /^```$/ && inside { exit } inside' "$root/docs/rust.md" >src/main.rs
grep -q 'fn main' src/main.rs
# An unoptimized build, as a new user makes it, takes a third of the time of an optimized one.
printf '\n[profile.dev]\ndebug = false\n' >>Cargo.toml
minimal=$(cargo tree --quiet --no-default-features --edges normal --prefix none | sed 's/ (.*//' | sort -u | wc -l)
echo "crates of a minimal build, with the program: $minimal"
# 45 crates and the program itself.
test "$minimal" -le 46
cargo build --quiet
start=$SECONDS
output=$(cargo run --quiet)
echo "$output"
echo "ran in $((SECONDS - start)) s"
test "$(wc -w <<<"$output")" -gt 30
grep -qE '^[0-9]+ tokens, stopped by (end|length)$' <<<"$output"
