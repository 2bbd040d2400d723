#!/usr/bin/env bash
# Builds a folder for a web server: the page of docs/web/, its WebAssembly module, the demo model.
#
#   crates/web/build.sh [FOLDER]     default: target/web
set -euo pipefail
cd "$(dirname "$0")/../.."
target=${CARGO_TARGET_DIR:-target}
folder=${1:-$target/web}

cargo build --profile web --target wasm32-unknown-unknown -p latent-web --lib
cargo build --release -p latent-web --features bindgen --bin bindgen
mkdir -p "$folder/pkg"
cp docs/web/*.html docs/web/*.css docs/web/*.js docs/web/*.svg "$folder/"
"$target/release/bindgen" "$target/wasm32-unknown-unknown/web/latent_web.wasm" "$folder/pkg"
cp crates/web/THIRD-PARTY.txt "$folder/licences.txt"
cp models/mla-demo-Q4_K_M.gguf "$folder/pkg/demo.gguf"
printf 'module: %s bytes, %s compressed; serve it with: python3 -m http.server -d %s\n' \
    "$(stat -c %s "$folder/pkg/latent_bg.wasm")" "$(gzip -9c "$folder/pkg/latent_bg.wasm" | wc -c)" "$folder"
