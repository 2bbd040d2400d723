#!/usr/bin/env bash
# Builds the wheel, installs it in fresh virtual environments, and tests it there:
#
#     python/test.sh [PYTHON …]
#
# WHEELS names a folder that the wheel is kept in. PYTHON are interpreters from CPython 3.10 on (python3, where none is given): one wheel serves them all. MATURIN in the environment names a
# maturin; without it, one is installed in a virtual environment. What is compiled goes where cargo puts it (CARGO_TARGET_DIR).
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
    # from another folder, so that the installed package is what is imported
    (cd "$work" && "$work/fresh/bin/pytest" --rootdir "$OLDPWD" -c "$OLDPWD/pyproject.toml" "$OLDPWD/tests")
done
