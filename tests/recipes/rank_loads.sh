#!/bin/bash
# Usage: rank_loads.sh MOEBENCH. Compares the tables of recipes/rank_loads.lua with rank_loads.txt.
# The file of loads is LAER-MoE's and not part of this project; MOE_RANK_LOADS names its folder.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
if [[ ! -f ${MOE_RANK_LOADS:-/nowhere}/token_analysis_backup.csv ]]; then
  echo "skipped: set MOE_RANK_LOADS to the folder of LAER-MoE's token_analysis_backup.csv"
  exit 0
fi
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
"$1" run --read "$MOE_RANK_LOADS" --out "$out/run" "$here/../../recipes/rank_loads.lua" > "$out/text"
sed -n '/on 32 A100/,/^Results/p' "$out/text" | grep -v '^Results' > "$out/tables"
diff "$here/rank_loads.txt" "$out/tables"
