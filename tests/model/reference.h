// The small reference model and its tokens, and what its values are compared by.
#pragma once

#include <cmath>
#include <cstdint>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "engine/base/rng.h"
#include "tests/model/gpt2.h"

namespace moe::test {

inline nlohmann::json golden() {
  std::ifstream in(MOE_SOURCE_DIR "/tests/data/golden_tiny.json");
  return nlohmann::json::parse(in);
}

inline Gpt2 reference_model(const std::string& gate) {
  Gpt2 model;
  model.vocab = 512;
  model.layers = 4;
  model.hidden = 128;
  model.heads = 4;
  model.seq = 64;
  model.batch_per_device = 8;
  model.experts = 4;
  model.gate = gate;
  return model;
}

/// Token at place pos (0..seq) of a row; places 1..seq are the targets of 0..seq-1.
inline int32_t reference_token(int64_t step, int64_t row, int64_t pos, const Gpt2& model) {
  const auto place =
      static_cast<uint64_t>((step * model.batch_per_device + row) * (model.seq + 1) + pos);
  const uint64_t r = random24(place, 1000003);
  const uint64_t q = (r * r) >> 24;
  return static_cast<int32_t>((q * static_cast<uint64_t>(model.vocab)) >> 24);
}

template <class T>
double l2(const T* v, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += static_cast<double>(v[i]) * static_cast<double>(v[i]);
  return std::sqrt(sum);
}

/// Sees signs and order, which the norm does not.
template <class T>
double projection(const T* v, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i)
    sum += static_cast<double>(v[i]) * static_cast<double>(i % 13 - 6);
  return sum;
}

}  // namespace moe::test
