// Timing on a GPU for bench_gpu: samples between timed events after a warm-up, and one JSON object
// a row. A sample lasts at least kSample_ns, so that what starts and ends it does not count; calls
// go through sets of data that together are larger than the L2 cache.
#pragma once

#include <functional>
#include <optional>

#include "tests/gpu/plugin.h"

namespace moe::test {

/// Four times the L2 cache of an H100.
constexpr int64_t kBeyondL2_bytes = 200 << 20;
constexpr double kSample_ns = 2e6;
/// The rows that the rates of others are compared with; they come first.
constexpr const char* kBaseCopy = "copy";
constexpr const char* kBaseGemm = "gemm 8192";

/// What is aimed at, from published figures and the hardware's limits; not a pass or a fail.
struct Target {
  double value;
  const char* unit;  // a key of the row
  bool at_most;
  const char* note;
};

/// What one call does. Bytes count each array once that must be read and once that must be written.
struct Work {
  double bytes = 0, flops = 0;
};

using Call = std::function<void(int64_t number)>;

class Bench {
 public:
  Bench(const kernels::DeviceTable& gpu, int samples, std::string filter);
  ~Bench();
  Bench(const Bench&) = delete;

  const kernels::DeviceTable& gpu() const { return gpu_; }
  const kernels::KernelTable<float>& kernels() const { return *gpu_.kernels; }
  kernels::Stream stream() const { return stream_; }
  bool wants(const std::string& name) const { return name.find(filter_) != std::string::npos; }

  /// n numbers in [-1, 1), the same on every machine; almost none is 0.
  template <class T = float>
  DeviceArray<T> random(int64_t n) const;
  /// Sets of data that a row goes through, for a set of so many bytes.
  static int64_t sets(double bytes_a_set);

  /// Microseconds a call, a sample each. `before`, outside the time, comes before each sample,
  /// which is then one call.
  std::vector<double> time(const Call& call, const std::function<void()>& before = {}) const;
  /// The same, `calls` calls a recording that is replayed.
  std::vector<double> time_recorded(int64_t calls, const Call& call) const;

  /// Prints a row.
  void row(const std::string& name, const std::string& what, const std::vector<double>& samples_us,
           Work work, std::optional<Target> target = {});
  /// A row of another kind: `key` is what a sample says, `of` what is left of the median when
  /// divided by `base`.
  void ratio_row(const std::string& name, const std::string& what,
                 const std::vector<double>& samples_us, const char* key, double base_us,
                 std::optional<Target> target = {}) const;

 private:
  double sample_ns(int64_t calls, const Call& call) const;

  const kernels::DeviceTable& gpu_;
  int samples_;
  std::string filter_;
  kernels::Stream stream_;
  kernels::Event from_, to_;
  DeviceArray<float> block_;  // random numbers that are copied to where some are wanted
  double copy_rate_ = 0, gemm_rate_ = 0;
};

template <>
DeviceArray<float> Bench::random(int64_t n) const;
template <>
DeviceArray<kernels::Bf16> Bench::random(int64_t n) const;

/// One a set, all alike.
template <class Make>
auto each_set(int64_t sets, Make make) {
  std::vector<decltype(make())> all;
  for (int64_t i = 0; i < sets; ++i) all.push_back(make());
  return all;
}

template <class Set>
const Set& turn(const std::vector<Set>& sets, int64_t number) {
  return sets[static_cast<size_t>(number) % sets.size()];
}

double median(std::vector<double> samples);
/// As a JSON string, quotes included.
std::string quoted(const std::string& text);

}  // namespace moe::test
