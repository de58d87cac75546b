// What a rank of a group has of the input tokens where the group splits rows of sequences and the
// vocabulary (tp). The kernels of both ops are on the CPU.
#include "engine/ops/defs.h"
#include "engine/ops/rules.h"

namespace moe::ops {
namespace {

int64_t place(const Graph& g, const Op& op, int64_t rank) {
  return group_of(g, op).place(rank);
}

std::vector<TensorSpec> infer_rows(const Graph& g, const Op& op) {
  expect_index(g, op, 0, {kAny, kAny});
  Shape ids = shape(g, op, 0);
  const int64_t members = group_of(g, op).size;
  if (ids[1] % members != 0) {
    throw user_error("op '{}' (own_rows): the {} tokens of a sequence must be a multiple of the {} "
                     "ranks of the group",
                     op.name, ids[1], members);
  }
  ids[1] /= members;
  return {{ids, DType::kI32}};
}

constexpr auto run_rows = []<class T>(const KernelCall<T>& c) {
  const int64_t all = c.in_shape(0)[1], own = c.out_shape(0)[1];
  const int32_t* const from = c.in_i32(0) + place(c.graph, c.op, c.rank.rank) * own;
  for (int64_t b = 0; b < c.in_shape(0)[0]; ++b) {
    std::copy_n(from + b * all, own, c.out_i32(0) + b * own);
  }
};

std::vector<TensorSpec> infer_vocabulary(const Graph& g, const Op& op) {
  expect_index(g, op, 0, {kAny, kAny});
  expect_attr(op, "vocab", 1);
  group_of(g, op);
  return {{shape(g, op, 0), DType::kI32}};
}

constexpr auto run_vocabulary = []<class T>(const KernelCall<T>& c) {
  const auto rows = static_cast<int32_t>(attr_int(c.op, "vocab"));
  const auto first = static_cast<int32_t>(place(c.graph, c.op, c.rank.rank)) * rows;
  const int64_t n = num_elements(c.in_shape(0));
  std::transform(c.in_i32(0), c.in_i32(0) + n, c.out_i32(0), [&](int32_t id) {
    return id >= first && id < first + rows ? id - first : -1;
  });
};

}  // namespace

const OpDef kOwnRows = {
    .name = "own_rows",
    .doc = "the part of each sequence of ids at the rank's place in the group; attrs group, stride",
    .inputs = {{"ids", Role::kIds}},
    .outputs = {{"own", Role::kIds}},
    .infer = infer_rows,
    .work = work_moves,
    .gradient = no_gradient,
    .axes = [](const Graph&, const Op&) { return std::vector<AxisTuple>{{{0}, {0}}}; },
    .run = any_type(run_rows),
    .on_host = always};

const OpDef kOwnVocabulary = {
    .name = "own_vocabulary",
    .doc =
        "ids less the first of the attr vocab ids that the rank has by its place in the group, or "
        "-1 for those of other ranks; attrs group, stride",
    .inputs = {{"ids", Role::kIds}},
    .outputs = {{"own", Role::kIds}},
    .infer = infer_vocabulary,
    .work = work_moves,
    .gradient = no_gradient,
    .axes = [](const Graph&, const Op&) { return std::vector<AxisTuple>{{{0}, {0}}}; },
    .run = any_type(run_vocabulary),
    .on_host = always};

}  // namespace moe::ops
