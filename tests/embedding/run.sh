#!/usr/bin/env bash
# A new project outside the workspace depends on the crate `latent` by path and runs the first program of docs/rust.md.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
# its own target folder, so that the next build of the workspace finds its own, kept so that the next run is fast
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$root/target}/embedding
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
cargo new --quiet --vcs none hello
cd hello
cargo add --quiet --offline latent --path "$root/crates/latent" --features demo ||
    cargo add --quiet latent --path "$root/crates/latent" --features demo
# the versions that the workspace is tested with
cp "$root/Cargo.lock" .
# the first program of the page, as it stands there
awk '/^```rust$/ { inside = 1; next } /^```$/ && inside { exit } inside' "$root/docs/rust.md" >src/main.rs
grep -q 'fn main' src/main.rs
# unoptimized, as a new user builds it: that takes a third of the time that optimized kernels take to compile
printf '\n[profile.dev]\ndebug = false\n' >>Cargo.toml
minimal=$(cargo tree --quiet --no-default-features --edges normal --prefix none | sed 's/ (.*//' | sort -u | wc -l)
echo "crates of a minimal build, with the program: $minimal"
# 45, and the program
test "$minimal" -le 46
cargo build --quiet
start=$SECONDS
output=$(cargo run --quiet)
echo "$output"
echo "ran in $((SECONDS - start)) s"
test "$(wc -w <<<"$output")" -gt 30
grep -qE '^[0-9]+ tokens, stopped by (end|length)$' <<<"$output"
