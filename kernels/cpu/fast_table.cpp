// Assembles the fast table of one instruction set.
#include "kernels/cpu/fast.h"

#define MOE_TEXT_OF(x) #x
#define MOE_TEXT(x) MOE_TEXT_OF(x)

namespace moe::kernels::MOE_ISA {
namespace {

KernelTable<float> make_table() noexcept {
  KernelTable<float> table{};
  table.name = "cpu-" MOE_TEXT(MOE_ISA);
  table.gemm = gemm;
  set_elementwise(table);
  set_norm(table);
  set_attention(table);
  set_attention_steps(table);
  set_gate(table);
  set_rows(table);
  set_loss(table);
  return table;
}

}  // namespace

const KernelTable<float>& fast_table() {
  static const KernelTable<float> table = make_table();
  return table;
}

}  // namespace moe::kernels::MOE_ISA
