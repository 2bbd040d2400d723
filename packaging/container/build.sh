#!/bin/sh
# Makes a container image of a built program: only the program and its shared libraries.
#
#   cargo build --release
#   packaging/container/build.sh [TAG]     default tag: latent:latest
#
# Uses $BUILDER, or else buildah, podman or docker. Downloads nothing: the image has no base image.
# See docs/deploying.md.
set -eu
cd "$(dirname "$0")/../.."
tag=${1:-latent:latest}
program=${CARGO_TARGET_DIR:-target}/release/latent
[ -x "$program" ] || { echo "$program is not there: run cargo build --release first" >&2; exit 1; }

builder=${BUILDER:-}
for found in buildah podman docker; do
    [ -n "$builder" ] || ! command -v "$found" >/dev/null || builder=$found
done
[ -n "$builder" ] || { echo "no buildah, podman or docker: install one, or name one with BUILDER=…" >&2; exit 1; }

context=$(mktemp -d)
trap 'rm -rf "$context"' EXIT
root=$context/rootfs
mkdir -p "$root/usr/bin" "$root/etc/ssl/certs" "$root/tmp" "$root/models"
chmod 1777 "$root/tmp"
cp "$program" "$root/usr/bin/latent"
# ldd prints "libc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x…)", and for the loader
# "/lib64/ld-linux-x86-64.so.2 (0x…)".
ldd "$program" | sed -n 's/^.*=> \(\/[^ ]*\) (.*$/\1/p; s/^[[:space:]]*\(\/[^ ]*\) (.*$/\1/p' | while read -r library; do
    mkdir -p "$root$(dirname "$library")"
    cp -L "$library" "$root$library"
done
# Certificates to download models of the hub. Without them an image serves local files only.
certificates=/etc/ssl/certs/ca-certificates.crt
[ ! -r "$certificates" ] || cp -L "$certificates" "$root$certificates"
cp packaging/container/Containerfile "$context/Containerfile"

case $builder in
*buildah) set -- bud --isolation chroot ;;
*) set -- build ;;
esac
"$builder" "$@" -t "$tag" -f "$context/Containerfile" "$context"
