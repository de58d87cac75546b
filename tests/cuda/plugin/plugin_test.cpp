// Opens the compiled plugin. Launches are tried only where there is no GPU: the kernels have never
// run on one, and what they compute is tested by the host's emulation alone.
#include <dlfcn.h>

#include <catch2/catch.hpp>
#include <set>
#include <string>

#include "kernels/kernels.h"

using Floats = moe::kernels::KernelTable<float>;

namespace {

struct Plugin {
  Plugin() : library(dlopen(MOE_CUDA_PLUGIN, RTLD_NOW | RTLD_LOCAL)) {
    INFO((library ? "" : dlerror()));
    REQUIRE(library);
    table = reinterpret_cast<const Floats* (*)()>(dlsym(library, "moe_cuda_table"))();
    take_error = reinterpret_cast<const char* (*)()>(dlsym(library, "moe_cuda_take_error"));
  }
  void* library;
  const Floats* table;
  const char* (*take_error)();
};

}  // namespace

TEST_CASE("the plugin opens without a driver and lacks only what its header names") {
  const Plugin plugin;
  const Floats& t = *plugin.table;
  CHECK(std::string(t.name) == "cuda");
  CHECK((!t.attn_score && !t.attn_softmax && !t.attn_context && !t.attn_context_dx));
  CHECK((!t.attn_softmax_dx && !t.attn_score_dx && !t.first_nonfinite));
  CHECK((t.gemm && t.fill_bias && t.bias_grad && t.layernorm && t.layernorm_dx));
  CHECK((t.layernorm_dw && t.gelu && t.gelu_dx && t.embedding && t.embedding_dwte));
  CHECK((t.embedding_dwpe && t.attention && t.attention_dx && t.attention_work_bytes));
  CHECK((t.gate_logits && t.gate_scores && t.gate_dlogits && t.dispatch && t.dispatch_dx));
  CHECK((t.combine && t.combine_dx && t.combine_dweight && t.cross_entropy && t.balance_loss));
  CHECK((t.z_loss && t.sgd && t.adamw && t.add && t.sum_n && t.copy_2d));
}

TEST_CASE("without a GPU a launch and a GEMM fail with a reason that is read once") {
  const Plugin plugin;
  const auto count = reinterpret_cast<int (*)()>(dlsym(plugin.library, "moe_cuda_num_devices"));
  if (count() > 0) {
    WARN("skipped: there is a GPU");
    return;
  }
  plugin.table->add(nullptr, nullptr, nullptr, 4, nullptr);
  CHECK(std::string(plugin.take_error()).find("cuda: launch: ") == 0);
  CHECK(std::string(plugin.take_error()) == "");
  plugin.table->gemm(false, false, 1, 1, 1, 1, nullptr, 1, nullptr, 1, 0, nullptr, 1, nullptr);
  CHECK(std::string(plugin.take_error()).find("cuda: gemm: ") == 0);
}
