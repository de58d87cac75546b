#include "tests/gpu/bench.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "engine/base/rng.h"

namespace moe::test {
namespace {

constexpr int64_t kBlock = 4'000'037;  // floats; prime, so that neighbouring rows differ
constexpr int64_t kMaxCalls = 2000;    // of a sample: a stream holds about a thousand

std::vector<float> random_block() {
  std::vector<float> v(kBlock);
  for (size_t i = 0; i < v.size(); ++i) v[i] = static_cast<float>(random24(i, 1)) * 0x1p-23f - 1;
  return v;
}

std::string number(double v, int digits = 6) {
  char text[40];
  std::snprintf(text, sizeof text, "%.*g", digits, v);
  return std::isfinite(v) ? text : "null";
}

std::string member(const char* key, double v, int digits = 6) {
  return ", \"" + std::string(key) + "\": " + number(v, digits);
}

std::string target_member(const std::optional<Target>& target) {
  if (!target) return "";
  return ", \"target\": {\"" + std::string(target->at_most ? "at_most" : "at_least") +
         "\": " + number(target->value) + ", \"unit\": " + quoted(target->unit) +
         ", \"note\": " + quoted(target->note) + "}";
}

/// Up to the last sample, without the closing brace.
std::string row_begin(const std::string& name, const std::string& what,
                      const std::vector<double>& samples_us) {
  std::string text = "{\"bench\": " + quoted(name) + ", \"what\": " + quoted(what) +
                     ", \"median_us\": " + number(median(samples_us)) + ", \"samples_us\": [";
  for (size_t i = 0; i < samples_us.size(); ++i)
    text += (i == 0 ? "" : ", ") + number(samples_us[i]);
  return text + "]";
}

void print(const std::string& row) {
  std::printf("%s}\n", row.c_str());
  std::fflush(stdout);
}

}  // namespace

double median(std::vector<double> samples) {
  std::sort(samples.begin(), samples.end());
  return samples[samples.size() / 2];
}

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += static_cast<unsigned char>(c) < ' ' ? ' ' : c;
  }
  return out + '"';
}

Bench::Bench(const kernels::DeviceTable& gpu, int samples, std::string filter)
    : gpu_(gpu),
      samples_(samples),
      filter_(std::move(filter)),
      stream_(gpu.make_stream(false)),
      from_(gpu.make_event(true)),
      to_(gpu.make_event(true)),
      block_(gpu, random_block()) {}

Bench::~Bench() {
  gpu_.end_event(from_);
  gpu_.end_event(to_);
  gpu_.end_stream(stream_);
}

template <>
DeviceArray<float> Bench::random(int64_t n) const {
  DeviceArray<float> array(gpu_, n);
  for (int64_t at = 0; at < n; at += kBlock)
    gpu_.copy(array.data() + at, block_.data(), 4 * std::min(kBlock, n - at), stream_);
  finish(gpu_, stream_);
  return array;
}

template <>
DeviceArray<kernels::Bf16> Bench::random(int64_t n) const {
  std::vector<kernels::Bf16> rounded;
  for (const float v : random(n).read()) rounded.push_back(kernels::to_bf16(v));
  return {gpu_, rounded};
}

int64_t Bench::sets(double bytes_a_set) {
  const double wanted = std::ceil(static_cast<double>(kBeyondL2_bytes) / bytes_a_set);
  return std::clamp(static_cast<int64_t>(wanted), int64_t{2}, int64_t{64});
}

double Bench::sample_ns(int64_t calls, const Call& call) const {
  gpu_.record(from_, stream_);
  for (int64_t i = 0; i < calls; ++i) call(i);
  gpu_.record(to_, stream_);
  finish(gpu_, stream_);
  return gpu_.elapsed_ns(from_, to_) / static_cast<double>(calls);
}

std::vector<double> Bench::time(const Call& call, const std::function<void()>& before) const {
  std::vector<double> samples_us(static_cast<size_t>(samples_));
  const auto prepare = [&] {
    if (before) before();
  };
  prepare();
  sample_ns(1, call);
  prepare();
  const double once = sample_ns(1, call);
  const auto calls = static_cast<int64_t>(std::ceil(kSample_ns / std::max(once, 1.0)));
  for (double& us : samples_us) {
    prepare();
    us = 1e-3 * sample_ns(before ? 1 : std::clamp(calls, int64_t{1}, kMaxCalls), call);
  }
  return samples_us;
}

std::vector<double> Bench::time_recorded(int64_t calls, const Call& call) const {
  sample_ns(calls, call);
  gpu_.begin_recording(stream_);
  for (int64_t i = 0; i < calls; ++i) call(i);
  const kernels::Recording recording = gpu_.end_recording(stream_);
  if (recording == nullptr) throw std::runtime_error(gpu_.take_error());
  std::vector<double> samples_us = time([&](int64_t) { gpu_.replay(recording, stream_); });
  for (double& us : samples_us) us /= static_cast<double>(calls);
  gpu_.release_recording(recording);
  return samples_us;
}

void Bench::row(const std::string& name, const std::string& what,
                const std::vector<double>& samples_us, Work work, std::optional<Target> target) {
  const double us = median(samples_us);
  const double bytes_rate = work.bytes / us * 1e-6, flops_rate = work.flops / us * 1e-6;
  if (name == kBaseCopy) copy_rate_ = bytes_rate;
  if (name == kBaseGemm) gemm_rate_ = flops_rate;
  std::string text = row_begin(name, what, samples_us);
  if (work.bytes > 0)
    text += member("bytes", work.bytes, 15) + member("TB/s", bytes_rate) +
            member("of_copy", bytes_rate / copy_rate_);
  if (work.flops > 0)
    text += member("flops", work.flops, 15) + member("TFLOP/s", flops_rate) +
            member("of_gemm", flops_rate / gemm_rate_);
  print(text + target_member(target));
}

void Bench::ratio_row(const std::string& name, const std::string& what,
                      const std::vector<double>& samples_us, const char* key, double base_us,
                      std::optional<Target> target) const {
  print(row_begin(name, what, samples_us) + member(key, median(samples_us) / base_us) +
        target_member(target));
}

}  // namespace moe::test
