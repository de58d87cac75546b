// Strong ids: an index into a vector, of a type that cannot be mixed up with another kind of index.
// An id that was not set is -1. In Lua, ids count from 1 (converted in bindings/).
#pragma once

#include <compare>
#include <cstdint>
#include <functional>

namespace moe {

template <class Tag>
struct Id {
  int32_t value = -1;

  constexpr Id() = default;
  constexpr explicit Id(int64_t v) : value(static_cast<int32_t>(v)) {}
  constexpr bool valid() const { return value >= 0; }
  constexpr size_t index() const { return static_cast<size_t>(value); }
  constexpr auto operator<=>(const Id&) const = default;
};

using OpId = Id<struct OpTag>;
using TensorId = Id<struct TensorTag>;
using LaneId = Id<struct LaneTag>;

}  // namespace moe

template <class Tag>
struct std::hash<moe::Id<Tag>> {
  size_t operator()(moe::Id<Tag> id) const noexcept { return std::hash<int32_t>()(id.value); }
};
