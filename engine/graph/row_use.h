// RowUse: what an op of an MoE layer, or a collective, does with rows: which of them are its part,
// where it sends them, and how they are stored. Text and Lua write these values among the op's
// attributes, under the names below; C++ reads and writes the members.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>

#include "engine/base/group.h"

namespace moe {

using AttrValue = std::variant<int64_t, double, std::string>;
using Attrs = std::map<std::string, AttrValue>;

struct RowUse {
  /// to: where an exchange sends rows, to the ranks of their experts or back to their sources.
  enum class To : uint8_t { kNowhere, kExpert, kSource } to = To::kNowhere;
  /// irregular: an exchange sends only rows in use, as its inputs count them; false: all slots.
  bool irregular = false;
  /// group, stride: the ranks of a collective.
  Group group;
  /// rounds, round: the round that an exchange, or an op on its rows, is one of.
  Round round;
  /// cut: the part along the rows in use, as ops/row_cut.h says; empty: all.
  std::string cut;
  /// share: the expected share of the rows of the whole batch, of an op that is one part of the
  /// batch; only such an op has it.
  std::optional<double> share;
  /// occupancy: with a placement, the expected share of expert slots that hold an expert.
  double occupancy = 1;
  /// sources: in a step of a two-step exchange to the sources, the sources per rank of the step
  /// before; 0: not such a step.
  int64_t sources = 0;
  /// stored: rows for which the output has room (Tensor::stored_rows), where the op writes rows at
  /// another side or in another order than it reads them; 0: not packed.
  int64_t stored = 0;
  /// loose: rows that hold no token may hold anything, as no op reads them.
  bool loose = false;

  bool to_expert() const { return to == To::kExpert; }
  /// Whether the op is a part along the rows in use or a round.
  bool is_cut() const { return !cut.empty() || round.of > 1; }
  bool operator==(const RowUse&) const = default;
};

/// Returns the values that are not the default, as attributes.
Attrs attrs_of(const RowUse& rows);
/// Moves the attributes that are members of RowUse out of `attrs`. Throws UserError naming `what`
/// and the attribute for a value of another type, or one that is not allowed.
RowUse take_row_use(Attrs& attrs, const std::string& what);

}  // namespace moe
