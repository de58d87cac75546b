#include "engine/exec/run_options.h"

#include "engine/base/errors.h"
#include "engine/base/names.h"

namespace moe {
namespace {

constexpr const char* kNames[] = {"f32", "f64", "bf16"};  // by Precision

}  // namespace

const char* precision_name(Precision precision) {
  return kNames[static_cast<size_t>(precision)];
}

Precision precision_named(std::string_view name) {
  for (size_t i = 0; i < std::size(kNames); ++i) {
    if (name == kNames[i]) return static_cast<Precision>(i);
  }
  throw UserError(unknown_name("precision", name, {std::begin(kNames), std::end(kNames)}));
}

}  // namespace moe
