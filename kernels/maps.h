// Functions of one number. Each is a row of MOE_MAPS and a struct with its formulas, which all
// tables of kernels (reference, fast, CUDA) compute; the op that runs it is in
// engine/ops/elementwise.cpp. X is double, float or a vector of floats; M has the functions of
// ScalarMath for it.
#pragma once

#include <cmath>
#include <cstdint>

#ifdef __CUDACC__
#define MOE_MAP __host__ __device__ inline __attribute__((always_inline))
#else
#define MOE_MAP inline __attribute__((always_inline))
#endif

namespace moe::kernels {

#define MOE_MAPS(X) X(Scale) X(Sigmoid) X(Relu)

#define MOE_NAME_OF_MAP(name) k##name,
enum class Map : int32_t { MOE_MAPS(MOE_NAME_OF_MAP) };
#undef MOE_NAME_OF_MAP
#define MOE_VALUE_OF_MAP(name) Map::k##name,
inline constexpr Map kMaps[] = {MOE_MAPS(MOE_VALUE_OF_MAP)};
#undef MOE_VALUE_OF_MAP

struct ScalarMath {
  template <class X>
  static MOE_MAP X exp(X x) {
    return std::exp(x);
  }
  template <class X>
  static MOE_MAP X reciprocal(X x) {
    return 1 / x;
  }
  /// Of NaN: NaN.
  template <class X>
  static MOE_MAP X at_least_0(X x) {
    return x < 0 ? 0 : x;
  }
};

// The formulas: of() is the function, where `factor` is that of the kernel `map`. dx() is dy times
// the function's slope where its value is y; a map without it has no kernel map_dx.
namespace maps {

struct Scale {
  template <class M, class X, class Factor>
  static MOE_MAP X of(X x, Factor factor) {
    return factor * x;
  }
};

struct Sigmoid {
  template <class M, class X, class Factor>
  static MOE_MAP X of(X x, Factor) {
    return M::reciprocal(1.0f + M::exp(-x));
  }
  template <class M, class X>
  static MOE_MAP X dx(X dy, X y) {
    return dy * (y * (1.0f - y));
  }
};

struct Relu {
  template <class M, class X, class Factor>
  static MOE_MAP X of(X x, Factor) {
    return M::at_least_0(x);
  }
  template <class M, class X>
  static MOE_MAP X dx(X dy, X y) {
    return y <= X{} ? X{} : dy;
  }
};

}  // namespace maps

/// Calls f with the formulas of `map`.
template <class F>
MOE_MAP constexpr void with_formulas(Map map, F&& f) {
#define MOE_CALL_MAP(name) \
  if (map == Map::k##name) f(maps::name());
  MOE_MAPS(MOE_CALL_MAP)
#undef MOE_CALL_MAP
}

/// Calls f with the formulas of `map` if they have dx().
template <class M, class X, class F>
MOE_MAP constexpr void with_slope(Map map, F&& f) {
  with_formulas(map, [&](auto formulas) {
    if constexpr (requires(X x) { formulas.template dx<M>(x, x); }) f(formulas);
  });
}

/// Whether the formulas of `map` have dx(), so that it has a kernel map_dx.
MOE_MAP constexpr bool has_slope(Map map) {
  bool has = false;
  with_slope<ScalarMath, double>(map, [&](auto) { has = true; });
  return has;
}

/// The value of `map` at one number.
template <class X>
MOE_MAP X map_of(Map map, X x, X factor) {
  X y{};
  with_formulas(map, [&](auto f) { y = f.template of<ScalarMath>(x, factor); });
  return y;
}

/// dy times the slope of `map` where its value is y.
template <class X>
MOE_MAP X map_dx_of(Map map, X dy, X y) {
  X dx{};
  with_slope<ScalarMath, X>(map, [&](auto f) { dx = f.template dx<ScalarMath>(dy, y); });
  return dx;
}

}  // namespace moe::kernels
