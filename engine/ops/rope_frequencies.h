// The frequencies of rotary embeddings: those of a base theta, scaled as configurations of models
// say. Computed once per model; the op rope_angles takes them as attributes.
#pragma once

#include <array>
#include <vector>

#include "engine/base/field.h"
#include "engine/graph/graph.h"

namespace moe::ops {

/// Scaling for sequences longer than those of the training. Names and defaults of the fields are
/// those of transformers' `rope_parameters`.
struct RopeScaling {
  enum class Kind : uint8_t {
    kNone,
    kLinear,  // all frequencies divided by `factor`
    kYarn,    // by `factor`, but fast ones stay, with a ramp between (arXiv 2309.00071)
    kLlama3,  // by `factor`, but short waves stay, with a ramp between
  };
  Kind kind = Kind::kNone;
  double factor = 1;
  int64_t original_seq = 0;  // original_max_position_embeddings, of kYarn and kLlama3
  // Of kYarn: turns within original_seq at the ramp's ends, which are whole columns if truncate.
  double beta_fast = 32, beta_slow = 1;
  bool truncate = true;
  // The factor of cosines and sines; 0: from mscale and mscale_all_dim where both are given, else
  // from `factor`.
  double attention_factor = 0, mscale = 0, mscale_all_dim = 0;
  // Of kLlama3: waves that are shorter than original_seq / high_freq_factor stay, those longer than
  // original_seq / low_freq_factor are scaled.
  double low_freq_factor = 1, high_freq_factor = 4;
};
constexpr std::array<const char*, 4> names_of(RopeScaling::Kind) {
  return {"none", "linear", "yarn", "llama3"};
}
constexpr auto fields_of(const RopeScaling*) {
  using S = RopeScaling;
  return field_table<S>(
      field("scaling", &S::kind, "how frequencies are scaled for longer sequences"),
      field("factor", &S::factor, "factor of the scaling").from(1e-3, 1e6),
      field("original_seq", &S::original_seq,
            "of yarn and llama3: longest sequence of the training")
          .from(0, 1e9),
      field("beta_fast", &S::beta_fast, "of yarn: turns at the fast end of the ramp").from(0, 1e6),
      field("beta_slow", &S::beta_slow, "of yarn: turns at the slow end of the ramp").from(0, 1e6),
      field("truncate", &S::truncate, "of yarn: whether the ramp ends at whole columns"),
      field("attention_factor", &S::attention_factor,
            "of yarn: factor of cosines and sines; 0: from mscale and mscale_all_dim, or factor")
          .from(0, 1e6),
      field("mscale", &S::mscale, "of yarn: as in DeepSeek-V2's configuration").from(0, 1e6),
      field("mscale_all_dim", &S::mscale_all_dim, "of yarn: as in DeepSeek-V2's configuration")
          .from(0, 1e6),
      field("low_freq_factor", &S::low_freq_factor, "of llama3: longer waves are scaled")
          .from(0, 1e6),
      field("high_freq_factor", &S::high_freq_factor, "of llama3: shorter waves stay")
          .from(0, 1e6));
}

/// Returns attrs frequencies and scale of a rope_angles for heads of which `rotary` columns turn.
/// Throws UserError naming the field unless rotary is even, from 2 to twice the most frequencies,
/// theta above 1, and the scaling complete.
Attrs rope_angles_attrs(int64_t rotary, double theta, const RopeScaling& scaling = {});

/// Returns attr frequencies of the op, "1,0.1": one per pair of columns. Throws UserError for other
/// texts, and for more than RopeFrequencies::kMost.
std::vector<float> parse_frequencies(const Op& op);

}  // namespace moe::ops
