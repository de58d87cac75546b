// Inference with experts in host memory (Lina, USENIX ATC 2023, section 5). expect_experts
// estimates the popularity of experts from the tokens' paths, place_expected computes a placement
// from it before the gate, fine_tune corrects it by the gate's counts, and swap_in copies the
// weights to the slots of a device.
#include <algorithm>
#include <cstring>
#include <numeric>

#include "engine/ops/defs.h"
#include "engine/ops/placed.h"
#include "engine/ops/swap_in.h"
#include "engine/placement/path_profile.h"
#include "engine/placement/two_phase.h"

namespace moe::ops {
namespace {

/// Number of i32 values that encode an Estimate: mass [experts], tokens and known, two per number.
int64_t estimate_codes(int64_t experts) {
  return 2 * (experts + 2);
}

void write_estimate(const Estimate& estimate, int32_t* codes) {
  std::memcpy(codes, estimate.mass.data(), estimate.mass.size() * sizeof(int64_t));
  codes += 2 * estimate.mass.size();
  std::memcpy(codes, &estimate.tokens, sizeof(int64_t));
  std::memcpy(codes + 2, &estimate.known, sizeof(int64_t));
}

Estimate read_estimate(const int32_t* codes, int64_t experts) {
  Estimate estimate;
  estimate.mass.resize(static_cast<size_t>(experts));
  std::memcpy(estimate.mass.data(), codes, estimate.mass.size() * sizeof(int64_t));
  codes += 2 * experts;
  std::memcpy(&estimate.tokens, codes, sizeof(int64_t));
  std::memcpy(&estimate.known, codes + 2, sizeof(int64_t));
  return estimate;
}

/// Returns the sum of all ranks' estimates. `gathered` holds one encoded estimate per rank.
Estimate sum_of_estimates(const int32_t* gathered, int64_t ranks, int64_t experts) {
  Estimate all = read_estimate(gathered, experts);
  for (int64_t r = 1; r < ranks; ++r) {
    all.add(read_estimate(gathered + r * estimate_codes(experts), experts));
  }
  return all;
}

TwoPhaseOptions two_phase_options(const Op& op) {
  return {.cap = attr_int(op, "residents"),
          .seed = static_cast<uint64_t>(attr_int(op, "seed")),
          .weighted = attr_int(op, "weighted") != 0};
}

std::vector<double> wanted_by(const Op& op, const Estimate& all, int64_t devices) {
  return wanted_devices(all, devices, attr_int(op, "normalise") != 0);
}

bool all_zero(std::span<const int64_t> values) {
  return std::all_of(values.begin(), values.end(), [](int64_t v) { return v == 0; });
}

bool has_estimate(const Op& op) {
  return attr_int(op, "estimated") != 0;
}

std::vector<TensorSpec> infer_expect(const Graph& g, const Op& op) {
  for (size_t i = 0; i < op.inputs.size(); ++i) expect_index(g, op, i, {kAny, kAny});
  return {{{estimate_codes(expect_attr(op, "experts", 1))}, DType::kI32}};
}

constexpr auto run_expect = []<class T>(const KernelCall<T>& c) {
  const int64_t experts = attr_int(c.op, "experts"), layer = attr_int(c.op, "layer_number");
  Estimate estimate;
  estimate.mass.resize(static_cast<size_t>(experts));
  estimate.tokens = c.in_shape(0)[0];
  if (c.rank.popularity != nullptr) {
    const PathProfile& profile = *c.rank.popularity;
    TokenPaths paths(profile.options(), estimate.tokens);
    for (size_t i = 0; i < c.op.inputs.size(); ++i) {
      paths.add({c.in_i32(i), static_cast<size_t>(num_elements(c.in_shape(i)))}, c.in_shape(i)[1]);
    }
    if (profile.covers(layer)) estimate = profile.estimate(layer, paths);
  }
  write_estimate(estimate, c.out_i32(0));
};

std::vector<TensorSpec> infer_place(const Graph& g, const Op& op) {
  const PlacementBounds bounds = bounds_of(op);
  expect_index(g, op, 0, {g.num_ranks, estimate_codes(bounds.experts)});
  return {{{Placement::code_size(bounds)}, DType::kI32}};
}

void write_placement(const Placement& placement, int32_t* codes) {
  std::copy(placement.codes().begin(), placement.codes().end(), codes);
}

constexpr auto run_place = []<class T>(const KernelCall<T>& c) {
  const Estimate all = sum_of_estimates(c.in_i32(0), c.graph.num_ranks, bounds_of(c.op).experts);
  write_placement(placed_as_expected(c.op, all), c.out_i32(0));
};

std::vector<TensorSpec> infer_tune(const Graph& g, const Op& op) {
  const PlacementBounds bounds = bounds_of(op);
  expect_index(g, op, 0, {g.num_ranks, bounds.experts});
  if (has_estimate(op)) {
    expect_index(g, op, 1, {g.num_ranks, estimate_codes(bounds.experts)});
    expect_placement(g, op, 2, bounds);
  }
  compare_named(attr_string(op, "compare", "list"));
  return {{{Placement::code_size(bounds)}, DType::kI32}};
}

constexpr auto run_tune = []<class T>(const KernelCall<T>& c) {
  const int64_t ranks = c.graph.num_ranks, experts = bounds_of(c.op).experts;
  std::vector<int64_t> counts(static_cast<size_t>(experts));
  for (int64_t r = 0; r < ranks; ++r) {
    for (int64_t e = 0; e < experts; ++e) {
      counts[static_cast<size_t>(e)] += c.in_i32(0)[r * experts + e];
    }
  }
  Estimate all;
  if (has_estimate(c.op)) all = sum_of_estimates(c.in_i32(1), ranks, experts);
  if (const auto placed = placed_by_counts(c.op, all, counts)) {
    write_placement(*placed, c.out_i32(0));
  } else {
    std::copy_n(c.in_i32(2), num_elements(c.out_shape(0)), c.out_i32(0));
  }
};

/// Returns the number n of weight tensors of a swap_in. Its inputs are the placement and n weights.
/// With attr keep=1 they are the placement, the previous placement, n weights, and n tensors of
/// slots: those of each weight, as the previous placement filled them.
size_t weights_of(const Op& op) {
  return attr_int(op, "keep") != 0 ? (op.inputs.size() - 2) / 2 : op.inputs.size() - 1;
}

std::vector<TensorSpec> infer_swap_in(const Graph& g, const Op& op) {
  const PlacementBounds bounds = bounds_of(op);
  const bool keep = attr_int(op, "keep") != 0;
  expect_placement(g, op, 0, bounds);
  if (keep) expect_placement(g, op, 1, bounds);
  const size_t n = weights_of(op), first = keep ? 2 : 1;
  std::vector<TensorSpec> specs;
  for (size_t i = 0; i < n; ++i) {
    Shape slots = expect_matrix(g, op, first + i);
    slots[0] = bounds.experts;
    expect_shape(g, op, first + i, slots);
    slots[0] = bounds.slots();
    if (keep) expect_shape(g, op, first + n + i, slots);
    specs.push_back({slots, arg(g, op, first + i).dtype});
  }
  return specs;
}

/// The bytes of the experts that are copied to a device. If the context does not state their
/// number: none with attr keep=1 (the estimates are taken to be right), else experts divided by
/// devices.
Work work_swap_in(const Graph& g, const Op& op, const WorkContext& context) {
  const PlacementBounds bounds = bounds_of(op);
  double experts = context.loaded_experts;
  if (experts < 0 && attr_int(op, "keep") != 0) experts = 0;
  if (experts < 0) {
    experts = static_cast<double>(bounds.experts) / static_cast<double>(bounds.devices);
  }
  double bytes = 0;
  for (const TensorId t : op.outputs) {
    bytes += experts * static_cast<double>(g.bytes(t)) / static_cast<double>(bounds.slots());
  }
  return {.bytes = 2 * bytes, .host_bytes = bytes};
}

constexpr auto run_swap_in = []<class T>(const KernelCall<T>& c) {
  for (const kernels::Copy& one :
       swap_in_copies(c.graph, c.op, c.inputs, c.outputs, c.rank.rank, Bytes{sizeof(T)})) {
    std::memcpy(one.to, one.from, static_cast<size_t>(one.bytes));
  }
};

/// OpDef::host_inputs: the placements and the weights, which are the first inputs.
std::vector<size_t> inputs_in_host_memory(const Op& op) {
  std::vector<size_t> inputs((attr_int(op, "keep") != 0 ? 2 : 1) + weights_of(op));
  std::iota(inputs.begin(), inputs.end(), size_t{0});
  return inputs;
}

constexpr int kMaxInputs = 64;

}  // namespace

Placement placed_as_expected(const Op& op, const Estimate& all) {
  const PlacementBounds b = bounds_of(op);
  if (all_zero(all.mass)) return fixed_mapping(b.experts, b.devices, two_phase_options(op));
  return place_by_popularity(wanted_by(op, all, b.devices), b.devices, two_phase_options(op));
}

std::optional<Placement> placed_by_counts(const Op& op, const Estimate& all,
                                          std::span<const int64_t> counts) {
  const PlacementBounds b = bounds_of(op);
  if (has_estimate(op)) {
    std::vector<double> wanted(counts.size());
    if (all.tokens > 0) wanted = wanted_by(op, all, b.devices);
    const Compare compare = compare_named(attr_string(op, "compare", "list"));
    const bool holds = estimate_holds(wanted, counts, attr_int(op, "k", 1), compare);
    if (holds || all_zero(counts)) return std::nullopt;
  } else if (all_zero(counts)) {
    return fixed_mapping(b.experts, b.devices, two_phase_options(op));
  }
  return place_by_popularity(wanted_devices(counts, b.devices), b.devices, two_phase_options(op));
}

void check_popularity(const Graph& graph, int64_t layers, const PathProfile& popularity) {
  const PathOptions& profile = popularity.options();
  const auto check_same = [](const char* what, int64_t of_profile, int64_t of_plan) {
    if (of_profile == of_plan) return;
    throw user_error(
        "popularity.{}: the popularity profile has {}, but the plan has {}; the two must be equal",
        what, of_profile, of_plan);
  };
  for (const Op& op : graph.ops()) {
    if (!op.kind.valid() || graph.def(op).moe != MoeOp::kExpect) continue;
    check_same("layers", profile.layers, layers);
    check_same("experts", profile.experts, bounds_of(op).experts);
    check_same("path", profile.path, attr_int(op, "path"));
    return;
  }
}

bool is_swap_in(const Graph& graph, OpId op) {
  return is(graph, op, MoeOp::kSwapIn);
}

int64_t num_loaded(const Placement& placement, const Placement* before, int64_t device) {
  int64_t count = 0;
  for (int64_t s = 0; s < placement.bounds().slots(); ++s) {
    const int64_t expert = placement.at(device, s);
    const bool there = before != nullptr && before->at(device, s) == expert;
    count += expert >= 0 && !there ? 1 : 0;
  }
  return count;
}

std::vector<kernels::Copy> swap_in_copies(const Graph& g, const Op& op,
                                          std::span<void* const> inputs,
                                          std::span<void* const> outputs, int64_t rank,
                                          Bytes element_bytes) {
  const PlacementBounds bounds = bounds_of(op);
  const auto placement_in = [&](size_t i) {
    return Placement::decode(bounds, {static_cast<const int32_t*>(inputs[i]),
                                      static_cast<size_t>(Placement::code_size(bounds))});
  };
  const bool keep = attr_int(op, "keep") != 0;
  const int64_t device = group_of(g, op).place(rank);
  const Placement placement = placement_in(0), before = placement_in(keep ? 1 : 0);
  const size_t n = weights_of(op), first = keep ? 2 : 1;
  std::vector<kernels::Copy> copies;
  for (size_t i = 0; i < n; ++i) {
    const Shape& slots = g.tensor(op.outputs[i]).shape;
    const Bytes each = num_elements(slots) / slots[0] * element_bytes;
    for (int64_t s = 0; s < bounds.slots(); ++s) {
      const int64_t expert = placement.at(device, s);
      if (expert < 0) continue;
      const bool there = keep && before.at(device, s) == expert;
      const void* const from = inputs[there ? first + n + i : first + i];
      copies.push_back({static_cast<std::byte*>(outputs[i]) + s * each,
                        static_cast<const std::byte*>(from) + (there ? s : expert) * each, each});
    }
  }
  return copies;
}

const OpDef kExpectExperts = {.name = "expect_experts",
                              .doc =
                                  "one rank's estimate of the popularity of a layer's experts, "
                                  "from the paths of its tokens (Lina)",
                              .moe = MoeOp::kExpect,
                              .inputs = {several("expert", kMaxInputs, Role::kExpert)},
                              .outputs = {{"estimate", Role::kEstimate}},
                              .infer = infer_expect,
                              .work = work_moves,
                              .gradient = no_gradient,
                              .run = wide_types(run_expect),
                              .on_host = always};

const OpDef kPlaceExpected = {.name = "place_expected",
                              .doc = "computes a placement from the estimates of all ranks (Lina)",
                              .lane = LaneKind::kHost,
                              .moe = MoeOp::kPlaceExpected,
                              .inputs = {{"estimates", Role::kEstimate}},
                              .outputs = {{"placement", Role::kPlacement}},
                              .infer = infer_place,
                              .work = work_moves,
                              .gradient = no_gradient,
                              .run = wide_types(run_place),
                              .on_host = always};

const OpDef kFineTune = {.name = "fine_tune",
                         .doc =
                             "computes a new placement from the gate's counts where they differ "
                             "from the estimate (Lina); without attr estimated always",
                         .moe = MoeOp::kFineTune,
                         .inputs = {{"loads", Role::kLoads},
                                    with("estimated", "estimates", Role::kEstimate),
                                    with("estimated", "placement", Role::kPlacement)},
                         .outputs = {{"next", Role::kNextPlacement}},
                         .infer = infer_tune,
                         .work = work_moves,
                         .gradient = no_gradient,
                         .run = wide_types(run_tune),
                         .on_host = always};

const OpDef kSwapIn = {.name = "swap_in",
                       .doc =
                           "copies the weights of the experts in this device's slots from host "
                           "memory; with attr keep=1 only those that the slots do not hold already",
                       .lane = LaneKind::kHost,
                       .moe = MoeOp::kSwapIn,
                       .inputs = {{"placement", Role::kPlacement},
                                  with("keep", "before", Role::kPlacement),
                                  several("weights", 2 * kMaxInputs)},
                       .outputs = {several("slots", kMaxInputs)},
                       .infer = infer_swap_in,
                       .work = work_swap_in,
                       .gradient = no_gradient,
                       .loose_slots = true,
                       .run = wide_types(run_swap_in),
                       .host_inputs = inputs_in_host_memory};

}  // namespace moe::ops
