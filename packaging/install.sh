#!/bin/sh
# Installs latent for the current user, without root:
#
#     curl -fsSL URL/install.sh | sh
#
# Downloads the archive for this machine and SHA256SUMS, verifies the archive, and installs the
# program, man pages and completions below $LATENT_PREFIX [~/.local]. LATENT_BASE_URL is the address
# to download from. LATENT_TARGET selects another archive (x86_64-unknown-linux-musl has the static
# program). To uninstall, remove $LATENT_PREFIX/bin/latent and the other files that this script
# prints.
set -eu

base_url=${LATENT_BASE_URL:-}

fail() {
    echo "install.sh: $1" >&2
    exit 1
}

# All code is in functions, and the last line calls main, so that a truncated download runs nothing.
main() {
    [ -n "$base_url" ] || fail "set LATENT_BASE_URL to the address of a release's files"
    prefix=${LATENT_PREFIX:-${HOME:?}/.local}
    target=${LATENT_TARGET:-$(target)}
    archive=latent-$target.tar.gz
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    trap 'exit 1' HUP INT TERM
    echo "downloading $base_url/$archive"
    fetch "$base_url/SHA256SUMS" "$work/SHA256SUMS"
    fetch "$base_url/$archive" "$work/$archive"
    verify
    (cd "$work" && gzip -dc "$archive" | tar -xf -) || fail "$archive cannot be unpacked"
    from=$(echo "$work"/latent-*-"$target")
    [ -x "$from/latent" ] || fail "$archive holds no program"
    "$from/latent" version >/dev/null 2>"$work/problem" || fail "the program does not run here: $(cat "$work/problem")"
    mkdir -p "$prefix/bin" "$prefix/share/man/man1" "$prefix/share/bash-completion/completions" \
        "$prefix/share/zsh/site-functions" "$prefix/share/fish/vendor_completions.d" ||
        fail "$prefix cannot be written: set LATENT_PREFIX"
    # Rename instead of overwriting: a running program cannot be written to.
    cp "$from/latent" "$prefix/bin/.latent.new"
    chmod 755 "$prefix/bin/.latent.new"
    mv "$prefix/bin/.latent.new" "$prefix/bin/latent"
    cp "$from"/man/*.1 "$prefix/share/man/man1/"
    cp "$from/completions/latent.bash" "$prefix/share/bash-completion/completions/latent"
    cp "$from/completions/_latent" "$prefix/share/zsh/site-functions/_latent"
    cp "$from/completions/latent.fish" "$prefix/share/fish/vendor_completions.d/latent.fish"
    echo "installed $("$prefix/bin/latent" version) as $prefix/bin/latent"
    echo "also: man pages latent*.1 in $prefix/share/man/man1; completions for bash, zsh and fish below $prefix/share"
    case :$PATH: in
    *:"$prefix/bin":*) echo "try: latent run \"Tell me a story.\"" ;;
    *) echo "$prefix/bin is not in PATH: add it, or run $prefix/bin/latent" ;;
    esac
}

# Prints the Rust target of this machine, which is in the name of the archive.
target() {
    machine=$(uname -m)
    case $machine in
    x86_64 | amd64) machine=x86_64 ;;
    aarch64 | arm64) machine=aarch64 ;;
    *) fail "no program is released for $machine: build it with cargo" ;;
    esac
    case $(uname -s) in
    Linux)
        # Without glibc only the static program runs, which has no GPU backend.
        if [ -e /lib/ld-musl-"$machine".so.1 ] && [ -z "$(ls /lib*/ld-linux-* 2>/dev/null)" ]; then
            echo "$machine-unknown-linux-musl"
        else
            echo "$machine-unknown-linux-gnu"
        fi
        ;;
    Darwin) echo "$machine-apple-darwin" ;;
    *) fail "no program is released for $(uname -s): build it with cargo, or download the zip file on Windows" ;;
    esac
}

fetch() {
    if command -v curl >/dev/null; then
        curl -fsSL --retry 3 -o "$2" "$1" || fail "$1 cannot be downloaded"
    elif command -v wget >/dev/null; then
        wget -q -O "$2" "$1" || fail "$1 cannot be downloaded"
    else
        fail "neither curl nor wget is installed"
    fi
}

# Refuses an archive whose checksum is not the one listed.
verify() {
    expected=$(awk -v name="$archive" '$2 == name || $2 == "*" name { print $1 }' "$work/SHA256SUMS")
    [ -n "$expected" ] || fail "SHA256SUMS lists no $archive: this release has no program for $target"
    if command -v sha256sum >/dev/null; then
        got=$(sha256sum "$work/$archive")
    elif command -v shasum >/dev/null; then
        got=$(shasum -a 256 "$work/$archive")
    else
        fail "neither sha256sum nor shasum is installed"
    fi
    got=${got%% *}
    [ "$got" = "$expected" ] || fail "$archive has the checksum $got, expected $expected: nothing was installed"
}

main "$@"
