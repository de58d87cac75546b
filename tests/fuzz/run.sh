#!/bin/bash
# Builds and runs the fuzzers of all loaders that read files from elsewhere, one after the other:
#   tests/fuzz/run.sh [SECONDS [INPUTS [LOADER...]]]
# Each runs for so many seconds and so many inputs, whichever is more (60 and 0). Prints inputs and
# findings by loader; an input at fault is kept in build/fuzz/findings, where the next run begins
# from. Status 1 where one was found. It takes clang 19 with libFuzzer (Debian: clang-19,
# libclang-rt-19-dev).
set -u
cd "$(dirname "$0")/../.." || exit 2
seconds=${1:-60} inputs=${2:-0}
loaders=("${@:3}")
((${#loaders[@]} > 0)) || loaders=(trace op_times profile_cache checkpoint safetensors machine
  config results)
programs=("${loaders[@]/#/fuzz_}")
cmake --preset fuzz >/dev/null && cmake --build build/fuzz --target "${programs[@]}" || exit 2

export UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1
# Frames that exceptions leave are not given back where ASan looks for uses after return; to find a
# free one took three quarters of the time of loaders that refuse most inputs. Where a block was
# allocated is recorded for one frame only: run an input at fault again with ASan's usual options.
export ASAN_OPTIONS=quarantine_size_mb=16:malloc_context_size=1:detect_stack_use_after_return=0
declare -A most_bytes=([profile_cache]=65536 [checkpoint]=8192 [safetensors]=8192
  [op_times]=8192 [results]=8192)  # of an input
runs_lua=(machine config results)  # LeakSanitizer does not follow the pointers that LuaJIT keeps
export LSAN_OPTIONS=print_suppressions=0
found=0
for loader in "${loaders[@]}"; do
  folder=build/fuzz/corpus/$loader kept=build/fuzz/findings/$loader
  mkdir -p "$folder" "$kept"
  seeds=("tests/fuzz/seeds/$loader")
  [[ -d ${seeds[0]} ]] || seeds=()
  most=${most_bytes[$loader]:-4096}
  if long=$(find "${seeds[@]:-/dev/null}" -type f -size "+${most}c") && [[ -n $long ]]; then
    echo "$loader: more than -max_len=$most bytes, of which libFuzzer cuts the rest off: $long"
    exit 2
  fi
  leaks=()
  [[ " ${runs_lua[*]} " == *" $loader "* ]] && leaks=(-detect_leaks=0)
  begin=$SECONDS done=0 status=0
  while ((SECONDS - begin < seconds || done < inputs)); do
    limit=(-max_total_time=$((seconds - (SECONDS - begin))))
    ((done < inputs)) && limit=(-runs=$((inputs - done)))
    log=build/fuzz/$loader.log
    "build/fuzz/tests/fuzz/fuzz_$loader" "$folder" "${seeds[@]}" "${limit[@]}" "${leaks[@]}" \
      -timeout=10 -malloc_limit_mb=256 -rss_limit_mb=1024 -max_len="$most" \
      -len_control=0 -close_fd_mask=1 -print_final_stats=1 \
      -artifact_prefix="$kept/" >"$log" 2>&1
    status=$?
    done=$((done + $(sed -n 's/^stat::number_of_executed_units: *//p' "$log")))
    ((status == 0)) || break
  done
  took=$((SECONDS - begin))
  echo "$loader: $done inputs in $took s, $((done / (took > 0 ? took : 1))) a second," \
    "status $status"
  if ((status != 0)); then
    found=1
    grep -E 'FINDING|SUMMARY|runtime error|Test unit written' "build/fuzz/$loader.log"
  fi
done
exit $found
