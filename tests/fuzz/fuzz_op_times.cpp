// Files of op times, as tables and as CSV. What was read is asked for times at the border of its
// axes and beyond, which must be above 0 and finite.
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "engine/base/errors.h"
#include "engine/cost/expert_table.h"
#include "engine/cost/op_table.h"
#include "tests/fuzz/mutate.h"

using namespace moe;
using nlohmann::json;

namespace {

constexpr std::string_view kMagic = "moebench op times 1\n";
constexpr std::string_view kCsv =
    "op,us,m,n,k,ranks,bytes,dtype\ngemm,100,1024,512,512,,,\ngemm,300,2048,512,512,,,fp8\n"
    "gemm,110,1024,256,512,,,\nall_reduce,50,,,,8,1e6,\nall_reduce,70,,,,4,1e6,\n";

json header() {
  const json peaks = {{"peak_flops_per_s", 1e15},
                      {"element_bytes", 2},
                      {"kernel", "k"},
                      {"framework", "f"},
                      {"version", "1"},
                      {"spread", 0.1},
                      {"dtype", "bf16"},
                      {"peak_link_bytes_per_s", 4e11}};
  const auto axis = [](const char* name, std::vector<double> values) {
    return json{{"name", name}, {"values", values}, {"weight", 1}};
  };
  json gemm = peaks, exchange = peaks, experts = peaks;
  gemm["op"] = "gemm";
  gemm["axes"] = {axis("m", {256, 1024}), axis("n", {1024}), axis("k", {512, 2048})};
  exchange["op"] = "dispatch";
  exchange["node_ranks"] = 8;
  exchange["axes"] = {axis("nodes", {1, 2}), axis("sms", {24}), axis("tokens", {128}),
                      axis("hidden", {7168}), axis("topk", {8})};
  experts["op"] = "experts";
  experts["layers"] = {{4096, 1024, 8, 2, 4, 2, 0}, {2048, 512, 64, 8, 8, 2, 1}};
  experts["loads"] = {"balanced", "skewed"};
  experts["tokens"] = {128, 1024};
  experts["moves_all"] = true;
  return {{"gpu", "g"},
          {"peak_memory_bytes_per_s", 3e12},
          {"peak_link_bytes_per_s", 4e11},
          {"tables", {gemm, exchange, experts}}};
}

std::string file_of(const std::string& header, std::string_view cells) {
  std::string out = std::string(kMagic) + header + '\0';
  if (out.size() % 2 != 0) out += '\0';
  return out += cells;
}

std::string sample() {
  std::string cells;
  for (uint16_t i = 0; i < 14; ++i) {
    const uint16_t cell = static_cast<uint16_t>(OpGrid::cell_of(1e4) + 100 * i);
    cells.append(reinterpret_cast<const char*>(&cell), sizeof cell);
  }
  return file_of(header().dump(), cells);
}

std::string mutate(std::string_view bytes, fuzz::Random& random) {
  if (bytes.size() <= 1) return random() % 2 == 0 ? sample() : std::string(kCsv);
  if (!bytes.starts_with(kMagic)) return fuzz::mutate_text(bytes, random);
  const size_t end = std::min(bytes.find('\0'), bytes.size());
  const std::string_view old = bytes.substr(kMagic.size(), end - kMagic.size());
  const std::string_view cells = bytes.substr(std::min((end + 2) / 2 * 2, bytes.size()));
  if (random() % 4 == 0) return file_of(std::string(old), fuzz::mutate_bytes(cells, random));
  return file_of(fuzz::mutate_json(old, random, header().dump()), cells);
}

void check_time(const OpTime& t) {
  MOE_CHECK(t.lo_ns > 0 && t.lo_ns <= t.ns && t.ns <= t.hi_ns && std::isfinite(t.hi_ns),
            "a time of {} ns, {} to {}", t.ns, t.lo_ns, t.hi_ns);
}

void ask(const OpGrid& grid) {
  std::vector<double> low, high, beyond;
  for (const GridAxis& axis : grid.axes()) {
    low.push_back(axis.values.front());
    high.push_back(axis.values.back());
    beyond.push_back(axis.values.back() * 2);
  }
  for (const auto& point : {low, high, beyond}) check_time(grid.at(point));
}

void ask(const ExpertTable& table) {
  for (size_t load = 0; load < table.loads().size(); ++load) {
    for (const double tokens : {1., table.tokens().back()}) {
      check_time(table.at(table.layers()[0].layer, tokens, load));
      check_time(table.at({4096, 1024, 16, 2, 2}, tokens, load));
    }
  }
}

}  // namespace

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max, unsigned seed) {
  return fuzz::mutated(data, size, max, seed, mutate);
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::string path = fuzz::folder() + "/op.times";
  fuzz::write(path, {reinterpret_cast<const char*>(data), size});
  return fuzz::loaded([&] {
    const OpTables tables(path);
    for (const auto& grid : tables.grids()) ask(*grid);
    for (const char* const dtype : {"bf16", "fp8"}) {
      if (const ExpertTable* const experts = tables.experts(dtype)) ask(*experts);
    }
  });
}
