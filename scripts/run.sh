#!/usr/bin/env bash
# run.sh RECIPE [option...]: installs missing packages (on Debian 12), builds moebench in
# build/release, and runs the recipe. The exit status is that of `moebench run`.
set -euo pipefail
if [ $# -eq 0 ]; then
  echo "usage: $0 RECIPE.lua [--set key=value] [--executor NAME] [--ranks N] [--out DIR] ..." >&2
  exit 2
fi
# shellcheck source=scripts/setup.sh
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
ensure_build_needs
build_release moebench
exec "$build/moebench" run "$@"
