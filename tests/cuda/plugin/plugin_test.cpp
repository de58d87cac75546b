// Opens the compiled plugin. Calls that want a device are tried only where there is none: nothing
// of it has run on a GPU, and what its kernels compute is tested by the host's emulation alone.
#include <dlfcn.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <string>

#include "kernels/device.h"

using moe::kernels::DeviceTable;
using moe::kernels::ProcessGroupTable;

namespace {

const DeviceTable& plugin() {
  static void* const library = dlopen(MOE_CUDA_PLUGIN, RTLD_NOW | RTLD_LOCAL);
  INFO((library ? "" : dlerror()));
  REQUIRE(library);
  void* const table = dlsym(library, "moe_cuda_device");
  REQUIRE(table);
  return *reinterpret_cast<const DeviceTable* (*)()>(table)();
}

/// Where it is, what is tested here would run on it.
bool has_gpu() {
  if (plugin().num_devices() == 0) return false;
  WARN("skipped: there is a GPU");
  return true;
}

/// The first failure begins so, and is read once.
void check_error(const std::string& begin) {
  const std::string error = plugin().take_error();
  INFO(error);
  CHECK(error.find(begin) == 0);
  CHECK(error.size() > begin.size());
  CHECK(std::string(plugin().take_error()) == "");
}

}  // namespace

TEST_CASE("the plugin opens without a driver and lacks no kernel but one") {
  REQUIRE(plugin().kernels);
  const auto& t = *plugin().kernels;
  CHECK(std::string(t.name) == "cuda");
  CHECK(!t.first_nonfinite);
  CHECK((t.attn_score && t.attn_softmax && t.attn_context && t.attn_context_dx));
  CHECK((t.attn_softmax_dx && t.attn_score_dx));
  CHECK((t.gemm && t.gemm_many && t.bias_grad && t.layernorm && t.layernorm_dx));
  CHECK((t.rmsnorm && t.rmsnorm_dx && t.rmsnorm_dw && t.silu_mul && t.silu_mul_dx));
  CHECK((t.map && t.map_dx && t.mul && t.row_dot && t.split_heads && t.join_heads));
  CHECK((t.rope && t.rope_angles));
  CHECK((t.layernorm_dw && t.gelu && t.gelu_dx && t.embedding && t.embedding_dwte));
  CHECK((t.embedding_dwpe && t.attention && t.attention_dx && t.attention_dsinks));
  CHECK(t.attention_work_bytes);
  CHECK((t.gate_logits && t.gate_scores && t.gate_dlogits && t.dispatch && t.dispatch_dx));
  CHECK((t.combine && t.combine_dx && t.combine_dweight && t.cross_entropy && t.balance_loss));
  CHECK((t.gather && t.z_loss && t.sgd && t.adamw && t.square_sums && t.clip && t.add));
  CHECK((t.sum_n && t.round && t.copy_2d && t.clear));
}

TEST_CASE("the table of mixed precision lacks what takes only float32") {
  REQUIRE(plugin().mixed);
  const auto& t = *plugin().mixed;
  CHECK(std::string(t.name) == "cuda mixed");
  CHECK((!t.gate_scores && !t.gate_dlogits && !t.balance_loss && !t.z_loss && !t.sgd && !t.adamw));
  CHECK(!t.first_nonfinite);
  CHECK((t.attn_score && t.attn_softmax && t.attn_context && t.attn_context_dx));
  CHECK((t.attn_softmax_dx && t.attn_score_dx));
  CHECK((t.gemm && t.gemm_many && t.bias_grad && t.layernorm && t.layernorm_dx));
  CHECK((t.rmsnorm && t.rmsnorm_dx && t.rmsnorm_dw && t.silu_mul && t.silu_mul_dx));
  CHECK((t.map && t.map_dx && t.mul && t.row_dot && t.split_heads && t.join_heads));
  CHECK((t.rope && !t.rope_angles));
  CHECK((t.layernorm_dw && t.gelu && t.gelu_dx && t.embedding && t.embedding_dwte));
  CHECK((t.embedding_dwpe && t.attention && t.attention_dx && t.attention_dsinks));
  CHECK(t.attention_work_bytes);
  CHECK((t.gate_logits && t.dispatch && t.dispatch_dx && t.combine && t.combine_dx));
  CHECK((t.combine_dweight && t.gather && t.cross_entropy && t.add && t.sum_n && t.round));
  CHECK((t.copy_2d && t.clear));
}

TEST_CASE("no entry of the device table is null, nor of its process groups where there is NCCL") {
  // The tables are pointers and nothing else.
  const auto full = [](const auto& table, size_t optional) {
    void* entries[sizeof table / sizeof(void*)];
    std::memcpy(entries, &table, sizeof table);
    for (size_t i = 0; i < std::size(entries); ++i)
      if (entries[i] == nullptr && i != optional) return false;
    return true;
  };
  CHECK(full(plugin(), offsetof(DeviceTable, process_groups) / sizeof(void*)));
  if (plugin().process_groups) CHECK(full(*plugin().process_groups, SIZE_MAX));
}

TEST_CASE("without a GPU a launch and a GEMM fail with a reason that is read once") {
  if (has_gpu()) return;
  plugin().kernels->add(nullptr, nullptr, nullptr, 4, nullptr);
  check_error("cuda: launch: ");
  plugin().kernels->gemm(false, false, 1, 1, 1, 1, nullptr, 1, nullptr, 1, 0, nullptr, 1, nullptr);
  check_error("cuda: gemm: ");
  const float x = 0;
  float y = 0;
  plugin().mixed->gemm(false, false, 1, 1, 1, 1, &x, 1, &x, 1, 0, &y, 1, nullptr);
  check_error("cuda: gemm: ");
}

TEST_CASE("without a GPU memory, streams, events and recordings fail with a reason, and are null") {
  if (has_gpu()) return;
  CHECK(plugin().allocate(1000) == nullptr);
  check_error("cuda: allocate 1000 bytes: ");
  CHECK(plugin().allocate_host(1000) == nullptr);
  check_error("cuda: allocate_host 1000 bytes: ");
  CHECK(plugin().make_stream(true) == nullptr);
  check_error("cuda: make_stream: ");
  CHECK(plugin().make_event(true) == nullptr);
  check_error("cuda: make_event: ");
  CHECK(plugin().info().memory_bytes == 0);
  check_error("cuda: info: ");
  plugin().use_device(0);
  check_error("cuda: use_device: ");
  plugin().begin_recording(nullptr);
  check_error("cuda: begin_recording: ");
  CHECK(plugin().end_recording(nullptr) == nullptr);
  check_error("cuda: end_recording: ");
  plugin().fill(nullptr, 0, 1, nullptr);
  check_error("cuda: fill: ");
  plugin().paced_copies(nullptr, 0, 1000, 1, {}, nullptr);
  check_error("cuda: paced_copies: ");
}

TEST_CASE("of several failures the first is kept") {
  if (has_gpu()) return;
  plugin().allocate(1);
  plugin().make_stream(false);
  check_error("cuda: allocate 1 bytes: ");
}

TEST_CASE("what was never made may be given up") {
  if (has_gpu()) return;
  plugin().release(nullptr);
  plugin().release_host(nullptr);
  plugin().end_stream(nullptr);
  plugin().end_event(nullptr);
  plugin().release_recording(nullptr);
  CHECK(std::string(plugin().take_error()) == "");
}

TEST_CASE("without a GPU per process group can be named but not joined, and that is said in time") {
  const ProcessGroupTable* const process_groups = plugin().process_groups;
  if (process_groups == nullptr) {
    WARN("skipped: built without NCCL");
    return;
  }
  char id[ProcessGroupTable::kIdBytes] = {}, other[ProcessGroupTable::kIdBytes] = {};
  REQUIRE(process_groups->make_id(id));
  REQUIRE(process_groups->make_id(other));
  CHECK(std::memcmp(id, other, sizeof id) != 0);
  CHECK(process_groups->join(id, 2, 2, 1, {}) == nullptr);
  check_error("cuda: join as rank 2 of 2: ");
  if (has_gpu()) return;
  const auto began = std::chrono::steady_clock::now();
  CHECK(process_groups->join(id, 0, 2, 5, {}) == nullptr);
  CHECK(std::chrono::steady_clock::now() - began < std::chrono::seconds(15));
  check_error("cuda: join as rank 0 of 2: ");
}
