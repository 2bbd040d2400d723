#!/usr/bin/env bash
# Serves one model that several hosts share: one rank a host, rank 0 on this one, which speaks HTTP.
#
#   deploy/mpi/serve.sh HOSTS MODEL [further flags of `latent serve`]
#
# HOSTS is a file with a name per line, this host's first (see hosts beside this script). Each host has the program (built with --features mpi) and
# the model at the same paths, and takes ssh from here without a password. LATENT is the program; keys are in the environment, as for `latent serve`.
set -euo pipefail
hosts=$1 model=$2
shift 2
ranks=$(grep -cE '^[^#[:space:]]' "$hosts")
program=${LATENT:-$(cd "$(dirname "$0")/../.." && pwd)/target/release/latent}
root=()
[ "$(id -u)" != 0 ] || root=(--allow-run-as-root)
exec mpirun "${root[@]}" -n "$ranks" --hostfile "$hosts" --map-by ppr:1:node --bind-to none \
    "$program" serve -m "$model" --partition "pipeline=$ranks" "$@"
