// The emulated cuDNN: each operation against plain loops over real tensors of random strides.
#include <cmath>
#include <cstring>

#include "engine/base/rng.h"
#include "tests/cuda/cudnn/cudnn_builder.h"

using namespace moe::test;
using moe::Rng;

namespace {

double number(cudnnDataType_t type, const void* at, int64_t i) {
  if (type == CUDNN_DATA_FLOAT) return static_cast<const float*>(at)[i];
  if (type == CUDNN_DATA_INT32) return static_cast<const int32_t*>(at)[i];
  if (type == CUDNN_DATA_BOOLEAN) return static_cast<const uint8_t*>(at)[i];
  const uint32_t bits = static_cast<const uint16_t*>(at)[i] << 16;
  float v;
  std::memcpy(&v, &bits, sizeof v);
  return v;
}

/// Numbers of one type in memory that is as large as the strides want, the rest of it 0xa5.
class Real {
 public:
  /// Ids count on from 1 in each case.
  Real(Rng& rng, int64_t id, cudnnDataType_t type, const Dims& dims)
      : of_{type, dims, Dims(dims.size()), id} {
    Dims order;  // of the dims, the innermost first
    for (size_t i = 0; i < dims.size(); ++i)
      order.insert(order.begin() + rng.below(static_cast<int64_t>(i) + 1), static_cast<int64_t>(i));
    int64_t stride = 1 + rng.below(2);
    for (const int64_t i : order) {
      of_.strides[static_cast<size_t>(i)] = stride;
      stride = stride * dims[static_cast<size_t>(i)] + rng.below(3);
    }
    memory_.assign(static_cast<size_t>(stride), 0);
    std::memset(memory_.data(), 0xa5, memory_.size() * sizeof(double));
  }
  void fill(Rng& rng, double low = -2, double high = 2) {
    for_each([&](const Dims& at) {
      const auto v = static_cast<float>(low + (high - low) * rng.uniform());
      const auto i = place(at);
      if (of_.type == CUDNN_DATA_FLOAT) reinterpret_cast<float*>(memory_.data())[i] = v;
      if (of_.type == CUDNN_DATA_BOOLEAN) reinterpret_cast<uint8_t*>(memory_.data())[i] = v > 0;
      uint32_t bits;
      std::memcpy(&bits, &v, sizeof bits);
      if (of_.type == CUDNN_DATA_BFLOAT16)
        reinterpret_cast<uint16_t*>(memory_.data())[i] = static_cast<uint16_t>(bits >> 16);
    });
  }
  template <class F>
  void for_each(F f) const {
    Dims at(of_.dims.size(), 0);
    while (true) {
      f(at);
      size_t i = at.size();
      while (i > 0 && ++at[i - 1] == of_.dims[i - 1]) at[--i] = 0;
      if (i == 0) return;
    }
  }
  /// Of a dim of 1 any index is the first.
  double operator()(Dims at) const {
    for (size_t i = 0; i < at.size(); ++i) at[i] = of_.dims[i] == 1 ? 0 : at[i];
    return number(of_.type, memory_.data(), place(at));
  }
  /// Each element is the nearest number of its type to what f says; no other memory was written.
  template <class F>
  void require(F f) const {
    const double unit = of_.type == CUDNN_DATA_FLOAT      ? 0x1p-24
                        : of_.type == CUDNN_DATA_BFLOAT16 ? 0x1p-8
                                                          : 0;
    int64_t wrong = 0, untouched = 0, elements = 0;
    for_each([&](const Dims& at) {
      const double got = (*this)(at), want = f(at);
      wrong += !(std::abs(got - want) <= unit * std::abs(want) + 1e-13);
      ++elements;
    });
    const int64_t bytes = of_.type == CUDNN_DATA_BOOLEAN    ? 1
                          : of_.type == CUDNN_DATA_BFLOAT16 ? 2
                                                            : 4;
    const auto* const all = reinterpret_cast<const uint8_t*>(memory_.data());
    std::vector<bool> is_element(memory_.size() * sizeof(double));
    for_each([&](const Dims& at) {
      for (int64_t i = 0; i < bytes; ++i)
        is_element[static_cast<size_t>(place(at) * bytes + i)] = true;
    });
    for (size_t i = 0; i < is_element.size(); ++i) untouched += !is_element[i] && all[i] == 0xa5;
    REQUIRE(wrong == 0);
    REQUIRE(untouched == static_cast<int64_t>(is_element.size()) - elements * bytes);
  }
  const TensorOf& of() const { return of_; }
  void* data() { return memory_.data(); }

 private:
  int64_t place(const Dims& at) const {
    int64_t sum = 0;
    for (size_t i = 0; i < at.size(); ++i) sum += at[i] * of_.strides[i];
    return sum;
  }
  TensorOf of_;
  std::vector<double> memory_;
};

Dims some_dims(Rng& rng) {
  return {1 + rng.below(3), 1 + rng.below(3), 1 + rng.below(5), 1 + rng.below(5)};
}

/// Some of them 1.
Dims thinned(Rng& rng, Dims dims) {
  for (int64_t& dim : dims) dim = rng.below(3) == 0 ? 1 : dim;
  return dims;
}

std::map<int64_t, void*> pointers(std::initializer_list<Real*> all) {
  std::map<int64_t, void*> found;
  for (Real* const r : all) found[r->of().id] = r->data();
  return found;
}

cudnnDataType_t real_type(Rng& rng) {
  return rng.below(2) ? CUDNN_DATA_FLOAT : CUDNN_DATA_BFLOAT16;
}

}  // namespace

TEST_CASE("cuDNN emulated: a pointwise operation of two is its formula, dims of 1 repeated",
          "[cudnn]") {
  const uint64_t seed = GENERATE(range(1, 13));
  Rng rng(seed);
  const int mode = GENERATE(CUDNN_POINTWISE_ADD, CUDNN_POINTWISE_SUB, CUDNN_POINTWISE_MUL,
                            CUDNN_POINTWISE_DIV, CUDNN_POINTWISE_CMP_GE);
  const bool compares = mode == CUDNN_POINTWISE_CMP_GE;
  const Dims dims = some_dims(rng), thin = thinned(rng, dims);
  const bool swap = rng.below(2) == 1;
  Real x(rng, 1, real_type(rng), swap ? thin : dims), b(rng, 2, real_type(rng), swap ? dims : thin);
  Real y(rng, 3, compares ? CUDNN_DATA_BOOLEAN : real_type(rng), dims);
  x.fill(rng);
  b.fill(rng);
  Cudnn cudnn;
  const Descriptor op = cudnn.begin_pointwise(mode, {x.of(), b.of(), y.of()});
  const float factor = compares ? 1 : 1.5F;
  must(set<float>(op, CUDNN_ATTR_OPERATION_POINTWISE_ALPHA1, CUDNN_TYPE_FLOAT, {factor}));
  must(set<double>(op, CUDNN_ATTR_OPERATION_POINTWISE_ALPHA2, CUDNN_TYPE_DOUBLE, {2 * factor - 1}));
  cudnn.run({op}, pointers({&x, &b, &y}));
  y.require([&](const Dims& at) {
    const double p = factor * x(at), q = (2 * factor - 1) * b(at);
    if (mode == CUDNN_POINTWISE_ADD) return p + q;
    if (mode == CUDNN_POINTWISE_SUB) return p - q;
    if (mode == CUDNN_POINTWISE_MUL) return p * q;
    return compares ? p >= q : p / q;
  });
}

TEST_CASE("cuDNN emulated: a pointwise operation of one is its formula", "[cudnn]") {
  Rng rng(GENERATE(range(21, 27)));
  const int mode = GENERATE(CUDNN_POINTWISE_EXP, CUDNN_POINTWISE_LOG, CUDNN_POINTWISE_IDENTITY);
  const Dims dims = some_dims(rng);
  Real x(rng, 1, real_type(rng), dims), y(rng, 3, real_type(rng), dims);
  x.fill(rng, 0.5, 3);
  Cudnn cudnn;
  cudnn.run({cudnn.begin_pointwise(mode, {x.of(), y.of()})}, pointers({&x, &y}));
  y.require([&](const Dims& at) {
    return mode == CUDNN_POINTWISE_EXP   ? std::exp(x(at))
           : mode == CUDNN_POINTWISE_LOG ? std::log(x(at))
                                         : x(at);
  });
}

TEST_CASE("cuDNN emulated: indices along an axis, and a choice between two by a third", "[cudnn]") {
  Rng rng(GENERATE(range(31, 41)));
  const Dims dims = some_dims(rng);
  Real x(rng, 1, real_type(rng), dims), b(rng, 2, real_type(rng), thinned(rng, dims));
  Real t(rng, 4, CUDNN_DATA_BOOLEAN, thinned(rng, dims)), y(rng, 3, CUDNN_DATA_FLOAT, dims);
  Real index(rng, 5, CUDNN_DATA_INT32, dims);
  for (Real* const r : {&x, &b, &t}) r->fill(rng);
  const int64_t axis = rng.below(4);
  Cudnn cudnn;
  cudnn.run({cudnn.begin_pointwise(CUDNN_POINTWISE_GEN_INDEX, {x.of(), index.of()}, axis)},
            pointers({&x, &index}));
  index.require([&](const Dims& at) { return static_cast<double>(at[static_cast<size_t>(axis)]); });
  cudnn.run(
      {cudnn.begin_pointwise(CUDNN_POINTWISE_BINARY_SELECT, {x.of(), b.of(), t.of(), y.of()})},
      pointers({&x, &b, &t, &y}));
  y.require([&](const Dims& at) { return t(at) != 0 ? x(at) : b(at); });
}

TEST_CASE("cuDNN emulated: a matmul is the sum of products in each of its matrices", "[cudnn]") {
  Rng rng(GENERATE(range(41, 61)));
  const Dims some = some_dims(rng);
  const int64_t depth = 1 + rng.below(7);
  const bool one_b = rng.below(3) == 0;
  const cudnnDataType_t type = real_type(rng);
  Real a(rng, 1, type, {some[0], some[1], some[2], depth});
  Real b(rng, 2, type, {some[0], one_b ? 1 : some[1], depth, some[3]});
  Real c(rng, 3, real_type(rng), some);
  a.fill(rng);
  b.fill(rng);
  Cudnn cudnn;
  cudnn.run({cudnn.begin_matmul(a.of(), b.of(), c.of())}, pointers({&a, &b, &c}));
  c.require([&](const Dims& at) {
    double sum = 0;
    for (int64_t p = 0; p < depth; ++p)
      sum += a({at[0], at[1], at[2], p}) * b({at[0], at[1], p, at[3]});
    return sum;
  });
}

TEST_CASE("cuDNN emulated: a reduction takes the dims of 1 together", "[cudnn]") {
  Rng rng(GENERATE(range(61, 81)));
  const Dims dims = some_dims(rng);
  Real x(rng, 1, real_type(rng), dims), most(rng, 2, CUDNN_DATA_FLOAT, thinned(rng, dims));
  Real sum(rng, 3, real_type(rng), most.of().dims);
  x.fill(rng, -3, -1);
  Cudnn cudnn;
  cudnn.run({cudnn.begin_reduction(CUDNN_REDUCE_TENSOR_MAX, x.of(), most.of()),
             cudnn.begin_reduction(CUDNN_REDUCE_TENSOR_ADD, x.of(), sum.of())},
            pointers({&x, &most, &sum}));
  std::map<Dims, double> largest, total;
  x.for_each([&](Dims at) {
    const double v = x(at);
    for (size_t i = 0; i < at.size(); ++i) at[i] = most.of().dims[i] == 1 ? 0 : at[i];
    const auto [found, is_new] = largest.try_emplace(at, v);
    if (!is_new) found->second = std::max(found->second, v);
    total[at] += v;
  });
  most.require([&](const Dims& at) { return largest.at(at); });
  sum.require([&](const Dims& at) { return total.at(at); });
}

TEST_CASE("cuDNN emulated: a reshape to swapped dims and strides transposes, rounding", "[cudnn]") {
  Rng rng(GENERATE(range(81, 91)));
  const Dims dims = some_dims(rng), swapped = {dims[0], dims[1], dims[3], dims[2]};
  Real x(rng, 1, CUDNN_DATA_FLOAT, dims), y(rng, 2, CUDNN_DATA_FLOAT, swapped);
  x.fill(rng);
  TensorOf turned = x.of();
  turned.id = 3;
  turned.is_virtual = true;
  turned.dims = swapped;
  std::swap(turned.strides[2], turned.strides[3]);
  Cudnn cudnn;
  const auto turn = [&] {
    cudnn.run({cudnn.begin_reshape(x.of(), turned),
               cudnn.begin_pointwise(CUDNN_POINTWISE_IDENTITY, {turned, y.of()})},
              pointers({&x, &y}));
  };
  const auto of_x = [&](const Dims& at) { return x({at[0], at[1], at[3], at[2]}); };
  turn();
  y.require(of_x);
  turned.type = CUDNN_DATA_BFLOAT16;
  turn();
  double most_wrong = 0, changed = 0;
  y.for_each([&](const Dims& at) {
    most_wrong = std::max(most_wrong, std::abs(y(at) / of_x(at) - 1));
    changed += y(at) != of_x(at);
  });
  CHECK(most_wrong <= 0x1p-8);
  CHECK(changed > 0);
}
