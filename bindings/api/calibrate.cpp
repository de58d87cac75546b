// core.calibrate: measured times of machines.
#include <cstdio>
#include <thread>

#include "bindings/host/convert.h"
#include "bindings/host/core.h"
#include "bindings/host/field_json.h"
#include "bindings/host/host.h"
#include "bindings/host/job.h"
#include "engine/base/stop.h"
#include "engine/profile/calibrate_device.h"

namespace moe::lua {
namespace {

using nlohmann::json;

double to_us(double ns) {
  return ns / 1e3;
}

json error_json(const FitError& error) {
  return {{"median_error", error.median},
          {"worst_error", error.worst},
          {"worst_row", error.worst_row + 1},
          {"r2", error.r2}};
}

json line_json(const CalibratedLine& line) {
  json rows = json::array();
  for (const Calibrated& row : line.rows) {
    rows.push_back({{"what", row.what},
                    {"x", row.x},
                    {"us", to_us(static_cast<double>(row.ns))},
                    {"spread", row.spread},
                    {"n", row.num_samples}});
    const MatrixWork& size = row.matrix;
    if (size.kind == MatrixWork::Kind::kGemm) {
      rows.back()["gemm"] = {{"m", size.m}, {"n", size.n}, {"k", size.k}};
    }
  }
  json all = error_json(line.fit.error);
  all["rows"] = rows;
  all["alpha_us"] = to_us(line.fit.alpha_ns);
  all["per_s"] = kNsPerSecond / line.fit.beta_ns;
  return all;
}

json calibrated_json(const CalibratedTable& table) {
  json all = line_json(table);
  all["interpolation"] = error_json(table.interpolation);
  return all;
}

json overlap_json(const OverlapTable& table) {
  json rows = json::array();
  for (const auto& [blocks, slowdown] : table.by_blocks) {
    rows.push_back(values_json(slowdown));
    rows.back()["blocks"] = blocks;
  }
  return {{"source", table.source}, {"rows", rows}};
}

/// Returns the device's fields without those that have a use only for a GPU with a table of
/// measured op times.
json rates_json(const Device& device) {
  json all = values_json(device);
  for (const char* of_gpu :
       {"op_times", "op_times_ratio", "step_times", "step_ratio", "attention_backward"}) {
    all.erase(of_gpu);
  }
  return all;
}

json calibration_json(const Calibration& c, int64_t ranks) {
  json all = {{"machine", c.machine},
              {"ranks", ranks},
              {"spread", c.spread},
              {"device", rates_json(c.device)},
              {"gemm", line_json(c.gemm)},
              {"memory", line_json(c.memory)},
              {"roofline", error_json(c.roofline)}};
  if (!c.overlap.source.empty()) all["overlap"] = overlap_json(c.overlap);
  if (ranks == 1) return all;
  all["intra"] = values_json(c.link);
  all["all_to_all"] = calibrated_json(c.all_to_all);
  all["all_reduce"] = calibrated_json(c.all_reduce);
  return all;
}

CalibrateOptions usual_options(const HostOptions& host, int64_t num_ranks) {
  CalibrateOptions options;
  options.num_ranks = num_ranks;
  if (host.precision == "bf16") options.dtype = DType::kBF16;
  if (host.device == "cuda") options.hidden = kGpuHidden;
  if (!host.hidden.empty()) options.hidden = host.hidden;
  if (host.max_bytes) options.max_payload = *host.max_bytes;
  return options;
}

// core.calibrate(ranks) -> the measurements { machine, ranks, device, intra, gemm, memory,
// all_to_all, all_reduce, roofline, overlap, spread, executor, dtype }, with measured times in us.
// Without intra, all_to_all and all_reduce for 1 rank, without overlap if it was not measured.
// Collective: all processes of a job must call it.
int calibrate(lua_State* L) {
  Host& host = Host::of(L);
  host.end_loading();
  const Host::EngineCall call(host);
  CalibrateOptions options =
      usual_options(host.options(), static_cast<int64_t>(luaL_checknumber(L, 1)));
  const bool gpu = host.options().device == "cuda";
  if (gpu) options = calibrated_on_gpu(std::move(options), job_of(host));
  options.progress = [&host](const std::string& what) {
    check_stop();
    host.progress().begin(what);
  };
  const int64_t cores = std::thread::hardware_concurrency();
  if (!gpu && options.num_ranks > cores) {
    std::fprintf(stderr,
                 "moebench: %ld ranks share %ld processors, so times include waiting for one\n",
                 static_cast<long>(options.num_ranks), static_cast<long>(cores));
  }
  const Calibration c = moe::calibrate(options);
  host.progress().erase();
  if (c.spread > kQuietSpread && is_root(host)) {
    std::fprintf(
        stderr,
        "moebench: the quartiles of the samples are %.0f%% of the median apart: the machine "
        "is busy, and its rates are uncertain; calibrate again when it is idle\n",
        100 * c.spread);
  }
  json all = calibration_json(c, options.num_ranks);
  all["executor"] = host.options().device;
  all["dtype"] = host.options().precision;
  push_json(L, all);
  return 1;
}

}  // namespace

void open_calibrate(lua_State* L) {
  set_functions(L, {{"calibrate", core_function<calibrate>}});
}

}  // namespace moe::lua
