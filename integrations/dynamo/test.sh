#!/usr/bin/env bash
# Builds the worker with an unoptimised Dynamo (15 minutes on two cores the first time), and runs
# its Rust tests and a test of two workers behind Dynamo's frontend, which pip installs in a virtual
# environment under $TMPDIR. CI runs this script if DYNAMO=1 is set.
set -euo pipefail
cd "$(dirname "$0")"
for needed in protoc cmake python3; do
    command -v "$needed" >/dev/null || { echo "missing $needed (Debian: protobuf-compiler cmake python3-venv)" >&2; exit 1; }
done
cargo test
environment=${TMPDIR:-/tmp}/latent-dynamo
[ -x "$environment/bin/pip" ] || python3 -m venv "$environment"
"$environment/bin/pip" install --quiet --disable-pip-version-check --no-deps ai-dynamo==1.6.1 ai-dynamo-runtime==1.6.1
"$environment/bin/pip" install --quiet --disable-pip-version-check -r tests/requirements.txt
"$environment/bin/python" tests/frontend.py
