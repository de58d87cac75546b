// The GPU's kernels on the host's arrays, for the cases of tests/cuda and of tests/kernels. The
// operands are those that tests/kernels/operands.h lists.
#include <utility>

#include "tests/cuda/on_device.h"
#include "tests/gpu/stage.h"

namespace moe::test {
namespace {

using kernels::Bf16;
using kernels::KernelTable;
using kernels::Stream;

std::string refused;  // what the kernels said when they were given to the stream

template <class T>
const KernelTable<T>& kernels_of_gpu() {
  if constexpr (std::is_same_v<T, float>) return *gpu().kernels;
  if constexpr (std::is_same_v<T, Bf16>) return *gpu().mixed;
}

/// Kernel number i of the GPU's table.
template <class T, size_t i, class Function = typename KernelAt<T, i>::Function>
struct Staged;
template <class T, size_t i, class... A>
struct Staged<T, i, void (*)(A...)> {
  static void call(A... arguments) {
    const KernelTable<T>& table = kernels_of_gpu<T>();
    Stage<T> stage(table);
    call_placed<typename KernelAt<T, i>::Extents>(table.*KernelAt<T, i>::kMember, stage,
                                                  without_stream(arguments...),
                                                  DeviceMemory::stream());
    stage.end(refused);
  }
};

template <class T>
T* pointer(T* p) {
  return p;
}
const Bf16* pointer(kernels::EitherIn in) {
  return static_cast<const Bf16*>(in.data);
}
Bf16* pointer(kernels::EitherOut out) {
  return static_cast<Bf16*>(out.data);
}

/// Of operands in T.
template <class T>
void gemm_many(kernels::GemmVariant variant, bool ta, bool tb, int64_t count,
               const kernels::Product<T>* products, float alpha, int64_t lda, int64_t ldb,
               float beta, int64_t ldc, Stream) {
  if (count == 0) return;
  std::vector<kernels::Product<T>> moved(products, products + count);
  Stage<T> stage(kernels_of_gpu<T>());
  // One operand of all products as one array, from the first to the end of the last: how far apart
  // they lie stays.
  const auto move = [&](auto operand, auto values) {
    auto* begin = pointer(operand(moved[0]));
    if (begin == nullptr) return;
    auto* end = begin;
    for (auto& p : moved) {
      begin = std::min(begin, pointer(operand(p)));
      end = std::max(end, pointer(operand(p)) + values(p));
    }
    auto* const there = put(stage, begin, both(end - begin));
    for (auto& p : moved) operand(p) = there + (pointer(operand(p)) - begin);
  };
  move(
      [](auto& p) -> auto& { return p.a; },
      [&](const auto& p) { return ta ? pitched(p.k, p.m, lda) : pitched(p.m, p.k, lda); });
  move(
      [](auto& p) -> auto& { return p.b; },
      [&](const auto& p) { return tb ? pitched(p.n, p.k, ldb) : pitched(p.k, p.n, ldb); });
  const auto of_c = [&](const auto& p) { return pitched(p.m, p.n, ldc); };
  move(
      [](auto& p) -> auto& { return p.c; }, of_c);
  move(
      [](auto& p) -> auto& { return p.then.add; }, of_c);
  move(
      [](auto& p) -> auto& { return p.then.before_gelu; }, of_c);
  move(
      [](auto& p) -> auto& { return p.then.gelu_at; }, of_c);
  move(
      [](auto& p) -> auto& { return p.then.bias; }, [](const auto& p) { return p.n; });
  kernels_of_gpu<T>().gemm_many(variant, ta, tb, count, moved.data(), alpha, lda, ldb, beta, ldc,
                                DeviceMemory::stream());
  stage.end(refused);
}

/// Null where the GPU's table has null.
template <class T>
KernelTable<T> staged(const char* name) {
  KernelTable<T> table = {.name = name};
  for_each_kernel<T>([&]<size_t i>() {
    constexpr auto kMember = KernelAt<T, i>::kMember;
    if (kernels_of_gpu<T>().*kMember != nullptr) table.*kMember = Staged<T, i>::call;
  });
  table.gemm_many = gemm_many<T>;
  table.attention_work_bytes = kernels_of_gpu<T>().attention_work_bytes;
  return table;
}

}  // namespace

const KernelTable<float>& device_table() {
  static const auto table = staged<float>("cuda, from and to the host");
  return table;
}

const KernelTable<Bf16>& device_mixed() {
  static const auto table = staged<Bf16>("cuda mixed, from and to the host");
  return table;
}

std::string device_error() {
  std::string said = std::exchange(refused, "");
  return said.empty() ? gpu().take_error() : said;
}

void begin_run(uint64_t) {}

}  // namespace moe::test
