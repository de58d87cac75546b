#include "engine/graph/row_use.h"

#include "engine/base/errors.h"

namespace moe {
namespace {

/// Sets `into` to the attribute of this name, if there is one, and removes it.
template <class T>
void take(Attrs& attrs, const char* name, const std::string& what, T& into) {
  const auto found = attrs.find(name);
  if (found == attrs.end()) return;
  const auto* integer = std::get_if<int64_t>(&found->second);
  const char* allowed = "an integer";
  bool right = integer != nullptr;
  if constexpr (std::is_same_v<T, std::string>) {
    allowed = "a text that is not empty";
    const auto* text = std::get_if<std::string>(&found->second);
    right = text != nullptr && !text->empty();
    if (right) into = *text;
  } else if constexpr (std::is_same_v<T, double> || std::is_same_v<T, std::optional<double>>) {
    allowed = "a number";
    const auto* number = std::get_if<double>(&found->second);
    if (integer != nullptr) into = static_cast<double>(*integer);
    if (number != nullptr) into = *number;
    right = right || number != nullptr;
  } else if (right) {
    into = static_cast<T>(*integer);
  }
  if (!right) {
    throw user_error("op '{}': attribute '{}' has a value of another type, allowed: {}", what, name,
                     allowed);
  }
  attrs.erase(found);
}

}  // namespace

Attrs attrs_of(const RowUse& rows) {
  const RowUse usual;
  Attrs attrs;
  const auto put = [&](const char* name, const auto& value, const auto& common) {
    if (value != common) attrs[name] = value;
  };
  if (rows.to != RowUse::To::kNowhere) attrs["to"] = rows.to_expert() ? "expert" : "source";
  put("irregular", int64_t{rows.irregular}, int64_t{0});
  put("group", rows.group.size, usual.group.size);
  put("stride", rows.group.stride, usual.group.stride);
  put("rounds", rows.round.of, usual.round.of);
  put("round", rows.round.number, usual.round.number);
  put("cut", rows.cut, usual.cut);
  if (rows.share) attrs["share"] = *rows.share;
  put("occupancy", rows.occupancy, usual.occupancy);
  put("sources", rows.sources, usual.sources);
  put("stored", rows.stored, usual.stored);
  put("loose", int64_t{rows.loose}, int64_t{0});
  return attrs;
}

RowUse take_row_use(Attrs& attrs, const std::string& what) {
  RowUse rows;
  std::string to;
  take(attrs, "to", what, to);
  if (!to.empty() && to != "expert" && to != "source") {
    throw user_error("op '{}': attribute 'to' is '{}', allowed: expert, source", what, to);
  }
  if (!to.empty()) rows.to = to == "expert" ? RowUse::To::kExpert : RowUse::To::kSource;
  take(attrs, "irregular", what, rows.irregular);
  take(attrs, "group", what, rows.group.size);
  take(attrs, "stride", what, rows.group.stride);
  take(attrs, "rounds", what, rows.round.of);
  take(attrs, "round", what, rows.round.number);
  take(attrs, "cut", what, rows.cut);
  take(attrs, "share", what, rows.share);
  take(attrs, "occupancy", what, rows.occupancy);
  take(attrs, "sources", what, rows.sources);
  take(attrs, "stored", what, rows.stored);
  take(attrs, "loose", what, rows.loose);
  return rows;
}

}  // namespace moe
