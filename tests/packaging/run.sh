#!/bin/sh
# Tests packaging/: systemd accepts the unit, a release can be made, installed and run, and the
# program in the image answers. Needs target/release/latent. WHEEL names a wheel of the Python
# package to test as well. Prints what it could not test.
set -eu
cd "$(dirname "$0")/../.."
program=$(cd "${CARGO_TARGET_DIR:-target}/release" && pwd)/latent

if command -v systemd-analyze >/dev/null; then
    unit=$(mktemp -d)
    # systemd-analyze requires the program to exist, and it is not installed on this machine.
    sed "s|/usr/local/bin/latent|$program|" packaging/systemd/latent.service >"$unit/latent.service"
    found=$(systemd-analyze verify "$unit/latent.service" 2>&1 | grep latent || true)
    rm -r "$unit"
    [ -z "$found" ] || { echo "$found" >&2; exit 1; }
    echo "systemd: the unit is accepted"
else
    echo "SKIPPED: no systemd-analyze"
fi

work=$(mktemp -d)
cleanup() {
    [ -z "${http:-}" ] || kill "$http" 2>/dev/null || true
    [ -z "${merged:-}" ] || umount "$merged/dev" "$merged/proc" "$merged" "$work/upper" 2>/dev/null || true
    # If unmounting failed, keep the folder: rm would delete files below the mount.
    mountpoint -q "$work/merged" 2>/dev/null || mountpoint -q "$work/upper" 2>/dev/null || rm -rf "$work"
}
trap cleanup EXIT
fail() {
    echo "$1" >&2
    exit 1
}
# Checks that a program answers with a story.
answers() {
    words=$("$@" run -q --seed 1 "Tell me a story about a fox." | wc -w)
    [ "$words" -gt 30 ] || fail "$* answered with $words words"
}

# Makes a release of this program. All tools that do so need Python.
if ! command -v python3 >/dev/null; then
    echo "SKIPPED: no python3: no release is made"
else
    # gzip, since xz, the default, takes long.
    DEB_COMPRESSION=gzip PROGRAM=$program packaging/release "$work/release" archive sbom
    archive=$(ls "$work/release" | grep '\.tar\.gz$')
    python3 - "$work"/release/*.cdx.json <<'PYTHON'
import json, sys
document = json.load(open(sys.argv[1]))
names = {component["name"] for component in document["components"]}
refs = {component["bom-ref"] for component in document["components"]}
assert document["metadata"]["component"]["type"] == "application"
assert {"clap", "serde", "latent-engine"} <= names and len(names) > 100, len(names)
assert len(refs) == len(document["components"]), "two components have one reference"
# Dependencies of tests must not be listed.
assert not names & {"proptest", "insta", "assert_cmd"}, names
PYTHON
    # A static program has no GPU backend.
    python3 packaging/sbom.py x86_64-unknown-linux-musl --no-default-features --features demo,tls >"$work/static.json"
    grep -q '"name": "clap"' "$work/static.json" || fail "the packages of a static program lack clap"
    ! grep -q '"name": "wgpu' "$work/static.json" || fail "a static program links wgpu"
    # A stand-in for the static program: a statically linked launcher of this build's program.
    printf '#include <stdlib.h>\n#include <unistd.h>\nint main(int c, char **v) { (void)c; return execv(getenv("BUILT"), v); }\n' >"$work/static.c"
    if command -v objdump >/dev/null && cc -static -o "$work/static" "$work/static.c" 2>/dev/null; then
        BUILT=$program PROGRAM=$work/static TARGET=x86_64-unknown-linux-musl packaging/release "$work/static-release" archive
        [ -s "$work/static-release/latent-x86_64-unknown-linux-musl.tar.gz" ] || fail "no archive of a static program"
    else
        echo "SKIPPED: no objdump or no static C library: no archive of a static program"
    fi
    PROGRAM=$program packaging/release "$work/release" sums >/dev/null
    (cd "$work/release" && sha256sum --quiet --check SHA256SUMS) || fail "SHA256SUMS does not hold"

    # Test install.sh with a server on loopback.
    : >"$work/http"
    (cd "$work/release" && exec python3 -u -m http.server 0 --bind 127.0.0.1 >"$work/http" 2>&1) &
    http=$!
    port=''
    for _ in $(seq 100); do
        port=$(sed -n 's/.*port \([0-9]*\).*/\1/p' "$work/http")
        [ -z "$port" ] || break
        sleep 0.1
    done
    [ -n "$port" ] || fail "no server on loopback"
    export LATENT_BASE_URL=http://127.0.0.1:$port
    LATENT_PREFIX=$work/user sh "$work/release/install.sh" >/dev/null
    answers "$work/user/bin/latent"
    [ -s "$work/user/share/man/man1/latent-run.1" ] || fail "install.sh installed no man pages"
    # Install again, over the existing files.
    LATENT_PREFIX=$work/user sh "$work/release/install.sh" >/dev/null
    # install.sh must refuse a modified archive and a missing one.
    cp "$work/release/$archive" "$work/archive"
    printf x >>"$work/release/$archive"
    if problem=$(LATENT_PREFIX=$work/other sh "$work/release/install.sh" 2>&1); then fail "a changed archive was installed"; fi
    echo "$problem" | grep -q "has the checksum" || fail "$problem"
    rm "$work/release/$archive"
    if LATENT_PREFIX=$work/other sh "$work/release/install.sh" >/dev/null 2>&1; then fail "nothing was downloaded, and all is well"; fi
    [ ! -e "$work/other" ] || fail "something was installed"
    mv "$work/archive" "$work/release/$archive"
    kill "$http"
    http=''
    packaging/manifests "$work/release" "$LATENT_BASE_URL" https://example.org "$work/manifests" >/dev/null
    grep -q "$(sha256sum <"$work/release/$archive" | cut -d' ' -f1)" "$work/manifests/latent.rb" || fail "the formula has another checksum"
    echo "release: $archive, installed by install.sh"

    if [ -n "${WHEEL:-}" ]; then
        PROGRAM=$program WHEEL=$WHEEL packaging/release "$work/release" wheel
        python3 -m venv "$work/venv"
        # --no-deps: numpy would be downloaded, and this test does not need it.
        "$work/venv/bin/pip" install --quiet --disable-pip-version-check --no-deps "$work"/release/*.whl
        answers "$work/venv/bin/latent"
        echo "wheel: its command answers"
    else
        echo "SKIPPED: WHEEL names no wheel"
    fi
fi

# Installs the Debian package with dpkg in an overlay over this system, which stays unchanged, and
# runs the service as the unit does.
merged=''
if ! command -v dpkg-deb >/dev/null || ! command -v objdump >/dev/null; then
    echo "SKIPPED: no dpkg-deb or objdump: no package for Debian"
else
    DEB_COMPRESSION=gzip PROGRAM=$program packaging/release "$work/release" deb
    deb=$(ls "$work"/release/*.deb)
    dpkg-deb --info "$deb" | grep -q 'Depends: libc6' || fail "the package names no library"
    mkdir "$work/upper" "$work/work" "$work/merged"
    # A tmpfs for the upper layer: overlayfs cannot use another overlay as its upper layer.
    if [ "$(id -u)" = 0 ] && mount -t tmpfs tmpfs "$work/upper" 2>/dev/null; then
        mkdir "$work/upper/u" "$work/upper/w"
        if mount -t overlay overlay -o "lowerdir=/,upperdir=$work/upper/u,workdir=$work/upper/w" "$work/merged" 2>/dev/null; then
            merged=$work/merged
            mount --bind /dev "$merged/dev"
            mount --bind /proc "$merged/proc"
        else
            umount "$work/upper"
        fi
    fi
    if [ -z "$merged" ]; then
        dpkg-deb -x "$deb" "$work/merged"
        answers "$work/merged/usr/bin/latent"
        echo "SKIPPED: no overlay (or not root): the package was unpacked, not installed"
    else
        cp "$deb" "$merged/tmp/latent.deb"
        chroot "$merged" dpkg -i /tmp/latent.deb >/dev/null
        [ "$(stat -c %a "$merged/etc/latent/api-keys")" = 600 ] || fail "the keys of the service can be read by others"
        answers chroot "$merged" latent
        start=$(sed -n 's/^ExecStart=//p' "$merged/lib/systemd/system/latent.service")
        mkdir -p "$merged/tmp/cache"
        # Use the environment of the unit, and any free port.
        sed -i 's/^port = .*/port = 0/' "$merged/etc/latent/latent.toml"
        : >"$work/service"
        chroot "$merged" env LATENT_API_KEY_FILE=/etc/latent/api-keys LATENT_CACHE=/tmp/cache sh -c "exec $start" >"$work/service" 2>&1 &
        http=$!
        address=''
        for _ in $(seq 300); do
            address=$(sed -n 's|.*\(http://127.0.0.1:[0-9]*\).*|\1|p' "$work/service" | head -n 1)
            [ -z "$address" ] || break
            sleep 0.1
        done
        [ -n "$address" ] || fail "the service does not start: $(cat "$work/service")"
        python3 - "$address" "$merged/etc/latent/api-keys" <<'PYTHON'
import json, sys, urllib.error, urllib.request
address, key = sys.argv[1], open(sys.argv[2]).read().strip()
def models(headers):
    return urllib.request.urlopen(urllib.request.Request(address + "/v1/models", headers=headers), timeout=20)
assert json.load(models({"Authorization": "Bearer " + key}))["data"]
try:
    models({})
    sys.exit("the service answers without a key")
except urllib.error.HTTPError as error:
    assert error.code == 401, error.code
PYTHON
        kill "$http"
        wait "$http" 2>/dev/null || true
        http=''
        chroot "$merged" dpkg --purge latent >/dev/null 2>&1
        [ ! -e "$merged/etc/latent" ] && [ ! -e "$merged/usr/bin/latent" ] || fail "something is left after dpkg --purge"
        umount "$merged/dev" "$merged/proc" "$merged"
        merged=''
        umount "$work/upper"
        echo "deb: installed, its service answered, purged"
    fi
fi

if ! command -v buildah >/dev/null || [ "$(id -u)" != 0 ]; then
    echo "SKIPPED: no buildah, or not root: the container image is not built"
    exit 0
fi
export STORAGE_DRIVER=vfs
tag=latent-test:$$
BUILDER=buildah packaging/container/build.sh "$tag" >/dev/null
container=$(buildah from "$tag")
trap 'buildah rm "$container" >/dev/null; buildah rmi "$tag" >/dev/null; cleanup' EXIT
root=$(buildah mount "$container")
# Run as the image's user, with only the files of the image.
answers chroot --userspec=65532:65532 "$root" /usr/bin/latent
echo "container: $(buildah images --format '{{.Size}}' "$tag"), answered with $words words"
