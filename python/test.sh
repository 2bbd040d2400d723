#!/usr/bin/env bash
# Builds the wheel, installs it in fresh virtual environments, and tests it there:
#
#     python/test.sh [PYTHON …]
#
# PYTHON are CPython interpreters, 3.10 or later (default: python3), which share one wheel.
# WHEELS is a folder in which the wheel is kept. MATURIN names maturin; by default the script
# installs it in a virtual environment. Build outputs are in CARGO_TARGET_DIR.
set -euo pipefail
cd "$(dirname "$0")"
[ $# -gt 0 ] || set -- python3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

maturin=${MATURIN:-}
if [ -z "$maturin" ]; then
    "$1" -m venv "$work/build"
    "$work/build/bin/pip" install --quiet --disable-pip-version-check 'maturin==1.16.0'
    maturin=$work/build/bin/maturin
fi
"$maturin" build --release --locked --out "$work/dist"
wheel=$(echo "$work"/dist/*.whl)
[ -z "${WHEELS:-}" ] || { mkdir -p "$WHEELS" && cp "$wheel" "$WHEELS/"; }

for python in "$@"; do
    rm -rf "$work/fresh"
    "$python" -m venv "$work/fresh"
    "$work/fresh/bin/python" --version
    "$work/fresh/bin/pip" install --quiet --disable-pip-version-check "$wheel[test]"
    # Run in another folder, so that Python imports the installed package, not python/latent.
    (cd "$work" && "$work/fresh/bin/pytest" --rootdir "$OLDPWD" -c "$OLDPWD/pyproject.toml" "$OLDPWD/tests")
done
