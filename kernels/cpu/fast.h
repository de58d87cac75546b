// The parts of a fast table: each file of the same name writes its entries. One set of these
// functions an instruction set.
#pragma once

#include "kernels/kernels.h"

namespace moe::kernels::MOE_ISA {

const KernelTable<float>& fast_table();

void set_elementwise(KernelTable<float>& table);
void set_norm(KernelTable<float>& table);
void set_attention(KernelTable<float>& table);
void set_attention_steps(KernelTable<float>& table);
void set_gate(KernelTable<float>& table);
void set_rows(KernelTable<float>& table);
void set_loss(KernelTable<float>& table);

}  // namespace moe::kernels::MOE_ISA
