#include "tests/mixed/mixed_reference.h"

#include <cmath>
#include <functional>
#include <list>
#include <vector>

#include "kernels/each_product.h"
#include "tests/kernels/operands.h"

namespace moe::test {
namespace {

using namespace kernels;

void store(Bf16& to, double v) {
  to = to_bf16(static_cast<float>(v));
}
void store(float& to, double v) {
  to = static_cast<float>(v);
}
void store(double& to, double v) {
  to = v;
}

/// The operands of one call as doubles; what is written goes back when the call is over. What is to
/// be written whole is NaN before.
class Operands {
 public:
  ~Operands() {
    for (const auto& write : writes_) write();
  }
  template <class T>
  double* in(const T* p, int64_t n) {
    if (p == nullptr) return nullptr;
    double* const copy = copies_.emplace_back(static_cast<size_t>(n)).data();
    for (int64_t i = 0; i < n; ++i) copy[i] = to_float(p[i]);
    return copy;
  }
  const int32_t* in(const int32_t* p, int64_t) { return p; }
  template <class T>
  double* out(T* p, int64_t n) {
    if (p == nullptr) return nullptr;
    return returned(p, n, copies_.emplace_back(static_cast<size_t>(n), NAN).data());
  }
  template <class T>
  double* both(T* p, int64_t n) {
    return returned(p, n, in(p, n));
  }
  double* in(EitherIn m, int64_t n) {
    if (!m.wide) return in(static_cast<const Bf16*>(m.data), n);
    double* const copy = in(static_cast<const float*>(m.data), n);
    for (int64_t i = 0; i < n; ++i) copy[i] = to_float(to_bf16(static_cast<float>(copy[i])));
    return copy;
  }
  double* both(EitherOut m, int64_t n) {
    return m.wide ? both(static_cast<float*>(m.data), n) : both(static_cast<Bf16*>(m.data), n);
  }
  void* work(void*, AttentionShape) { return nullptr; }  // the reference needs none

 private:
  template <class T>
  double* returned(T* p, int64_t n, double* copy) {
    writes_.push_back([=] {
      for (int64_t i = 0; i < n; ++i) store(p[i], copy[i]);
    });
    return copy;
  }

  std::list<std::vector<double>> copies_;
  std::list<std::function<void()>> writes_;
};

/// Kernel number i of the reference, called with widened operands.
template <size_t i, class Function = typename KernelAt<Bf16, i>::Function>
struct Widened;
template <size_t i, class... A>
struct Widened<i, void (*)(A...)> {
  static void call(A... arguments) {
    Operands operands;
    call_placed<typename KernelAt<Bf16, i>::Extents>(
        reference_table().*KernelAt<double, i>::kMember, operands, without_stream(arguments...),
        nullptr);
  }
};
template <auto kMember>
constexpr auto kWidened = Widened<kIndexOf<Bf16, kMember>>::call;

void fill_bias(Bf16* y, const float* bias, const Bf16* residual, int64_t rows, int64_t cols,
               Stream) {
  for (int64_t i = 0; i < rows * cols; ++i) {
    const double b = bias == nullptr ? 0 : bias[i % cols];
    store(y[i], b + (residual == nullptr ? 0 : to_float(residual[i])));
  }
}

int64_t first_nonfinite(const Bf16* x, int64_t n) {
  Operands o;
  return reference_table().first_nonfinite(o.in(x, n), n);
}

KernelTable<Bf16> make_table() {
  using K = KernelTable<Bf16>;
  K table = {.name = "mixed reference"};
  for_each_kernel<Bf16>([&]<size_t i>() {
    using Function = typename KernelAt<Bf16, i>::Function;
    auto& function = table.*KernelAt<Bf16, i>::kMember;
    if constexpr (std::is_same_v<Function, typename KernelAt<double, i>::Function>) {
      function = reference_table().*KernelAt<double, i>::kMember;  // takes bytes
    } else if constexpr (!std::is_same_v<Function, typename KernelAt<float, i>::Function>) {
      function = Widened<i>::call;
    }  // else it only takes Wide<T>
  });
  table.gemm_many =
      each_product<Bf16, kWidened<&K::gemm>, fill_bias, kWidened<&K::gelu>, kWidened<&K::gelu_dx>>;
  table.attention_work_bytes = reference_table().attention_work_bytes;
  table.first_nonfinite = first_nonfinite;
  return table;
}

}  // namespace

const KernelTable<Bf16>& mixed_reference() {
  static const KernelTable<Bf16> table = make_table();
  return table;
}

}  // namespace moe::test
