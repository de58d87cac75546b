// One rank, one thread: forward + backward + update of the reference GPT-2-MoE (Switch, capacity
// factor 1.25), against the same model in PyTorch on one CPU thread, and against a floor taken in
// the
// same run: the step's GEMMs timed alone, plus one pass over the bytes of all other ops.
// Usage: bench_step [tiny|small|slice]... [--python /usr/bin/python3] [--runs N]
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/comm/communicator.h"
#include "engine/exec/cpu/executor.h"
#include "engine/exec/data.h"
#include "engine/plan.h"
#include "engine/run.h"
#include "kernels/kernels.h"
#include "tests/model/gpt2.h"

namespace {

using moe::Graph;
using moe::Nanoseconds;
using moe::Op;

struct Case {
  const char* name;
  moe::test::Gpt2 model;
  int steps;
};

moe::test::Gpt2 spec(int64_t vocab, int64_t layers, int64_t hidden, int64_t heads, int64_t seq,
                     int64_t batch, int64_t experts) {
  moe::test::Gpt2 m;
  m.vocab = vocab, m.layers = layers, m.hidden = hidden, m.heads = heads, m.seq = seq;
  m.batch_per_device = batch, m.experts = experts;
  return m;
}

double median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v[v.size() / 2];
}

/// Median seconds of `body` over at least 5 calls and 20 ms.
template <class F>
double time_of(F body) {
  body();
  std::vector<double> samples;
  const Nanoseconds start = moe::clock_ns();
  while (samples.size() < 5 || moe::clock_ns() - start < 20'000'000) {
    const Nanoseconds begin = moe::clock_ns();
    body();
    samples.push_back(static_cast<double>(moe::clock_ns() - begin) * 1e-9);
  }
  return median(samples);
}

struct Gemm {
  bool ta, tb;
  int64_t m, n, k;
  auto operator<=>(const Gemm&) const = default;
};

int64_t rows_of(const moe::Shape& s) {
  return moe::num_elements(s) / s.back();
}

/// The GEMMs of an op (attention is taken by flops, see below); expert ops count used rows only.
void gemms_of(const Graph& g, const Op& op, double slot_occupancy, std::vector<Gemm>& out) {
  const std::string kind = g.def(op).name;
  const auto& in = op.inputs;
  auto shape = [&](size_t i) -> const moe::Shape& { return g.tensor(in[i]).shape; };
  if (kind == "linear") {
    out.push_back({false, true, rows_of(shape(0)), shape(1)[0], shape(1)[1]});
  } else if (kind == "linear_dx") {
    out.push_back({false, false, rows_of(shape(0)), shape(1)[1], shape(1)[0]});
  } else if (kind == "linear_dw") {
    out.push_back({true, false, shape(0).back(), shape(1).back(), rows_of(shape(0))});
  } else if (kind.rfind("expert_linear", 0) == 0) {
    const int64_t experts = shape(0)[0];
    const auto rows =
        static_cast<int64_t>(slot_occupancy * static_cast<double>(moe::num_elements(shape(0)) /
                                                                  shape(0).back() / experts));
    for (int64_t e = 0; e < experts; ++e) {
      if (kind == "expert_linear") out.push_back({false, true, rows, shape(1)[1], shape(1)[2]});
      if (kind == "expert_linear_dx") out.push_back({false, false, rows, shape(1)[2], shape(1)[1]});
      if (kind == "expert_linear_dw")
        out.push_back({true, false, shape(0).back(), shape(1).back(), rows});
    }
  }
}

double gemm_seconds(const Gemm& s) {
  const auto& k = moe::kernels::fast_table();
  std::vector<float> a(static_cast<size_t>(s.m * s.k), 0.5f),
      b(static_cast<size_t>(s.n * s.k), 0.25f), c(static_cast<size_t>(s.m * s.n));
  return time_of([&] {
    k.gemm(s.ta, s.tb, s.m, s.n, s.k, 1.f, a.data(), s.ta ? s.m : s.k, b.data(), s.tb ? s.k : s.n,
           0.f, c.data(), s.n, nullptr);
  });
}

/// Bytes a second of a copy (read + write) whose footprint is `bytes`.
double copy_rate(double bytes) {
  const auto n = static_cast<size_t>(std::max(4096.0, bytes / 2));
  std::vector<char> a(n, 1), b(n);
  return 2.0 * static_cast<double>(n) / time_of([&] { std::memcpy(b.data(), a.data(), n); });
}

struct Floor {
  double gemm_s = 0, bytes_s = 0;
};

Floor floor_of(const moe::Plan& plan) {
  Floor floor;
  std::map<Gemm, double> seen;
  std::map<int, double> rates;
  const double best_gemm_rate = 2.0 * 512 * 512 * 512 / gemm_seconds({false, true, 512, 512, 512});
  for (size_t i = 0; i < plan.graph.num_ops(); ++i) {
    const Op& op = plan.graph.ops()[i];
    const moe::Work work = plan.graph.def(op).work(plan.graph, op, plan.spec.work);
    std::vector<Gemm> gemms;
    gemms_of(plan.graph, op, plan.spec.work.slot_occupancy, gemms);
    for (const Gemm& s : gemms) {
      auto [it, fresh] = seen.try_emplace(s, 0.0);
      if (fresh) it->second = gemm_seconds(s);
      floor.gemm_s += it->second;
    }
    if (!gemms.empty()) continue;
    if (work.gemm()) floor.gemm_s += work.flops / best_gemm_rate;
    const int bucket = static_cast<int>(std::log2(std::max(1.0, work.bytes)));
    auto [it, fresh] = rates.try_emplace(bucket, 0.0);
    if (fresh) it->second = copy_rate(std::exp2(bucket));
    if (!work.gemm()) floor.bytes_s += work.bytes / it->second;
  }
  return floor;
}

std::shared_ptr<const moe::Plan> plan_of(const moe::test::Gpt2& model) {
  moe::PlanSpec s;
  s.num_ranks = 1;
  moe::test::set_model(s, model);
  s.cluster.device = {"cpu", 1e11, 1e10, 1e10, 0, 0};
  s.cluster.intra = s.cluster.nic = {1e12, 0};
  s.system.name = "used_rows";
  s.system.stages.push_back({.name = "used_rows", .kind = moe::StageKind::kForward});
  s.work.slot_occupancy = 1.0 / model.capacity_factor;
  s.cost = std::make_shared<moe::RooflineCost>(s.cluster, s.work);
  s.element_bytes = 4;
  return moe::make_plan(s);
}

std::vector<double> our_steps(const moe::Plan& plan, int steps) {
  moe::RunOptions o;
  o.steps = steps;
  o.data = moe::reference_data(plan.spec.model->vocab, plan.spec.model->batch_per_device, 1,
                               plan.spec.model->seq);
  o.init = moe::reference_init;
  std::vector<double> ms;
  for (const moe::Metrics& m : moe::run(plan, "cpu", o).metrics)
    ms.push_back(moe::to_ms(m.makespan_ns));
  return ms;
}

std::vector<double> peer_steps(const std::string& python, const moe::test::Gpt2& m, int steps,
                               const char* experts_by, std::string* version) {
  const std::string command = fmt::format(
      "OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 {} {}/tests/bench/torch_gpt2_moe.py --vocab {} "
      "--layers {} --hidden {} "
      "--heads {} --seq {} --batch {} --experts {} --steps {} --experts-by {} 2>/dev/null",
      python, MOE_SOURCE_DIR, m.vocab, m.layers, m.hidden, m.heads, m.seq, m.batch_per_device,
      m.experts, steps, experts_by);
  std::string text;
  if (FILE* pipe = popen(command.c_str(), "r")) {
    char buffer[4096];
    while (size_t n = fread(buffer, 1, sizeof buffer, pipe)) text.append(buffer, n);
    pclose(pipe);
  }
  const auto json = nlohmann::json::parse(text, nullptr, false);
  if (json.is_discarded() || !json.contains("ms")) return {};
  *version = json["torch"];
  auto ms = json["ms"].get<std::vector<double>>();
  ms.erase(ms.begin());
  return ms;
}

void print_row(const char* what, std::vector<double> ms, double tokens) {
  std::sort(ms.begin(), ms.end());
  fmt::print("  {:<22} {:9.2f} ms  ({:.2f}..{:.2f}, n = {})  {:9.0f} tokens/s\n", what, median(ms),
             ms.front(), ms.back(), ms.size(), 1e3 * tokens / median(ms));
}

void run_case(const Case& c, const std::string& python, int runs) {
  const auto plan = plan_of(c.model);
  const double tokens = static_cast<double>(c.model.batch_per_device * c.model.seq);
  double flops = 0;
  for (const Op& op : plan->graph.ops()) {
    flops += plan->graph.def(op).work(plan->graph, op, plan->spec.work).flops;
  }
  fmt::print(
      "{}: vocab {}, {} layers, hidden {}, {} heads, seq {}, batch {}, {} experts; {:.2f} GFLOP a "
      "step\n",
      c.name, c.model.vocab, c.model.layers, c.model.hidden, c.model.heads, c.model.seq,
      c.model.batch_per_device, c.model.experts, flops * 1e-9);
  std::vector<double> ours, rows, padded;
  std::string version;
  // In turn, so that drift of the machine meets both sides alike.
  for (int r = 0; r < runs; ++r) {
    auto add = [](std::vector<double>& to, std::vector<double> from) {
      to.insert(to.end(), from.begin() + (from.size() > 1 ? 1 : 0), from.end());
    };
    add(ours, our_steps(*plan, c.steps));
    add(rows, peer_steps(python, c.model, c.steps, "rows", &version));
    add(padded, peer_steps(python, c.model, c.steps, "padded", &version));
  }
  const Floor floor = floor_of(*plan);
  print_row("moebench", ours, tokens);
  const double floor_ms = 1e3 * (floor.gemm_s + floor.bytes_s);
  fmt::print(
      "  {:<22} {:9.2f} ms  (GEMMs alone {:.2f} + other bytes {:.2f}); floor / ours = {:.2f}\n",
      "floor", floor_ms, 1e3 * floor.gemm_s, 1e3 * floor.bytes_s, floor_ms / median(ours));
  fmt::print("  peak {:.1f} MiB, liveness {:.1f} MiB + persistent {:.1f} MiB\n",
             static_cast<double>(plan->memory.peak_bytes()) / 1048576,
             static_cast<double>(plan->memory.liveness_bytes) / 1048576,
             static_cast<double>(plan->memory.persistent_bytes) / 1048576);
  if (rows.empty()) {
    fmt::print("  PyTorch: not found by {}, ours alone\n", python);
    return;
  }
  print_row(("PyTorch " + version + " rows").c_str(), rows, tokens);
  print_row(("PyTorch " + version + " padded").c_str(), padded, tokens);
  fmt::print("  ours is {:.2f}x the better PyTorch variant\n",
             std::min(median(rows), median(padded)) / median(ours));
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<Case> cases = {{"tiny", spec(512, 4, 128, 4, 64, 8, 4), 12},
                                   {"small", spec(8192, 4, 256, 8, 128, 8, 8), 6},
                                   {"slice", spec(50257, 12, 768, 12, 512, 1, 4), 3}};
  std::string python = "/usr/bin/python3";
  int runs = 3;
  std::vector<std::string> wanted;
  for (int i = 1; i < argc; ++i) {
    const std::string a = argv[i];
    if (a == "--python" && i + 1 < argc) {
      python = argv[++i];
    } else if (a == "--runs" && i + 1 < argc) {
      runs = std::max(1, std::atoi(argv[++i]));
    } else {
      wanted.push_back(a);
    }
  }
  const char* core = std::getenv("OPENBLAS_CORETYPE");
  fmt::print("{}; OPENBLAS_CORETYPE={}\n", moe::kernels::kernel_set(), core ? core : "(unset)");
  for (const Case& c : cases) {
    if (wanted.empty() || std::count(wanted.begin(), wanted.end(), c.name))
      run_case(c, python, runs);
  }
}
