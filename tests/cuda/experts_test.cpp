// Embedding, dispatch and combine.
#include "tests/cuda/on_device.h"

using namespace moe;
using namespace moe::test;

namespace {

/// How the choices of `tokens` tokens lie in `slots` slots.
enum class Fill { kScattered, kNone, kFirstTokensOnly };

struct Maps {
  Maps(int64_t tokens, int64_t k, int64_t slots, Fill fill)
      : choice_slot(static_cast<size_t>(tokens * k), -1),
        slot_choice(static_cast<size_t>(slots), -1) {
    Rng rng(11);
    for (size_t choice = 0; choice < choice_slot.size() && fill != Fill::kNone; ++choice) {
      const int64_t place =
          fill == Fill::kFirstTokensOnly ? static_cast<int64_t>(choice) : rng.below(slots);
      if (place >= slots) break;  // over capacity
      const auto slot = static_cast<size_t>(place);
      if (slot_choice[slot] >= 0 || (fill == Fill::kScattered && rng.uniform() < 0.25)) continue;
      slot_choice[slot] = static_cast<int32_t>(choice);
      choice_slot[choice] = static_cast<int32_t>(slot);
    }
  }
  std::vector<int32_t> choice_slot, slot_choice;
};

}  // namespace

TEST_CASE("the embedding and its gradients agree with the reference") {
  for (const int64_t hidden : {1, 45, 128})
    for (const int64_t tokens : {3, 13, 300})  // cut short; more than a block lists at once
      for (const bool accumulate : {false, true})
        agree_on_both(2e-5, [&](const auto& k, auto arrays) {
          using A = decltype(arrays);
          using T = typename A::Stored;
          const int64_t seq = 6, vocab = 19;
          const auto ids = random_ints(tokens, 1, vocab - 1);  // one row has no token
          const auto wte = A::wide(vocab * hidden, 2), wpe = A::wide(seq * hidden, 3);
          std::vector<T> x(tokens * hidden), alone(x.size());
          k.embedding(x.data(), ids.data(), wte.data(), wpe.data(), tokens, seq, hidden, nullptr);
          k.embedding(alone.data(), ids.data(), wte.data(), nullptr, tokens, seq, hidden, nullptr);
          const auto dx = A::stored(tokens * hidden, 6);
          auto dwte = A::wide(vocab * hidden, 4), dwpe = A::wide(seq * hidden, 5);
          k.embedding_dwte(dwte.data(), ids.data(), dx.data(), accumulate ? dwte.data() : nullptr,
                           tokens, vocab, hidden, nullptr);
          k.embedding_dwpe(dwpe.data(), dx.data(), accumulate ? wpe.data() : nullptr, tokens, seq,
                           hidden, nullptr);
          return Results<T>{joined(x, alone), joined(dwte, dwpe)};
        });
}

TEST_CASE("all tokens with one id add up in their order") {
  const int64_t tokens = 700, hidden = 3;
  const std::vector<int32_t> ids(tokens, 9);
  const auto dx = random_values<float>(tokens * hidden, 1, 1e4);
  std::vector<float> dwte(12 * hidden, NAN), want(hidden);
  for (int64_t t = 0; t < tokens; ++t)
    for (int64_t c = 0; c < hidden; ++c) want[c] += dx[t * hidden + c];
  device_table().embedding_dwte(dwte.data(), ids.data(), dx.data(), nullptr, tokens, 12, hidden,
                                nullptr);
  CHECK(std::vector<float>(dwte.begin() + 9 * hidden, dwte.begin() + 10 * hidden) == want);
  CHECK(dwte[0] == 0);
}

TEST_CASE("dispatch, combine and their gradients agree with the reference") {
  for (const int64_t k : {1, 2, 5})
    for (const int64_t hidden : {1, 45, 128})
      for (const int64_t shift : {0, 1})  // rows that are not aligned to a vector
        for (const Fill fill : {Fill::kScattered, Fill::kNone, Fill::kFirstTokensOnly})
          agree_on_both(1e-5, [&](const auto& table, auto arrays) {
            using A = decltype(arrays);
            using T = typename A::Stored;
            const bool base = fill != Fill::kNone;
            const int64_t tokens = 21, slots = 29, n = tokens * hidden + shift;
            const Maps maps(tokens, k, slots, fill);
            const auto x = A::stored(n, 1), dy = A::stored(n, 2);
            const auto in = A::stored(slots * hidden + shift, 3);
            const auto weight = A::wide(tokens * k, 4);
            auto y = A::stored(n, 5), dx = A::stored(n, 6);
            std::vector<T> out(in.size(), A::of(9)), din(in.size(), A::of(9));
            auto dweight = A::wide(tokens * k, 7);
            const auto* choice = maps.choice_slot.data();
            const auto* slot = maps.slot_choice.data();
            table.dispatch(out.data() + shift, x.data() + shift, slot, slots, k, hidden, nullptr);
            table.dispatch_dx(dx.data() + shift, in.data() + shift, choice,
                              base ? dx.data() + shift : nullptr, tokens, k, hidden, nullptr);
            table.combine(y.data() + shift, in.data() + shift, weight.data(), choice,
                          base ? x.data() + shift : nullptr, tokens, k, hidden, nullptr);
            table.combine_dx(din.data() + shift, dy.data() + shift, weight.data(), slot, slots, k,
                             hidden, nullptr);
            table.combine_dweight(dweight.data(), dy.data() + shift, in.data() + shift, choice,
                                  tokens, k, hidden, nullptr);
            return Results<T>{joined(joined(out, dx), joined(y, din)), dweight};
          });
}

TEST_CASE("an expert without slots is no work") {
  const auto check = [](const auto& table, const auto* x) {
    const float weight = 1;
    table.dispatch(nullptr, x, nullptr, 0, 1, 1, nullptr);
    table.combine_dx(nullptr, x, &weight, nullptr, 0, 1, 1, nullptr);
    table.gelu(nullptr, nullptr, nullptr, 0, 7, nullptr);
    float db[3] = {1, 2, 3};
    table.bias_grad(db, nullptr, nullptr, 0, 3, nullptr);
    CHECK((db[0] == 0 && db[1] == 0 && db[2] == 0));
    CHECK(device_error() == "");
  };
  const float x = 1;
  const kernels::Bf16 narrow = kernels::to_bf16(x);
  check(device_table(), &x);
  check(device_mixed(), &narrow);
}
