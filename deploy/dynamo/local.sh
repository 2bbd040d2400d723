#!/usr/bin/env bash
# Runs two replicas of a model behind Dynamo's frontend on this machine, without other services:
# deploy/dynamo/local.sh MODEL
#
# Workers find the frontend through a folder (DYN_FILE_KV); requests use TCP. Needs latent-dynamo
# (see integrations/dynamo/README.md) and a Python environment with ai-dynamo==1.6.1. The frontend
# listens on port 8000.
set -euo pipefail
model=$1
here=$(cd "$(dirname "$0")/../.." && pwd)
dynamo_worker=${LATENT_DYNAMO:-$here/integrations/dynamo/target/release/latent-dynamo}
DYN_FILE_KV=${DYN_FILE_KV:-$(mktemp -d)}
export DYN_FILE_KV DYN_DISCOVERY_BACKEND=file DYN_REQUEST_PLANE=tcp DYN_EVENT_PLANE=zmq
# Each replica gets half of the cores.
threads=$((($(nproc) + 1) / 2))

trap 'kill $(jobs -p) 2>/dev/null; wait' EXIT
for _ in 1 2; do
    "$dynamo_worker" --model "$model" --threads "$threads" &
done
# With --migration-limit, the other worker continues the requests of a lost worker.
python3 -m dynamo.frontend --http-port 8000 --router-mode kv --migration-limit 3
