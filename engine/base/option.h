// Options of passes, placement policies and workloads: declared once, as strict checking, `list`
// and the type stubs read them.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace moe {

using OptionValue = std::variant<bool, double, std::string>;
using Options = std::map<std::string, OptionValue>;

/// What of the cost model a pass or a policy asks for. kRates: a few ops, which a placement's
/// planner gets as PlacementRates. kTimes: how long ops take, by which the step is planned.
enum class Reads : uint8_t { kNothing, kRates, kTimes };
/// "nothing", "rates", "times".
const char* reads_name(Reads reads);

struct OptionSpec {
  std::string name;
  OptionValue default_value;
  std::string doc;                        // unit, range, source
  double lo = 0, hi = 0;                  // allowed numbers where lo < hi
  std::vector<std::string> allowed = {};  // allowed strings
  std::optional<double> off = {};         // the number with which the pass changes nothing
  bool is_integer = false;                // only whole numbers
  Reads reads = Reads::kNothing;          // what is read where the value is neither 0 nor false
};

/// A number from lo to hi.
OptionSpec number_option(std::string name, double default_value, double lo, double hi,
                         std::string doc);
/// A whole number from lo to hi.
OptionSpec integer_option(std::string name, double default_value, double lo, double hi,
                          std::string doc);

/// Every option: the given ones, and the defaults of the others. Throws UserError "<owner>.<option>
/// = <value> is not allowed; give ...", or with the nearest name for one that is unknown.
Options resolve_options(std::string_view owner, const std::vector<OptionSpec>& specs,
                        const Options& given);
/// The same where all options are numbers.
std::map<std::string, double> resolve_numbers(std::string_view owner,
                                              const std::vector<OptionSpec>& specs,
                                              const std::map<std::string, double>& given);

}  // namespace moe
