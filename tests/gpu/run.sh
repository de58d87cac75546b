#!/usr/bin/env bash
# run.sh [--prebuilt DIR] [--out FILE.json] [--quick] [--only PART]...: everything that wants a GPU,
# into one JSON file. run.sh --pack DIR: builds what --prebuilt takes. README.md beside this says
# more. Status: 0 all that ran passed, 1 something failed, 2 wrong arguments, 77 there is no GPU.
set -euo pipefail
# shellcheck source=scripts/setup.sh
source "$(dirname "${BASH_SOURCE[0]}")/../../scripts/setup.sh"

here=$root/tests/gpu
build=$root/build/cuda
parts=(tests sanitizers executor bench torch)
targets=(test_gpu bench_gpu moebench)
usage="usage: run.sh [--prebuilt DIR] [--out FILE.json] [--quick] [--only PART]... | --pack DIR
PART: ${parts[*]}"
limit_s=900  # of one check
cuda=${CUDA_HOME:-/usr/local/cuda}

prebuilt='' out='' quick=false pack='' only=()
while [ $# -gt 0 ]; do
  case $1 in
    --quick) quick=true ;;
    --prebuilt | --out | --pack | --only)
      if [ $# -lt 2 ]; then
        say "$usage"
        exit 2
      fi
      case $1 in
        --prebuilt) prebuilt=$2 ;;
        --out) out=$2 ;;
        --pack) pack=$2 ;;
        --only) only+=("$2") ;;
      esac
      shift
      ;;
    *)
      say "$usage"
      exit 2
      ;;
  esac
  shift
done
for part in "${only[@]}"; do
  if [[ " ${parts[*]} " != *" $part "* ]]; then
    say "--only $part: there are ${parts[*]}"
    exit 2
  fi
done

if [ -n "$prebuilt" ]; then prebuilt=$(realpath "$prebuilt"); fi

wants() { [ ${#only[@]} -eq 0 ] || [[ " ${only[*]} " == *" $1 "* ]]; }

# ---- what is run: programs, the plugin, the libraries that they need

program() { # NAME: where test_gpu, bench_gpu, moebench and libmoe_cuda.so are
  if [ -n "$prebuilt" ]; then
    printf '%s\n' "$prebuilt/$1"
    return
  fi
  case $1 in
    moebench) printf '%s\n' "$build/moebench" ;;
    libmoe_cuda.so) printf '%s\n' "$build/kernels/cuda/$1" ;;
    *) printf '%s\n' "$build/tests/gpu/$1" ;;
  esac
}

build_all() {
  ensure_build_needs || return 1
  get_cudnn_frontend
  (cd "$root" && cmake --preset cuda) >&2 || return 1
  cmake --build "$build" --parallel "$(nproc)" --target "${targets[@]}" >&2
}

revision() {
  if [ -n "$prebuilt" ] && [ -r "$prebuilt/revision" ]; then
    cat "$prebuilt/revision"
  else
    git -C "$root" describe --always --dirty 2>/dev/null || echo unknown
  fi
}

# Folders with CUDA's run-time libraries: the toolkit's, and those of a Python environment.
library_folders() {
  local folder
  for folder in "$prebuilt" "$cuda"/{lib64,lib} /usr/local/cuda*/{lib64,lib}; do
    printf '%s\n' "$folder"
  done
  python3 -c '
import glob, site, sys
for folder in sys.path + site.getsitepackages():
    print("\n".join(sorted(glob.glob(folder + "/nvidia/*/lib"))))' 2>/dev/null || true
}

missing_libraries() { # FILE...
  LD_LIBRARY_PATH=$library_path ldd "$@" 2>/dev/null |
    sed -n 's/^[[:space:]]*\([^ ]*\) => not found.*/\1/p' | sort -u
}

# Puts into library_path the folders of libraries that the loader does not find, and only those.
# PyTorch is not given it: it brings libraries of its own.
library_path=${LD_LIBRARY_PATH:-}${LD_LIBRARY_PATH:+${prebuilt:+:}}$prebuilt
find_libraries() {
  local files=() name folder found
  for name in libmoe_cuda.so "${targets[@]}"; do
    if [ "$name" = moebench ] && [ ! -e "$(program moebench)" ]; then continue; fi
    files+=("$(program "$name")")
    if [ ! -e "${files[-1]}" ]; then
      say "failed: there is no ${files[-1]}"
      return 1
    fi
  done
  while name=$(missing_libraries "${files[@]}" | head -n 1) && [ -n "$name" ]; do
    found=''
    while read -r folder; do
      if [ -n "$folder" ] && [ -e "$folder/$name" ]; then
        found=$(realpath "$folder")
        break
      fi
    done < <(library_folders)
    if [ -z "$found" ] || [[ ":$library_path:" == *":$found:"* ]]; then
      say "failed: $name was not found; add its folder to LD_LIBRARY_PATH"
      return 1
    fi
    library_path=$library_path${library_path:+:}$found
  done
  # The plugin opens cuDNN by its name, so no program names it.
  found=$(library_folders | while read -r folder; do
    if [ -n "$folder" ] && [ -e "$folder/libcudnn.so.9" ]; then
      realpath "$folder"
      break
    fi
  done)
  library_path=$library_path${found:+${library_path:+:}$found}
}

# Programs and the libraries that a machine with a driver and CUDA may lack. OpenBLAS is opened at
# run time, so no program names it.
pack_into() {
  local name library blas
  build_all
  mkdir -p "$1"
  for name in "${targets[@]}" libmoe_cuda.so; do
    cp "$(program "$name")" "$1/"
  done
  blas=$(/sbin/ldconfig -p | sed -n '/x86-64/s/.*libopenblas\.so\.0 .* => //p' | head -n 1)
  while read -r library; do
    cp -L "$library" "$1/"
  done < <({ ldd "$1/test_gpu" "$1/moebench" ${blas:+"$blas"} |
    sed -n 's/.* => \(\/[^ ]*\) .*/\1/p'; printf '%s\n' ${blas:+"$blas"}; } |
    grep -Ev '/(libc|libm|libdl|libpthread|librt|libgcc_s|libstdc\+\+)\.so' | sort -u)
  cp -r "$root/scripts" "$1/" # the program looks for them beside itself
  revision >"$1/revision"
  say "packed into $1"
}

gpu_is_seen() {
  { command -v nvidia-smi >/dev/null && nvidia-smi -L 2>/dev/null | grep -q '^GPU'; } ||
    compgen -G '/dev/nvidia[0-9]*' >/dev/null || [ -e /dev/dxg ]
}

# ---- what is written

json_string() { # TEXT
  local text
  text=$(printf '%s' "$1" | tr -d '\000-\010\013\014\016-\037' | tr '\r\t' '\n ')
  text=${text//\\/\\\\}
  text=${text//\"/\\\"}
  printf '"%s"' "${text//$'\n'/\\n}"
}

checks=() failed=0 benches='' torch_rows=''

note_check() { # NAME STATUS REASON SECONDS
  checks+=("{\"check\": $(json_string "$1"), \"status\": \"$2\", \"reason\": $(json_string "$3"), \
\"seconds\": $4}")
  say "== $1: $2${3:+ (${3:0:200})}"
  if [ "$2" = failed ]; then failed=1; fi
}

skip() { note_check "$1" skipped "$2" 0; } # NAME REASON

# run_check NAME COMMAND...: its output goes to the terminal and to $log. 77 is a skip.
run_check() {
  local name=$1 status=0 begin=$SECONDS
  shift
  say "== $name"
  timeout "$limit_s" "$@" 2>&1 | tee "$log" || status=${PIPESTATUS[0]}
  local took=$((SECONDS - begin)) last
  last=$(grep -m 3 -A 6 FAILED "$log" || true; tail -n 10 "$log")
  case $status in
    0) note_check "$name" passed '' "$took" ;;
    77) note_check "$name" skipped "$(grep -m 1 '^skipped' "$log" || echo skipped)" "$took" ;;
    124) note_check "$name" failed "not done after $limit_s s; $last" "$took" ;;
    *)
      if grep -qi 'device not supported' "$log"; then
        note_check "$name" skipped "$(grep -i -m 1 'device not supported' "$log")" "$took"
      else
        note_check "$name" failed "status $status; $last" "$took"
      fi
      ;;
  esac
  return 0
}

rows_of() { # BEGIN: the lines of $log that begin so, JSON objects, as the items of a list
  grep "^$1" "$log" | sed -e '$!s/$/,/' -e 's/^/    /' || true
}

write_results() { # FILE
  local smi
  smi=$(nvidia-smi --format=csv 2>/dev/null \
    --query-gpu=name,driver_version,power.limit,clocks.max.sm,clocks.max.memory ||
    echo 'no nvidia-smi')
  {
    printf '{\n  "date": "%s",\n' "$(date -u +%Y-%m-%dT%H:%M:%SZ)"
    printf '  "revision": %s,\n' "$(json_string "$(revision)")"
    printf '  "quick": %s,\n  "parts": "%s",\n' "$quick" "${only[*]:-${parts[*]}}"
    printf '  "device": %s,\n' "$device"
    printf '  "nvidia_smi": %s,\n' "$(json_string "$smi")"
    printf '  "nvcc": %s,\n' \
      "$(json_string "$(nvcc --version 2>/dev/null | tail -n 1 || echo none)")"
    printf '  "host": %s,\n' \
      "$(json_string "$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1), $(uname -r)")"
    printf '  "checks": [\n    %s' "${checks[0]-}"
    if [ ${#checks[@]} -gt 1 ]; then printf ',\n    %s' "${checks[@]:1}"; fi
    printf '\n  ],\n  "benches": [\n%s\n  ],\n' "$benches"
    printf '  "torch": [\n%s\n  ]\n}\n' "$torch_rows"
  } >"$1"
  say "results: $1"
}

# ---- the parts

run_tests() { run_check test_gpu "${ours[@]}" "$(program test_gpu)"; }

find_sanitizer() {
  local file
  for file in "$(command -v compute-sanitizer || true)" \
    "$cuda"/{bin,compute-sanitizer}/compute-sanitizer; do
    if [ -n "$file" ] && [ -x "$file" ]; then
      printf '%s\n' "$file"
      return
    fi
  done
}

# The small shapes, without cases that measure time. Only memcheck looks into cuBLAS. The cases ask
# for failures of the runtime's calls and read them, so those are not reported.
run_sanitizers() {
  local sanitizer tool cases tools=(memcheck racecheck synccheck initcheck)
  if $quick; then tools=(memcheck); fi
  sanitizer=$(find_sanitizer)
  for tool in "${tools[@]}"; do
    if [ -z "$sanitizer" ]; then
      skip "$tool" 'compute-sanitizer was not found'
      continue
    fi
    cases='~[large]~[time]~[gemm]'
    if [ "$tool" = memcheck ]; then cases='~[large]~[time]'; fi
    run_check "$tool" "${ours[@]}" "$sanitizer" --tool "$tool" --error-exitcode 99 \
      --report-api-errors no "$(program test_gpu)" "$cases"
  done
}

# The executor "cuda" against CPU ranks, then the main recipe's real runs on the GPU: their results
# and traces stay beside the results' file.
run_executor() {
  local moebench folder=${out%.json}
  moebench=$(program moebench)
  if [ ! -e "$moebench" ]; then
    skip executor "there is no $moebench"
    return
  fi
  run_check executor "${ours[@]}" "$moebench" run "$here/executor.lua" --out "$folder-executor"
  if $quick; then return; fi
  run_check lancet_gpt2 "${ours[@]}" "$moebench" run "$root/recipes/lancet_gpt2.lua" \
    --executor cuda --out "$folder-lancet_gpt2"
}

run_bench() {
  local options=()
  if $quick; then options=(--quick); fi
  run_check bench_gpu "${ours[@]}" "$(program bench_gpu)" "${options[@]}"
  benches=$(rows_of '{"bench"')
  if $quick || [ ! -e "$(program moebench)" ]; then return; fi
  local steps
  for steps in step tables; do
    run_check "$steps" "${ours[@]}" "$(program moebench)" run "$here/$steps.lua" \
      --out "${out%.json}-$steps"
    benches+=${benches:+,$'\n'}$(rows_of '{"bench"')
  done
}

run_torch() {
  local options=()
  if $quick; then options=(--quick); fi
  if ! command -v python3 >/dev/null; then
    skip torch_step 'python3 was not found'
    return
  fi
  run_check torch_step python3 "$here/torch_step.py" "${options[@]}"
  torch_rows=$(rows_of '{"baseline"')
}

# ----

if [ -n "$pack" ]; then
  pack_into "$pack"
  exit 0
fi
if ! gpu_is_seen; then
  say "skipped: no GPU: nvidia-smi shows none and there is no /dev/nvidia0"
  exit 77
fi
if [ -z "$prebuilt" ]; then build_all; fi
plugin=$(realpath "$(program libmoe_cuda.so)")
find_libraries
ours=(env "LD_LIBRARY_PATH=$library_path" "MOEBENCH_CUDA_PLUGIN=$plugin")
if ! device=$("${ours[@]}" "$(program bench_gpu)" --device); then
  say "failed: there is a GPU, but the plugin cannot use it"
  exit 1
fi
work=$(mktemp -d)
log=$work/log
trap 'rm -rf "$work"' EXIT
out=${out:-$root/tests/bench/results/gpu-$(date +%F-%H%M).json}
mkdir -p "$(dirname "$out")"
for part in "${parts[@]}"; do
  if ! wants "$part"; then continue; fi
  case $part in
    tests) run_tests ;;
    sanitizers) run_sanitizers ;;
    executor) run_executor ;;
    bench) run_bench ;;
    torch) run_torch ;;
  esac
  write_results "$out" # after each: a run that is cut short leaves what it had
done
exit "$failed"
