// y = x rounded from float32 to bfloat16. Used for an operand of several products (OpDef::rounds),
// so that each of them need not round it again. In a run with floats of one width, y is equal to x.
#include "engine/ops/defs.h"
#include "engine/ops/rules.h"

namespace moe::ops {
namespace {

std::vector<TensorSpec> infer_rounded(const Graph& g, const Op& op) {
  const Tensor& x = arg(g, op, 0);
  if (x.dtype != DType::kF32) {
    throw user_error("op '{}' (round): input 0 '{}' is {}, expected f32", op.name, x.name,
                     name_of(x.dtype));
  }
  Shape y = x.shape;
  y[0] = attr_int(op, "rows", y[0]);
  if (y[0] < x.shape[0]) {
    throw user_error("op '{}' (round): attribute rows is {}, expected {} or more, the rows of x",
                     op.name, y[0], x.shape[0]);
  }
  return {{y, DType::kBF16, x.stored_rows}};
}

constexpr auto run_rounded = []<class T>(const KernelCall<T>& c) {
  const int64_t n = stored_elements(arg(c.graph, c.op, 0));
  const int64_t beyond = num_elements(c.out_shape(0)) - num_elements(c.in_shape(0));
  c.k.round(c.out(0), c.wide(0), n, c.stream);
  if (beyond > 0) c.k.clear(c.out(0) + n, beyond * static_cast<int64_t>(sizeof(T)), c.stream);
};

}  // namespace

/// Has loose_slots, so that y is not checked for finite values: x may be expert slots, of which
/// those without an expert have undefined values, and any other x was checked where it was written.
const OpDef kRound = {.name = "round",
                      .doc =
                          "y = x rounded to bf16, once for all products that read it; with attr "
                          "rows followed by rows of zeros, up to so many rows",
                      .inputs = {{"x"}},
                      .outputs = {{"y"}},
                      .infer = infer_rounded,
                      .work = work_each<1>,
                      .gradient = no_gradient,
                      .loose_slots = true,
                      .run = any_type(run_rounded)};

}  // namespace moe::ops
