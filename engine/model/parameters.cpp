#include <cmath>

#include "engine/base/errors.h"
#include "engine/base/rng.h"
#include "engine/model/model.h"

namespace moe {
namespace {

constexpr int64_t kMaxLength = int64_t{1} << 24;  // largest length of one axis
constexpr int64_t kMaxIndex = int64_t{1} << 31;   // most choices: index maps are i32

void check_range(const char* field, int64_t value, int64_t lo, int64_t hi) {
  if (value < lo || value > hi) {
    throw user_error("model.{} = {}, allowed: {} to {}", field, value, lo, hi);
  }
}

void check_rate(const char* field, double value) {
  if (std::isfinite(value) && value >= 0) return;
  throw user_error("model.{} = {}, allowed: 0 or a positive number", field, value);
}

}  // namespace

int64_t ModelSpec::num_moe_layers() const {
  int64_t n = 0;
  for (int64_t b = 0; b < layers; ++b) n += is_moe(b) ? 1 : 0;
  return n;
}

void check(const ModelSpec& model, int64_t num_ranks) {
  check_range("vocab", model.vocab, 1, kMaxLength);
  check_range("layers", model.layers, 1, 4096);
  check_range("hidden", model.hidden, 1, 1 << 20);
  check_range("heads", model.heads, 1, model.hidden);
  check_range("seq", model.seq, 1, kMaxLength);
  check_range("ffn", model.ffn, 0, kMaxLength);
  check_range("batch_per_device", model.batch_per_device, 1, kMaxLength);
  check_range("experts", model.experts, 1, 1 << 20);
  check_range("moe_every", model.moe_every, 1, 4096);
  check_range("k", model.k, 1, model.experts);
  if (model.hidden % model.heads != 0) {
    throw user_error("model.heads = {} does not divide model.hidden = {}", model.heads,
                     model.hidden);
  }
  check_range("ep", model.ep, 0, num_ranks);
  const int64_t ep = model.expert_group(num_ranks).size;
  if (num_ranks < 1 || num_ranks % ep != 0) {
    throw user_error("model.ep = {}, allowed: a divisor of the {} ranks, or 0 for all of them", ep,
                     num_ranks);
  }
  if (model.experts % ep != 0) {
    throw user_error("model.experts = {} cannot be divided evenly over {} ranks{}", model.experts,
                     ep, model.ep > 0 ? " of an expert-parallel group (model.ep)" : "");
  }
  if (!std::isfinite(model.capacity_factor)) {
    throw user_error(
        "model.capacity_factor = {}, allowed: a finite number (0 or less: no limit on an expert's "
        "rows)",
        model.capacity_factor);
  }
  check_rate("balance_loss.coefficient", model.balance_loss.coefficient);
  check_rate("z_loss", model.z_loss);
  check_rate("bias_balance.rate", model.bias_rate);
  const std::string& count = model.balance_loss.count;
  if (count != "first" && count != "choices" && count != "kept") {
    throw user_error("model.balance_loss.count = '{}', allowed: first, choices, kept", count);
  }
  if (model.dtype == DType::kI32) {
    throw user_error("model.dtype = {}, allowed: f16, bf16, f32, f64", dtype_name(model.dtype));
  }
  const int64_t tokens = model.batch_per_device * model.seq;
  if (tokens >= kMaxIndex / model.k || tokens * num_ranks >= int64_t{1} << 40) {
    throw user_error(
        "model.batch_per_device * model.seq = {} tokens per rank is too many: k * tokens per rank "
        "must be below 2^31, and tokens on all ranks below 2^40",
        tokens);
  }
}

std::vector<ParamInfo> parameters(const ModelSpec& model) {
  using Init = ParamInfo::Init;
  const int64_t d = model.hidden, h = model.ffn_size(), E = model.experts;
  std::vector<ParamInfo> params;
  const auto matrix = [&](std::string name, Shape shape, bool expert = false) {
    params.push_back({std::move(name), std::move(shape), expert, Init::kUniform});
  };
  const auto zero = [&](std::string name, Shape shape, bool expert = false) {
    params.push_back({std::move(name), std::move(shape), expert, Init::kZero});
  };
  const auto norm = [&](const std::string& name) {
    params.push_back({name + ".w", {d}, false, Init::kOne});
    zero(name + ".b", {d});
  };
  matrix("wte", {model.vocab, d});
  matrix("wpe", {model.seq, d});
  for (int64_t b = 0; b < model.layers; ++b) {
    const std::string block = fmt::format("b{}.", b);
    norm(block + "ln1");
    matrix(block + "attn.qkv.w", {3 * d, d});
    zero(block + "attn.qkv.b", {3 * d});
    matrix(block + "attn.out.w", {d, d});
    zero(block + "attn.out.b", {d});
    norm(block + "ln2");
    if (model.is_moe(b)) {
      matrix(block + "gate.w", {E, d});
      matrix(block + "ex.fc1.w", {E, h, d}, true);
      zero(block + "ex.fc1.b", {E, h}, true);
      matrix(block + "ex.fc2.w", {E, d, h}, true);
      zero(block + "ex.fc2.b", {E, d}, true);
    } else {
      matrix(block + "fc1.w", {h, d});
      zero(block + "fc1.b", {h});
      matrix(block + "fc2.w", {d, h});
      zero(block + "fc2.b", {d});
    }
  }
  norm("lnf");
  return params;
}

std::vector<ParamInfo> states(const ModelSpec& model) {
  std::vector<ParamInfo> all;
  for (int64_t b = 0; b < model.layers; ++b) {
    if (model.bias_rate == 0 || !model.is_moe(b)) continue;
    all.push_back(
        {fmt::format("b{}.gate.bias", b), {model.experts}, false, ParamInfo::Init::kZero});
  }
  return all;
}

double reference_init(uint64_t element, uint64_t parameter) {
  return (static_cast<double>(random24(element, parameter)) - 0x1p23) * 0x1p-28;
}

}  // namespace moe
