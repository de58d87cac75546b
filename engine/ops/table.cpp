#include "engine/ops/defs.h"
#include "engine/ops/ops.h"

namespace moe {

const OpTable& op_table() {
  using namespace ops;
#define MOE_LIST_OP(name) &k##name,
  static const OpTable table = [] {
    OpTable all({MOE_OPS(MOE_LIST_OP)});
    check_declared(all);
    return all;
  }();
#undef MOE_LIST_OP
  return table;
}

Attrs store_attr(DType dtype) {
  if (dtype != DType::kBF16) return {};
  return {{"store", std::string(name_of(dtype))}};
}

}  // namespace moe
