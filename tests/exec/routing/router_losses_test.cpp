// Training that routes as real training does: router losses, bias balancing, AdamW and dropless
// capacity, held to an independent float64 implementation and to what each of them says it counts.

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>

#include "engine/graph/op_def.h"
#include "tests/base/folder.h"
#include "tests/exec/support.h"

namespace moe::test {
namespace {

using Catch::Contains;
using nlohmann::json;
using Count = BalanceLossSpec::Count;
using Over = BalanceLossSpec::Over;

const json& golden() {
  static const json file = [] {
    std::ifstream in(std::string(MOE_SOURCE_DIR) + "/tests/data/golden_router.json");
    return json::parse(in);
  }();
  return file;
}

Gpt2 golden_model(const json& c) {
  const json& sizes = golden()["model"];
  Gpt2 m;
  m.vocab = sizes["vocab"];
  m.layers = sizes["layers"];
  m.hidden = sizes["hidden"];
  m.heads = sizes["heads"];
  m.seq = sizes["seq"];
  m.batch_per_device = sizes["batch"].get<int64_t>() / c["ranks"].get<int64_t>();
  m.experts = sizes["experts"];
  m.capacity_factor = sizes["capacity_factor"];
  m.gate = c["k"] == 1 ? "switch" : "top_k";
  m.k = c["k"];
  if (!c["balance_loss"].is_null()) {
    const json& balance = c["balance_loss"];
    m.balance_loss = {balance["coefficient"],
                      value_named<Count>("count", balance["count"].get<std::string>()),
                      value_named<Over>("over", balance["over"].get<std::string>())};
  }
  m.z_loss = c["z_loss"];
  m.bias_balance.rate = c["bias_rate"];
  return m;
}

OptimizerSpec golden_optimizer(const json& o) {
  if (o["name"] == "sgd") return Sgd{.lr = o["lr"], .momentum = o["momentum"]};
  return Adamw{.lr = o["lr"],
               .beta1 = o["beta1"],
               .beta2 = o["beta2"],
               .eps = o["eps"],
               .weight_decay = o["weight_decay"]};
}

RunResult run_checked(const Plan& plan, int64_t steps) {
  RunOptions options = options_of(plan, steps);
  options.test.poison = true;
  RunResult result = run_cpu(plan, options);
  CHECK(result.peak_bytes == plan.memory.peak_bytes());
  return result;
}

PlanSpec golden_spec(const std::string& name) {
  const json& c = golden()["cases"][name];
  PlanSpec spec = spec_of(golden_model(c), c["ranks"], Precision::kF64);
  spec.optimizer = golden_optimizer(c["optimizer"]);
  return spec;
}

/// expected[name] = [norm, projection]; a projection is a sum with signs, so its error is measured
/// against the norm.
void check_norms(const std::map<std::string, double>& l2,
                 const std::map<std::string, double>& projection, const json& expected) {
  REQUIRE(l2.size() == expected.size());
  for (const auto& [name, value] : l2) {
    INFO(name);
    const double norm = expected[name][0];
    CHECK(std::abs(value - norm) <= 1e-9 * norm + 1e-15);
    CHECK(std::abs(projection.at(name) - expected[name][1].get<double>()) <= 1e-8 * norm + 1e-14);
  }
}

void check_golden(const std::string& name, const RunResult& result) {
  const json& c = golden()["cases"][name];
  REQUIRE(result.losses.size() == c["losses"].size());
  for (size_t s = 0; s < result.losses.size(); ++s) {
    CAPTURE(s);
    CHECK(std::abs(result.losses[s] - c["losses"][s].get<double>()) < 1e-9);
    REQUIRE(result.moe[s].size() == c["layers"][s].size());
    for (size_t l = 0; l < result.moe[s].size(); ++l) {
      CAPTURE(l);
      const MoeStats& stats = result.moe[s][l];
      const json& layer = c["layers"][s][l];
      CHECK(stats.load == layer["load"].get<std::vector<int64_t>>());
      CHECK(stats.dropped == layer["dropped"].get<int64_t>());
      CHECK(std::abs(stats.balance_loss - layer["balance_loss"].get<double>()) < 1e-9);
      CHECK(std::abs(stats.z_loss - layer["z_loss"].get<double>()) < 1e-9);
    }
  }
  check_norms(result.param_l2, result.param_projection, c["after"]);
}

TEST_CASE("five steps in double give PyTorch's losses, loads, gradients and parameters") {
  for (const auto& [name, c] : golden()["cases"].items()) {
    INFO(name);
    const auto plan = plan_of(golden_spec(name));
    RunOptions options = options_of(*plan, static_cast<int64_t>(c["losses"].size()));
    options.train.keep_grad_norms = true;
    const RunResult result = run_cpu(*plan, options);
    check_golden(name, result);
    check_norms(result.grad_l2, result.grad_projection, c["first_gradient"]);
  }
}

TEST_CASE("they do so too where the gate's batch is cut in parts, and where only used rows go") {
  for (const char* name : {"balance_rank", "balance_kept_all_z", "bias_balance_z"}) {
    const PlanSpec spec = golden_spec(name);
    const auto whole = plan_with(spec, {pass("irregular_a2a"), pass("used_rows")});
    const RunResult expected = run_checked(*whole, 5);
    check_golden(name, expected);
    for (const double before : {0, 1, 6}) {
      CAPTURE(name, before);
      const auto plan = plan_with(
          spec, {pass("irregular_a2a"), pass("used_rows"),
                 pass("partition", {{"parts", 2.0}, {"before", before}, {"after", 1.0}})});
      CHECK(plan->graph.find_op("b1.moe.gate.p1").valid() == (before > 0));
      CHECK(plan->graph.find_op("b1.moe.fc1.p1").valid());
      const RunResult result = run_checked(*plan, 5);
      check_golden(name, result);
      CHECK(same_run(expected, result));
    }
  }
}

TEST_CASE("priorities do not hold back the sum of counts that the backward waits for") {
  PlanSpec spec = golden_spec("balance_choices_all");
  spec.system.sync.lane = ReduceLane::kOwn;
  Stage stage = pass("priority", {{"hold", true}});
  stage.kind = StageKind::kSchedule;
  const auto plan = plan_with(spec, {stage});
  check_golden("balance_choices_all", run_cpu(*plan, options_of(*plan, 5)));
}

/// Of one step without drops, so that ranks route alike however many there are.
MoeStats one_step(int64_t ranks, bool over_all, RunResult* whole = nullptr) {
  Gpt2 model = small_model("top_k", 4 / ranks);
  model.k = 2;
  model.capacity_factor = 0;
  model.balance_loss = {0.5, Count::kChoices, over_all ? Over::kAll : Over::kRank};
  model.z_loss = 0.25;
  model.bias_balance.rate = 0.01;
  const auto plan = plan_of(spec_of(model, ranks, Precision::kF64));
  RunOptions options = options_of(*plan, over_all ? 4 : 1);
  options.train.keep_grad_norms = true;
  RunResult result = run_cpu(*plan, options);
  if (whole != nullptr) *whole = result;
  return result.moe[0][0];
}

TEST_CASE("over all: losses, gradients and biases do not depend on the number of ranks") {
  RunResult one;
  one_step(1, true, &one);
  for (const int64_t ranks : {2, 4}) {
    RunResult many;
    one_step(ranks, true, &many);
    for (size_t s = 0; s < one.losses.size(); ++s) {
      const MoeStats &a = one.moe[s][0], &b = many.moe[s][0];
      CAPTURE(ranks, s);
      CHECK(many.losses[s] == Approx(one.losses[s]).epsilon(1e-12));
      CHECK(b.balance_loss == Approx(a.balance_loss).epsilon(1e-12));
      CHECK(b.z_loss == Approx(a.z_loss).epsilon(1e-12));
      CHECK(b.load == a.load);
    }
    for (const auto& [name, norm] : one.grad_l2) {
      INFO(name);
      CHECK(many.grad_l2.at(name) == Approx(norm).epsilon(1e-9).margin(1e-14));
    }
    for (const auto& [name, norm] : one.param_l2) {
      CHECK(many.param_l2.at(name) == Approx(norm).epsilon(1e-9));
    }
  }
}

TEST_CASE("over a rank: the loss is the mean of the ranks' own, so it depends on the ranks") {
  const MoeStats one = one_step(1, false), four = one_step(4, false);
  CHECK(one.load == four.load);
  CHECK(one.balance_loss == Approx(one_step(1, true).balance_loss).epsilon(1e-12));
  CHECK(four.balance_loss != Approx(one.balance_loss).epsilon(1e-6));
  CHECK(four.z_loss == Approx(one.z_loss).epsilon(1e-12));
}

int64_t sum_of(const std::vector<int64_t>& values) {
  return std::accumulate(values.begin(), values.end(), int64_t{0});
}

TEST_CASE("what is counted: first choices, all choices, or those kept") {
  const int64_t ranks = 2, tokens = 2 * 8;
  for (const Count count : {Count::kFirst, Count::kChoices, Count::kKept}) {
    Gpt2 model = small_model("top_k", 2);
    model.k = 2;
    model.capacity_factor = 0.5;
    model.balance_loss = {1.0, count, Over::kAll};
    const auto plan = plan_of(spec_of(model, ranks, Precision::kF64));
    const MoeStats stats = run_cpu(*plan, options_of(*plan, 1)).moe[0][0];
    CAPTURE(name_of(count));
    CHECK(sum_of(stats.load) == ranks * tokens * 2);
    REQUIRE(stats.dropped > 0);
    CHECK(sum_of(stats.counts) == ranks * tokens * 2 - stats.dropped);
    // With scores that are nearly equal, E * sum of f * P is nearly the sum of f.
    const double kept = static_cast<double>(sum_of(stats.counts)) / (ranks * tokens * 2);
    CHECK(stats.balance_loss == Approx(count == Count::kKept ? kept : 1).margin(0.05));
  }
}

/// Largest load over the mean, of the last 20 steps together.
double imbalance(const RunResult& result) {
  std::vector<int64_t> load(4);
  for (size_t s = result.moe.size() - 20; s < result.moe.size(); ++s) {
    for (size_t e = 0; e < 4; ++e) load[e] += result.moe[s][0].load[e];
  }
  return static_cast<double>(*std::max_element(load.begin(), load.end())) *
         static_cast<double>(load.size()) / static_cast<double>(sum_of(load));
}

TEST_CASE("a balance loss, and biases, keep loads nearer to each other than nothing does") {
  const auto trained = [](double coefficient, double rate) {
    Gpt2 model = small_model("switch", 8);
    model.balance_loss.coefficient = coefficient;
    model.bias_balance.rate = rate;
    PlanSpec spec = spec_of(model, 2);
    spec.optimizer = Sgd{.lr = 0.01};
    const auto plan = plan_of(spec);
    return imbalance(run_cpu(*plan, options_of(*plan, 60)));
  };
  const double plain = trained(0, 0);
  CAPTURE(plain);
  CHECK(plain > 1.5);
  CHECK(trained(0.1, 0) < 0.75 * plain);
  CHECK(trained(0, 0.005) < 0.75 * plain);
}

TEST_CASE("biases move the choice and leave the weights of the chosen experts as they are") {
  // One step moves every bias by the rate, whichever its size, to the side of the mean load.
  Gpt2 model = small_model("switch", 2);
  model.capacity_factor = 0;
  model.bias_balance.rate = 1e-12;
  const auto tiny = plan_of(spec_of(model, 2, Precision::kF64));
  model.bias_balance.rate = 0;
  const auto none = plan_of(spec_of(model, 2, Precision::kF64));
  const RunResult a = run_cpu(*tiny, options_of(*tiny, 3)),
                  b = run_cpu(*none, options_of(*none, 3));
  CHECK(a.digest == b.digest);  // no choice is that close
  CHECK(a.losses == b.losses);
}

PlanSpec adamw_spec(int64_t ranks, bool bias = true) {
  Gpt2 model = small_model("switch", 4 / ranks);
  model.bias_balance.rate = bias ? 0.02 : 0;
  PlanSpec spec = spec_of(model, ranks, Precision::kF64);
  spec.optimizer = Adamw{.lr = 0.01};
  return spec;
}

TEST_CASE("a run of AdamW and biases that is cut in two is the same run") {
  const Folder folder;
  const auto plan = plan_of(adamw_spec(2));
  const RunResult whole = run_cpu(*plan, options_of(*plan, 6));
  RunOptions first = options_of(*plan, 3), second = first;
  first.train.checkpoints.write_to = second.train.checkpoints.resume_from =
      folder.path("router.ckpt");
  run_cpu(*plan, first);
  const RunResult rest = run_cpu(*plan, second);
  CHECK(rest.digest == whole.digest);
  CHECK(rest.losses == std::vector<double>(whole.losses.begin() + 3, whole.losses.end()));
  for (size_t s = 0; s < 3; ++s) CHECK(rest.moe[s][0].load == whole.moe[s + 3][0].load);
}

TEST_CASE("a checkpoint of another optimizer, or without biases, is refused with the state") {
  const Folder folder;
  const auto plan = plan_of(adamw_spec(1));
  RunOptions options = options_of(*plan, 1);
  options.train.checkpoints.write_to = folder.path("router.ckpt");
  run_cpu(*plan, options);
  const auto refused = [&](const PlanSpec& spec, const std::string& why) {
    const auto other = plan_of(spec);
    RunOptions resume = options_of(*other, 1);
    resume.train.checkpoints.resume_from = folder.path("router.ckpt");
    CHECK_THROWS_WITH(run_cpu(*other, resume), Contains(why));
  };
  refused(adamw_spec(1, false), "tensor b1.gate.bias [4] F64 in the file, nothing in this run");
  PlanSpec sgd = adamw_spec(1);
  sgd.optimizer = {};
  refused(sgd, "tensor wte.m [32,16] F64 in the file, tensor wte.v [32,16] F64 in this run");
}

TEST_CASE("weight decay pulls on matrices and tables, not on biases and norms") {
  PlanSpec spec = adamw_spec(1, false);
  std::get<Adamw>(spec.optimizer).weight_decay = 0.25;
  const Graph graph = step_graph(spec);
  const auto decay = [&](const std::string& param) {
    return attr_double(graph.op(graph.find_op(param + ".adamw")), "weight_decay", -1);
  };
  for (const char* name : {"wte", "wpe", "b0.attn.qkv.w", "b0.fc1.w", "b1.gate.w", "b1.ex.fc1.w"}) {
    INFO(name);
    CHECK(decay(name) == 0.25);
  }
  for (const char* name : {"b0.ln1.w", "b0.ln1.b", "b0.attn.qkv.b", "b1.ex.fc1.b", "lnf.w"}) {
    INFO(name);
    CHECK(decay(name) == 0);
  }
}

TEST_CASE("without a capacity nothing is dropped, even where all tokens go to the same experts") {
  for (const int64_t ranks : {1, 2, 4}) {
    for (const int64_t k : {1, 2}) {
      Gpt2 model = small_model(k == 1 ? "switch" : "top_k", 4);
      model.k = k;
      model.capacity_factor = 0;
      const PlanSpec spec = spec_of(model, ranks, Precision::kF64);
      const auto plan = plan_with(spec, {pass("irregular_a2a"), pass("used_rows")});
      RunOptions options = options_of(*plan, 3);
      options.test.poison = true;
      options.policies.gate = [&](int64_t) {
        Gate gate = builtin_gate(model.gate);
        gate.route = [k](const GateInput& in, RoutingBuilder& out) {
          for (int64_t t = 0; t < in.tokens; ++t) {
            for (int64_t j = 0; j < k; ++j) out.take(t, 3 - j);
          }
        };
        return gate;
      };
      CAPTURE(ranks, k);
      const RunResult result = run_cpu(*plan, options);
      for (const auto& step : result.moe) {
        CHECK(step[0].capacity == 4 * 8);
        CHECK(step[0].dropped == 0);
        CHECK(step[0].load[3] == ranks * 4 * 8);
      }
      // What it costs: memory for every token at every expert, whoever goes where.
      CHECK(result.peak_bytes == plan->memory.peak_bytes());
      const Shape& slots =
          plan->graph.tensor(plan->graph.out(plan->graph.find_op("b1.moe.dispatch"))).shape;
      CHECK(slots == Shape{4, 4 * 8, 16});
      // Padding is neither sent nor computed, and makes no difference.
      const auto padded = plan_with(spec, {});
      options.test.poison = false;
      const RunResult same = run_cpu(*padded, options);
      CHECK(same_run(result, same, {.losses = 1e-12, .norms = 1e-12}));
    }
  }
}

void check_refused(void (*change)(Gpt2&), const std::string& why) {
  Gpt2 model = small_model();
  change(model);
  CHECK_THROWS_WITH(build_forward(model, gate_spec(model), 1), Contains(why));
}

TEST_CASE("losses that do not fit the gate, or make no sense, are refused by name") {
  check_refused(
      [](Gpt2& m) {
        m.gate = "hash";
        m.balance_loss.coefficient = 0.1;
      },
      "model.balance_loss: the gate 'hash' does not choose experts by their scores");
  check_refused(
      [](Gpt2& m) {
        m.gate = "expert_choice";
        m.bias_balance.rate = 0.1;
      },
      "model.bias_balance: the gate 'expert_choice' lets experts choose");
  check_refused(
      [](Gpt2& m) {
        m.gate = "random";
        m.z_loss = 0.1;
      },
      "model.z_loss: the gate 'random' does not choose experts by their scores");
  check_refused([](Gpt2& m) { m.balance_loss.coefficient = -1; },
                "model.balance_loss.coefficient = -1: must be from 0 to");
  check_refused([](Gpt2& m) { m.z_loss = NAN; }, "model.z_loss = nan");
}

TEST_CASE("a balance loss cannot be one of the ops of a range that is cut") {
  PlanSpec spec = golden_spec("balance_rank");
  const Graph forward = spec.model->forward;
  for (const char* name : {"b1.moe.load", "b1.moe.balance_loss"}) {
    INFO(name);
    const OpId id = forward.find_op(name);
    REQUIRE(id.valid());
    CHECK(forward.def(id).axes == nullptr);
    CHECK(forward.find_op("loss") < id);
  }
}

}  // namespace
}  // namespace moe::test
