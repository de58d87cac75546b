// y = x rounded from float32 to bfloat16. Used for an operand of several products (OpDef::rounds),
// so that each of them need not round it again. In a run with floats of one width, y is equal to x.
#include "engine/ops/defs.h"
#include "engine/ops/rules.h"

namespace moe::ops {
namespace {

std::vector<TensorSpec> infer(const Graph& g, const Op& op) {
  const Tensor& x = arg(g, op, 0);
  if (x.dtype != DType::kF32) {
    throw user_error("op '{}' (round): input 0 '{}' is {}, expected f32", op.name, x.name,
                     name_of(x.dtype));
  }
  return {{x.shape, DType::kBF16, x.stored_rows}};
}

constexpr auto run = []<class T>(const KernelCall<T>& c) {
  c.k.round(c.out(0), c.wide(0), stored_elements(arg(c.graph, c.op, 0)), c.stream);
};

}  // namespace

/// Has loose_slots, so that y is not checked for finite values: x may be expert slots, of which
/// those without an expert have undefined values, and any other x was checked where it was written.
const OpDef kRound = {.name = "round",
                      .doc = "y = x rounded to bf16, once for all products that read it",
                      .inputs = {{"x"}},
                      .outputs = {{"y"}},
                      .infer = infer,
                      .work = work_each<1>,
                      .gradient = no_gradient,
                      .loose_slots = true,
                      .run = any_type(run)};

}  // namespace moe::ops
