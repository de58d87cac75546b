#include <catch2/catch.hpp>
#include <map>

#include "engine/base/threads.h"
#include "engine/exec/dispatch/moved.h"
#include "kernels/bf16.h"
#include "tests/dispatch/fixture.h"

namespace moe::dispatch {
namespace {

std::vector<int64_t> bytes_of(const Named& one, const Exchange& x, const Choices& choices,
                              Way way) {
  const LinkRows on = rows_on(one.route, x, choices, way);
  std::vector<int64_t> sum = on.nvlink;
  for (size_t i = 0; i < sum.size(); ++i) {
    sum[i] = (sum[i] + on.nic[i]) * one.route.row_bytes(way);
  }
  return sum;
}

TEST_CASE("every route sends the bytes that it counts, and gives the same bits") {
  Rng rng(11);
  for (int i = 0; i < 12; ++i) {
    Exchange x = random_exchange(rng);
    x.hidden = 256;
    const Choices choices = random_choices(x, rng, true);
    uint64_t expected = 0;
    for (Named& one : known_routes(x)) {
      INFO(one.name << ", " << x.ranks << " ranks in nodes of " << x.ranks_per_node);
      one.route.dispatch = i % 2 == 0 ? Wire::kFp8 : Wire::kBf16;
      one.route.dispatch_bytes = payload_bytes(one.route.dispatch, x.hidden) + 16;
      const Moved moved = move_exact(one.route, x, choices);
      for (const Way way : {Way::kDispatch, Way::kCombine}) {
        CHECK(moved.sent[static_cast<size_t>(way)] == bytes_of(one, x, choices, way));
      }
      if (expected == 0) expected = moved.fnv1a;
      CHECK(moved.fnv1a == expected);
    }
  }
}

TEST_CASE("ranks without tokens forward rows, and places for no choice are sent empty") {
  Exchange x{.ranks = 4, .ranks_per_node = 2, .experts = 8, .topk = 2, .hidden = 128};
  // Only rank 0 has tokens, of which one has no expert; its rail's partner is rank 2.
  const Choices choices{{0, 2, 2, 2, 2}, {6, 7, -1, -1}};
  std::vector<Named> all = known_routes(x);
  uint64_t expected = 0;
  for (size_t i = 0; i < 6; ++i) {  // all-gathers need as many tokens on each rank
    const Moved moved = move_exact(all[i].route, x, choices);
    if (i == 0) expected = moved.fnv1a;
    CHECK(moved.fnv1a == expected);
  }
  all[0].route.capacity = 3;
  const Moved padded = move_exact(all[0].route, x, choices);
  CHECK(padded.fnv1a == expected);
  CHECK(padded.sent[0][1] == 6 * all[0].route.dispatch_bytes);
}

// Of random numbers: y = sum over k choices of (e mod 3 + 1) x. n roundings of bf16 are allowed
// between it and the output: one on the wire and one at the end, and one more where nodes add; sums
// of k + n terms add (k + n + 2) 2^-24.
TEST_CASE("sums of random rows are within the roundings on their way") {
  Rng rng(2);
  const Exchange x{.ranks = 8, .ranks_per_node = 4, .experts = 16, .topk = 6, .hidden = 128};
  const Choices choices = random_choices(x, rng, true);
  for (Named& one : known_routes(x)) {
    for (const Wire wire : {Wire::kBf16, Wire::kFp32}) {
      INFO(one.name << ", " << name_of(wire));
      one.route.dispatch = Wire::kFp32;
      one.route.combine = wire;
      one.route.dispatch_bytes = one.route.combine_bytes = 4 * x.hidden;
      const bool twice = one.route.reduce == Reduce::kRankNode;
      const int64_t n = twice ? (one.route.to_all ? x.ranks + 1 : 3) : 2;
      const double share = wire == Wire::kBf16 ? static_cast<double>(n) / 256
                                               : static_cast<double>(x.topk + n + 2) * 0x1p-24;
      InProcessWorld world(x.ranks, 1, {});
      const ThreadGroup threads(
          x.ranks, [](int64_t) { return "a rank"; },
          [&](int64_t rank) {
            Rng own(static_cast<uint64_t>(rank) + 5);
            const int64_t first = choices.first[static_cast<size_t>(rank)];
            Mover<float>::Values in(static_cast<size_t>(3 * x.hidden)), out(in.size());
            for (float& v : in) v = static_cast<float>(own.uniform() - 0.5);
            Mover<float> mover(one.route, x, choices, world.comm(rank, 0), "rows");
            std::map<std::pair<int64_t, int32_t>, Mover<float>::Values> outs;
            const auto factor = [&](int64_t token, int32_t slot) {
              float sum = 0;
              for (int32_t i = 0; i < x.topk; ++i) {
                const int32_t e = choices.of(token, x.topk)[static_cast<size_t>(i)];
                const bool here = slot < 0 || (one.route.to_all ? x.rank_of(e) == slot : i == slot);
                if (e >= 0 && here) sum += static_cast<float>(e % 3 + 1);
              }
              return sum;
            };
            mover.dispatch(
                [&](int64_t token, int32_t) { return in.data() + (token - first) * x.hidden; },
                [&](int64_t token, int32_t slot, const float* values) {
                  outs[{token, slot}].assign(values, values + x.hidden);
                });
            mover.combine(
                [&](int64_t token, int32_t slot, float* values) {
                  for (int64_t h = 0; h < x.hidden; ++h) {
                    values[h] =
                        factor(token, slot) * outs.at({token, slot})[static_cast<size_t>(h)];
                  }
                },
                sums_of<float>(out, first, x.hidden));
            for (size_t i = 0; i < out.size(); ++i) {
              const double y =
                  double{in[i]} * factor(first + static_cast<int64_t>(i) / x.hidden, -1);
              if (std::abs(out[i] - y) > share * std::abs(y)) {
                FAIL("rank " << rank << ": " << out[i] << " for " << y);
              }
            }
          });
    }
  }
}

}  // namespace
}  // namespace moe::dispatch
