#!/usr/bin/env bash
# Serves one model on several hosts: one rank per host. Rank 0, on this host, speaks HTTP.
#
#   deploy/mpi/serve.sh HOSTS MODEL [further flags of `latent serve`]
#
# HOSTS is a file with one name per line, this host first (see `hosts` in this folder). Each host
# needs the program (built with --features mpi) and the model at the same paths, and must accept ssh
# from this host without a password. LATENT names the program. API keys come from the environment,
# as for `latent serve`.
set -euo pipefail
hosts=$1 model=$2
shift 2
ranks=$(grep -cE '^[^#[:space:]]' "$hosts")
program=${LATENT:-$(cd "$(dirname "$0")/../.." && pwd)/target/release/latent}
root=()
[ "$(id -u)" != 0 ] || root=(--allow-run-as-root)
exec mpirun "${root[@]}" -n "$ranks" --hostfile "$hosts" --map-by ppr:1:node --bind-to none \
    "$program" serve -m "$model" --partition "pipeline=$ranks" "$@"
