// What a run loop asks of ranks whose parameters are not in the host buffers, and when.
#include <catch2/catch.hpp>
#include <cstring>
#include <filesystem>

#include "engine/exec/run_loop.h"
#include "tests/exec/support.h"

namespace moe::test {
namespace {

using Events = std::vector<std::string>;

/// Ranks that keep their memory elsewhere. A training step makes all parameters anew, so that they
/// show its step.
class FarRanks {
 public:
  FarRanks(const Plan& plan, const RunOptions& options)
      : plan_(plan), loop_(plan, options), host_(buffers()), far_(buffers()) {
    for (const auto& rank : far_) std::memset(rank->persistent().data(), 0, bytes());
    for (const auto& rank : host_) std::memset(rank->persistent().data(), 0xff, bytes());  // NaN
  }

  RunResult run() {
    AllBuffers here;
    for (const auto& rank : host_) here.push_back(rank.get());
    loop_.meet(here, {.run_step = [this](const DataSource&,
                                         const ProgramRun& spec) { return run_step(spec); },
                      .fetch = [this] { copy("fetch", far_, host_); },
                      .store = [this] { copy("store", host_, far_); }});
    loop_.restore();
    loop_.run();
    return loop_.finish();
  }

  /// Of the parameters where the ranks have them.
  uint64_t digest() const {
    AllBuffers far;
    for (const auto& rank : far_) far.push_back(rank.get());
    RunResult result;
    measure_parameters<float>(loop_.persistents(), far, result);
    return result.digest;
  }
  const Events& events() const { return events_; }
  const std::vector<uint64_t>& digests_before() const { return digests_before_; }
  const std::vector<uint32_t>& epochs() const { return epochs_; }

 private:
  using Memory = std::vector<std::unique_ptr<RankBuffers>>;

  Memory buffers() const {
    Memory memory;
    for (int64_t r = 0; r < plan_.graph.num_ranks; ++r) {
      memory.push_back(std::make_unique<RankBuffers>(plan_, Bytes{sizeof(float)}));
    }
    return memory;
  }

  size_t bytes() const { return far_[0]->persistent().size(); }

  void copy(const std::string& name, const Memory& from, const Memory& to) {
    events_.push_back(name);
    for (size_t r = 0; r < to.size(); ++r) {
      std::memcpy(to[r]->persistent().data(), from[r]->persistent().data(), bytes());
    }
  }

  std::vector<RankReport> run_step(const ProgramRun& spec) {
    digests_before_.push_back(digest());
    epochs_.push_back(spec.epoch);
    events_.push_back((spec.train ? "step " : "batch ") + std::to_string(spec.step));
    std::vector<RankReport> reports(far_.size());
    for (size_t r = 0; r < far_.size(); ++r) {
      reports[r].stats.loss = 0.5;
      reports[r].spans.resize(plan_.orders.lanes.size());
      if (!spec.train) continue;
      RunOptions options;
      options.init = [&](uint64_t element, uint64_t parameter) {
        return reference_init(element, parameter) * static_cast<double>(spec.step + 1);
      };
      initialise<float>(plan_, loop_.persistents(), *far_[r], static_cast<int64_t>(r), options);
    }
    return reports;
  }

  const Plan& plan_;
  RunLoop<float> loop_;
  Memory host_, far_;
  Events events_;
  std::vector<uint64_t> digests_before_;
  std::vector<uint32_t> epochs_;
};

std::shared_ptr<const Plan> small_plan() {
  return plan_of(spec_of(small_model(), 2));
}

TEST_CASE("parameters that are elsewhere are fetched before each checkpoint and at the end") {
  const std::string path = "run_loop_fetch_test";
  const auto plan = small_plan();
  RunOptions options = options_of(*plan, 3);
  options.train.checkpoints.write_to = path;
  options.train.checkpoints.every_steps = 2;
  options.train.eval_batches = 2;
  options.train.eval_data = options.data;
  FarRanks ranks(*plan, options);
  const RunResult result = ranks.run();
  std::filesystem::remove(path);
  CHECK(ranks.events() ==
        Events{"step 0", "step 1", "fetch", "step 2", "fetch", "batch 0", "batch 1", "fetch"});
  CHECK(ranks.epochs() == std::vector<uint32_t>{1, 2, 3, 4, 5});
  CHECK(result.digest == ranks.digest());
  CHECK(result.losses == std::vector<double>{1, 1, 1});
  CHECK(result.eval_loss == 1);
}

TEST_CASE("parameters from a file are stored where the ranks are before their first step") {
  const std::string path = "run_loop_store_test";
  const auto plan = small_plan();
  RunOptions options = options_of(*plan, 2);
  options.train.checkpoints.write_to = path;
  const uint64_t saved = FarRanks(*plan, options).run().digest;
  options.train.checkpoints.write_to = "";
  options.steps = 1;
  for (const bool resumes : {true, false}) {
    (resumes ? options.train.checkpoints.resume_from : options.infer.parameters_from) = path;
    FarRanks ranks(*plan, options);
    ranks.run();
    CHECK(ranks.events() == Events{"store", resumes ? "step 2" : "step 0", "fetch"});
    CHECK(ranks.digests_before() == std::vector<uint64_t>{saved});
    options.train.checkpoints.resume_from = "";
  }
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace moe::test
