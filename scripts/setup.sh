# shellcheck shell=bash
# Sourced by run.sh and test.sh: finds or installs the packages that the build needs, and builds.
# Messages go to stderr, since stdout is for the output of the program that is run.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
build=$root/build/release

# Names of Debian packages, each with a check for systems without dpkg (see has_probe); '-' means
# that the package is useful but not required there.
build_needs=(
  "g++ command:g++" "cmake command:cmake" "ninja-build command:ninja" "ccache -"
  "pkg-config command:pkg-config" "libluajit-5.1-dev module:luajit"
  "libcli11-dev header:CLI/CLI.hpp" "catch2 header:catch2/catch.hpp"
  "nlohmann-json3-dev header:nlohmann/json.hpp" "libfmt-dev header:fmt/format.h"
  "libopenblas-dev module:openblas" "libsqlite3-dev header:sqlite3.h"
  "libnlopt-dev module:nlopt" "libjemalloc-dev module:jemalloc" "libedit-dev -" "libopenmpi-dev -"
  "openmpi-bin -"
)
test_needs=("lua-check -" "clang-format -" "shellcheck -" "python3 command:python3")

say() { printf '%s\n' "$*" >&2; }

is_debian_12() {
  [ -r /etc/os-release ] && (. /etc/os-release && [ "${ID:-}:${VERSION_ID:-}" = debian:12 ])
}

has_package() {
  [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" = installed ]
}

# has_probe CHECK: whether the command, pkg-config module or header is installed. CHECK is
# command:NAME, module:NAME, header:PATH, or - (always true).
has_probe() {
  case $1 in
    command:*) command -v "${1#*:}" >/dev/null ;;
    module:*) pkg-config --exists "${1#*:}" 2>/dev/null ;;
    header:*) printf '#include <%s>\n' "${1#*:}" | g++ -std=c++20 -E -x c++ - >/dev/null 2>&1 ;;
    -) true ;;
  esac
}

# install PACKAGE...: installs packages by apt-get; if that fails, refreshes the package lists and
# tries once more.
install() {
  local apt=(env DEBIAN_FRONTEND=noninteractive apt-get)
  if [ "$(id -u)" -ne 0 ]; then
    if ! command -v sudo >/dev/null; then
      say "cannot install without root or sudo: $*"
      return 1
    fi
    apt=(sudo "${apt[@]}")
  fi
  say "installing: $*"
  "${apt[@]}" install -y --no-install-recommends "$@" >&2 && return
  say "refreshing the package lists and trying once more"
  "${apt[@]}" update >&2 || say "some package lists could not be refreshed"
  "${apt[@]}" install -y --no-install-recommends "$@" >&2
}

# ensure_needs NEED...: NEED is an entry of the lists above. Installs missing packages on Debian 12.
# If some are still missing, prints which and returns 1.
ensure_needs() {
  local need missing=() all=()
  local debian=false
  if is_debian_12; then debian=true; fi
  for need in "$@"; do
    all+=("${need%% *}")
    if $debian; then
      has_package "${need%% *}" || missing+=("${need%% *}")
    else
      has_probe "${need#* }" || missing+=("${need%% *}")
    fi
  done
  if [ ${#missing[@]} -eq 0 ]; then return 0; fi
  if $debian; then
    install "${missing[@]}" || return 1
    return 0
  fi
  say "This is not Debian 12, so nothing is installed. Needed, by Debian's names:"
  say "  ${all[*]}"
  say "Not found here:"
  say "  ${missing[*]}"
  return 1
}

ensure_build_needs() { ensure_needs "${build_needs[@]}"; }
ensure_test_needs() { ensure_needs "${build_needs[@]}" "${test_needs[@]}"; }

# get_cudnn_frontend: where there is a CUDA compiler, fetches cudnn-frontend, the headers with which
# the plugin uses cuDNN's attention. Without them its plain kernels compute all attention.
get_cudnn_frontend() {
  local to=$root/build/cudnn_frontend
  if [ -e "$to/include" ] || ! command -v nvcc >/dev/null; then return; fi
  python3 -m pip install --quiet --no-deps --target "$to" nvidia-cudnn-frontend==1.32.0 >&2 ||
    say "cudnn-frontend was not installed: the CUDA plugin will not use cuDNN"
}

# build_release TARGET [OPTION...]: configures, with these options of cmake, and builds the target in
# build/release. A folder that is new compiles several sources at a time.
build_release() {
  local joined=() target=$1
  shift
  [ -e "$build/CMakeCache.txt" ] || joined=(-DMOE_JOIN_SOURCES=ON)
  get_cudnn_frontend
  (cd "$root" && cmake --preset release "${joined[@]}" "$@") >&2
  cmake --build "$build" --parallel "$(nproc)" --target "$target" >&2
}
