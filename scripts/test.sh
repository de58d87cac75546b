#!/usr/bin/env bash
# test.sh [--slow] [ctest option...]: installs missing packages (on Debian 12), builds everything in
# build/release, and runs all tests; the longer versions of quick ones (label slow), and the GPU's
# plugin and its tests, which take eight minutes of two cores, with --slow alone. The exit status is
# that of ctest.
set -euo pipefail
# shellcheck source=scripts/setup.sh
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
left_out=(-LE '^slow$')
device_tests=OFF
if [[ ${1-} == --slow ]]; then
  left_out=()
  device_tests=ON
  shift
fi
ensure_test_needs
build_release all -DMOE_DEVICE_TESTS=$device_tests
exec ctest --test-dir "$build" --output-on-failure -j2 "${left_out[@]}" "$@"
