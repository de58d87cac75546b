#!/usr/bin/env bash
# test.sh [ctest option...]: installs missing packages (on Debian 12), builds everything in
# build/release, and runs all tests. The exit status is that of ctest.
set -euo pipefail
# shellcheck source=scripts/setup.sh
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
ensure_test_needs
build_release all
exec ctest --test-dir "$build" --output-on-failure -j2 "$@"
