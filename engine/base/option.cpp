#include "engine/base/option.h"

#include <cmath>

#include "engine/base/errors.h"
#include "engine/base/names.h"

namespace moe {
namespace {

std::string text_of(const OptionValue& value) {
  if (const bool* b = std::get_if<bool>(&value)) return *b ? "true" : "false";
  if (const double* d = std::get_if<double>(&value)) return fmt::format("{}", *d);
  return fmt::format("'{}'", std::get<std::string>(value));
}

std::string allowed_of(const OptionSpec& spec) {
  constexpr const char* kTypes[] = {"true or false", "a number", "a string"};
  const std::string type = spec.is_integer ? "a whole number" : kTypes[spec.default_value.index()];
  return spec.lo < spec.hi ? fmt::format("{} from {} to {}", type, spec.lo, spec.hi) : type;
}

bool fits(const OptionSpec& spec, const OptionValue& value) {
  if (value.index() != spec.default_value.index()) return false;
  const double* const number = std::get_if<double>(&value);
  if (number == nullptr) return true;
  const bool inside = spec.lo >= spec.hi || (*number >= spec.lo && *number <= spec.hi);
  return inside && (!spec.is_integer || *number == std::floor(*number));  // a NaN is not inside
}

void check(std::string_view owner, const OptionSpec& spec, const OptionValue& value) {
  if (!fits(spec, value)) {
    throw user_error("{}.{} = {} is not allowed; give {}", owner, spec.name, text_of(value),
                     allowed_of(spec));
  }
  const std::string* const text = std::get_if<std::string>(&value);
  if (text == nullptr || spec.allowed.empty()) return;
  for (const std::string& allowed : spec.allowed) {
    if (*text == allowed) return;
  }
  throw UserError(unknown_name(fmt::format("{}.{}", owner, spec.name), *text, spec.allowed));
}

}  // namespace

OptionSpec number_option(std::string name, double default_value, double lo, double hi,
                         std::string doc) {
  return {std::move(name), default_value, std::move(doc), lo, hi};
}

OptionSpec integer_option(std::string name, double default_value, double lo, double hi,
                          std::string doc) {
  OptionSpec spec = number_option(std::move(name), default_value, lo, hi, std::move(doc));
  spec.is_integer = true;
  return spec;
}

Options resolve_options(std::string_view owner, const std::vector<OptionSpec>& specs,
                        const Options& given) {
  Options resolved;
  std::vector<std::string> names;
  for (const OptionSpec& spec : specs) {
    resolved[spec.name] = spec.default_value;
    names.push_back(spec.name);
  }
  for (const auto& [name, value] : given) {
    if (specs.empty()) throw user_error("{} has no options, but '{}' was given", owner, name);
    if (!resolved.contains(name)) {
      throw UserError(unknown_name(fmt::format("option of {}", owner), name, names));
    }
    resolved[name] = value;
  }
  for (const OptionSpec& spec : specs) check(owner, spec, resolved[spec.name]);
  return resolved;
}

std::map<std::string, double> resolve_numbers(std::string_view owner,
                                              const std::vector<OptionSpec>& specs,
                                              const std::map<std::string, double>& given) {
  std::map<std::string, double> numbers;
  for (const auto& [name, value] :
       resolve_options(owner, specs, Options(given.begin(), given.end()))) {
    numbers[name] = std::get<double>(value);
  }
  return numbers;
}

}  // namespace moe
