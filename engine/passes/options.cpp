// Options of a pass: defaults and strict checking.
#include "engine/base/errors.h"
#include "engine/base/names.h"
#include "engine/passes/pipeline.h"

namespace moe {
namespace {

std::string option_text(const OptionValue& value) {
  if (const bool* b = std::get_if<bool>(&value)) return *b ? "true" : "false";
  if (const double* d = std::get_if<double>(&value)) return fmt::format("{}", *d);
  return fmt::format("'{}'", std::get<std::string>(value));
}

const char* type_name(const OptionValue& value) {
  constexpr const char* kNames[] = {"true or false", "a number", "a string"};
  return kNames[value.index()];
}

void check_option(const PassDef& pass, const OptionSpec& spec, const OptionValue& value) {
  if (value.index() != spec.otherwise.index()) {
    throw user_error("{}.{} = {}: {} is expected", pass.name, spec.name, option_text(value),
                     type_name(spec.otherwise));
  }
  const double* number = std::get_if<double>(&value);
  const bool outside = number != nullptr && !(*number >= spec.lo && *number <= spec.hi);
  if (spec.lo < spec.hi && outside) {
    throw user_error("{}.{} = {}: {} to {} is allowed", pass.name, spec.name, *number, spec.lo,
                     spec.hi);
  }
  const std::string* text = std::get_if<std::string>(&value);
  if (text == nullptr || spec.allowed.empty()) return;
  for (const std::string& allowed : spec.allowed) {
    if (*text == allowed) return;
  }
  throw UserError(unknown_name(fmt::format("{}.{}", pass.name, spec.name), *text, spec.allowed));
}

}  // namespace

Options resolve_options(const PassDef& pass, const Options& given) {
  Options resolved;
  std::vector<std::string> names;
  for (const OptionSpec& spec : pass.options) {
    resolved[spec.name] = spec.otherwise;
    names.push_back(spec.name);
  }
  for (const auto& [name, value] : given) {
    if (!resolved.contains(name)) {
      throw UserError(unknown_name(fmt::format("option of pass '{}'", pass.name), name, names));
    }
    resolved[name] = value;
  }
  for (const OptionSpec& spec : pass.options) check_option(pass, spec, resolved[spec.name]);
  return resolved;
}

}  // namespace moe
