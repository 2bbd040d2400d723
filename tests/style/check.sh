#!/usr/bin/env bash
# Searches the repository for the patterns of docs/style.md, and counts type names that are defined
# more than once. Usage: check.sh [LATENT] [PATH…]; LATENT is the program whose help is searched as
# well, or - for none.
set -euo pipefail
cd "$(dirname "$0")/../.."
latent=${1:--}
shift || true
[ $# -gt 0 ] || set -- '*.rs' '*.md'
patterns=$(sed -n '/^```patterns$/,/^```$/p' docs/style.md | grep -v '^```' | paste -sd '|')
hits=0
# Test data is third-party text, and exempt.
if git grep -nPi "$patterns" -- "$@" ':!docs/style.md' ':!*/THIRD-PARTY.txt' ':!**/fixtures/**' ':!**/tests/**/data/**'; then hits=1; fi
# Prose of at most 100 columns, outside of code, tables and generated pages.
long=$(git ls-files '*.md' ':!**/fixtures/**' | while read -r file; do
    [ ! -f "$file" ] || LC_ALL=C.UTF-8 sed '/^```/,/^```/d' "$file" | LC_ALL=C.UTF-8 grep -HP --label="$file" '^(?!    |\||\[|\S*$).{101,}' || true
done)
if [ -n "$long" ]; then
    echo "lines of more than 100 columns:"
    echo "$long"
    hits=1
fi
# Comments of at most 100 columns, outside of code, tables and addresses.
long=$(git ls-files '*.rs' ':!**/fixtures/**' | xargs perl -CSD -ne '
    $code = 0 if $. == 1;
    if (m{^\s*//[/!]?\s*```}) { $code = !$code }
    elsif (!$code && m{^\s*//} && length > 101 && !m{^\s*//[/!]?\s*\||https?://}) { print "$ARGV:$.: $_" }
    close ARGV if eof')
if [ -n "$long" ]; then
    echo "comments of more than 100 columns:"
    echo "$long"
    hits=1
fi
if [ "$latent" != - ]; then
    for command in '' $("$latent" help | sed -n 's/^  \([a-z-]\{2,\}\)  .*/\1/p'); do
        # shellcheck disable=SC2086 # an empty $command must vanish: it stands for `latent help`
        if "$latent" help $command | grep -nPi "$patterns" | sed "s/^/latent help $command: /" | grep .; then hits=1; fi
    done
fi
# Type names that several crates may define: Error, Options, Builder, operations of each backend.
most=60
names=$(git grep -hoP '^\s*(pub(\(\w+\))? )?((struct|enum|trait|union)|(?<!\s)type) \K[A-Z]\w*' -- '*.rs' ':!**/tests/**' ':!fuzz/**')
twice=$(sort <<<"$names" | uniq -d)
if [ "$(wc -l <<<"$twice")" -gt $most ]; then
    echo "more than $most names of types are defined more than once:" $twice
    hits=1
fi
if grep -xE 'Part|Place|Piece|Choice|Found|About|Shared|Kind|What|Took|Asked|Kept|Said|Made|Given' <<<"$names"; then
    echo 'a type needs a noun that can be found with grep (docs/style.md)'
    hits=1
fi
exit $hits
