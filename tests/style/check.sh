#!/usr/bin/env bash
# Searches the texts of the repository for the patterns of docs/style.md. Usage: check.sh [LATENT] [PATH…]; LATENT is the program whose
# help is searched too, or - for none.
set -euo pipefail
cd "$(dirname "$0")/../.."
latent=${1:--}
shift || true
[ $# -gt 0 ] || set -- '*.rs' '*.md'
patterns=$(sed -n '/^```patterns$/,/^```$/p' docs/style.md | grep -v '^```' | paste -sd '|')
hits=0
# data of tests is what others wrote
if git grep -nPi "$patterns" -- "$@" ':!docs/style.md' ':!*/THIRD-PARTY.txt' ':!**/fixtures/**' ':!**/tests/**/data/**'; then hits=1; fi
if [ "$latent" != - ]; then
    for command in '' $("$latent" help | sed -n 's/^  \([a-z-]\{2,\}\)  .*/\1/p'); do
        # shellcheck disable=SC2086 # no command is the whole program's help
        if "$latent" help $command | grep -nPi "$patterns" | sed "s/^/latent help $command: /" | grep .; then hits=1; fi
    done
fi
exit $hits
