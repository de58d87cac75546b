#include "engine/exec/dispatch/moved.h"

#include <algorithm>
#include <exception>
#include <map>
#include <mutex>

#include "engine/base/fnv.h"
#include "engine/base/threads.h"

namespace moe::dispatch {
namespace {

/// Runs body(rank, its communicator) on a thread per rank; throws what the first to fail threw.
void on_ranks(int64_t ranks, const std::function<void(int64_t, Communicator&)>& body) {
  InProcessWorld world(ranks, 1, {});
  std::mutex mutex;
  std::exception_ptr failed;
  {
    const ThreadGroup threads(
        ranks, [](int64_t rank) { return fmt::format("rank {} of a dispatch", rank); },
        [&](int64_t rank) {
          try {
            body(rank, world.comm(rank, 0));
          } catch (const std::exception& e) {
            const std::scoped_lock lock(mutex);
            if (!failed) failed = std::current_exception();
            world.abort(e.what());
          }
        });
  }
  if (failed) std::rethrow_exception(failed);
}

/// The sum of the factors of all choices of a token that a slot stands for.
float factor_of(const Route& route, const Exchange& x, const Choices& choices, int64_t token,
                int32_t slot) {
  const auto of = choices.of(token, x.topk);
  float factor = 0;
  for (int32_t i = 0; i < x.topk; ++i) {
    const int32_t e = of[static_cast<size_t>(i)];
    const bool here = e >= 0 && (route.to_all ? x.rank_of(e) == slot : i == slot);
    if (here) factor += static_cast<float>(e % 3 + 1);
  }
  return factor;
}

}  // namespace

Moved move_exact(const Route& route, const Exchange& x, const Choices& choices) {
  using Values = Mover<float>::Values;
  constexpr std::array<float, 7> kTable = {-4, -2, -1, 0, 1, 2, 4};
  const int64_t n = x.hidden;
  std::vector<Values> outputs(static_cast<size_t>(x.ranks));
  Moved moved;
  for (auto& sent : moved.sent) sent.resize(static_cast<size_t>(x.ranks * x.ranks));
  on_ranks(x.ranks, [&](int64_t rank, Communicator& comm) {
    const int64_t first = choices.first[static_cast<size_t>(rank)];
    const int64_t tokens = choices.first[static_cast<size_t>(rank) + 1] - first;
    Values in(static_cast<size_t>(tokens * n));
    for (int64_t t = 0; t < tokens; ++t) {
      for (int64_t h = 0; h < n; ++h) {
        in[static_cast<size_t>(t * n + h)] =
            kTable[static_cast<size_t>((3 * rank + 5 * t + 7 * (h / 7) + 11 * h) % 7)];
      }
    }
    Mover<float> mover(route, x, choices, comm, "rows");
    std::map<std::pair<int64_t, int32_t>, Values> outs;
    mover.dispatch([&](int64_t token, int32_t) { return in.data() + (token - first) * n; },
                   [&](int64_t token, int32_t slot, const float* values) {
                     const float factor = factor_of(route, x, choices, token, slot);
                     Values& out = outs[{token, slot}];
                     for (int64_t h = 0; h < n; ++h) out.push_back(factor * values[h]);
                   });
    Values& sums = outputs[static_cast<size_t>(rank)];
    sums.resize(static_cast<size_t>(tokens * n));
    mover.combine(
        [&](int64_t token, int32_t slot, float* values) {
          const Values& out = outs.at({token, slot});
          std::copy(out.begin(), out.end(), values);
        },
        sums_of<float>(sums, first, n));
    for (size_t way = 0; way < 2; ++way) {
      const auto& sent = mover.sent(static_cast<Way>(way));
      std::copy(sent.begin(), sent.end(), moved.sent[way].begin() + rank * x.ranks);
    }
  });
  moved.fnv1a = kFnvStart;
  for (const Values& values : outputs) {
    for (const float v : values) {
      const auto whole = static_cast<int32_t>(v);
      moved.fnv1a = fnv1a(moved.fnv1a, &whole, sizeof(whole));
    }
  }
  return moved;
}

}  // namespace moe::dispatch
