// Options of passes, placement policies and workloads. An option is declared once, as an
// OptionSpec; strict checking, `moebench list` and the type stubs read the declaration. Options
// that are members of a struct are declared as fields instead (field.h).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "engine/base/names.h"

namespace moe {

using OptionValue = std::variant<bool, double, std::string>;
using Options = std::map<std::string, OptionValue>;

/// What a pass or a policy reads from the cost model. kRates: the times of a few ops, which the
/// planner of a placement gets as PlacementRates. kTimes: durations of ops, for planning the step.
enum class Reads : uint8_t { kNothing, kRates, kTimes };
constexpr std::array<const char*, 3> names_of(Reads) {
  return {"nothing", "rates", "times"};
}

struct OptionSpec {
  std::string name;
  OptionValue default_value;
  std::string doc;        // unit, range, source
  double lo = 0, hi = 0;  // the allowed range of a number, where lo < hi; any number otherwise
  std::vector<std::string> allowed = {};  // the allowed strings; empty: any string
  std::optional<double> off = {};  // the value of the option with which the pass changes nothing
  bool is_integer = false;         // only whole numbers are allowed
  Reads reads = Reads::kNothing;   // what the pass reads if the value is neither 0 nor false
  // Options that have no effect if this one is given and is not its default: an error at a recipe's
  // line that gives both.
  std::vector<std::string> replaces = {};
};

/// Declares an option that is a number from lo to hi.
OptionSpec number_option(std::string name, double default_value, double lo, double hi,
                         std::string doc);
/// Declares an option that is a whole number from lo to hi.
OptionSpec integer_option(std::string name, double default_value, double lo, double hi,
                          std::string doc);

/// Returns every option in `specs` with its given or default value. Throws UserError
/// "<owner>.<option> = <value> is not allowed; give ...", or for an unknown option an error with
/// the nearest name.
Options resolve_options(std::string_view owner, const std::vector<OptionSpec>& specs,
                        const Options& given);
/// As resolve_options(), for options that are all numbers.
std::map<std::string, double> resolve_numbers(std::string_view owner,
                                              const std::vector<OptionSpec>& specs,
                                              const std::map<std::string, double>& given);

}  // namespace moe
