#include "tests/kernels/compare.h"

using namespace moe;
using namespace moe::test;

namespace {

/// Choices of `tokens` tokens in slots: about a quarter of the choices have no slot, some slots
/// stay empty, and no slot holds two choices.
struct Maps {
  Maps(int64_t tokens, int64_t k, int64_t slots)
      : choice_slot(tokens * k, -1), slot_choice(slots, -1) {
    Rng rng(11);
    for (size_t choice = 0; choice < choice_slot.size(); ++choice) {
      const int64_t slot = rng.below(slots);
      if (slot_choice[slot] >= 0 || rng.uniform() < 0.25) continue;
      slot_choice[slot] = static_cast<int32_t>(choice);
      choice_slot[choice] = static_cast<int32_t>(slot);
    }
  }
  std::vector<int32_t> choice_slot, slot_choice;
};

}  // namespace

TEST_CASE("the embedding and its gradients agree with the reference") {
  for (const int64_t hidden : {1, 16, 45, 128})
    for (const int64_t tokens : {12, 13, 24, 3})  // 13 and 3: a batch row that is cut short
      for (const bool accumulate : {false, true})
        agree(1e-5, [&](const auto& k, auto zero) {
          using T = decltype(zero);
          const int64_t seq = 6, vocab = 9;
          const auto ids = random_ints(tokens, 1, vocab);
          const auto wte = random_values<T>(vocab * hidden, 2);
          const auto wpe = random_values<T>(seq * hidden, 3);
          std::vector<T> x(tokens * hidden), alone(x.size());
          k.embedding(x.data(), ids.data(), wte.data(), wpe.data(), tokens, seq, hidden, nullptr);
          k.embedding(alone.data(), ids.data(), wte.data(), nullptr, tokens, seq, hidden, nullptr);
          auto dwte = random_values<T>(vocab * hidden, 4), dwpe = random_values<T>(seq * hidden, 5);
          k.embedding_dwte(dwte.data(), ids.data(), x.data(), accumulate ? dwte.data() : nullptr,
                           tokens, vocab, hidden, nullptr);
          k.embedding_dwpe(dwpe.data(), x.data(), accumulate ? wpe.data() : nullptr, tokens, seq,
                           hidden, nullptr);
          return joined(joined(x, alone), joined(dwte, dwpe));
        });
}

TEST_CASE("embedding_dwte adds an accumulator that is another array") {
  agree(0, [](const auto& k, auto zero) {
    using T = decltype(zero);
    const std::vector<int32_t> ids = {2, 0};
    const std::vector<T> dx = {1, 2, 3, 4}, acc = {10, 20, 30, 40, 50, 60};
    std::vector<T> dwte(6, T(-1));
    k.embedding_dwte(dwte.data(), ids.data(), dx.data(), acc.data(), 2, 3, 2, nullptr);
    CHECK(dwte == std::vector<T>{13, 24, 30, 40, 51, 62});
    return dwte;
  });
}

TEST_CASE("dispatch, combine and their gradients agree with the reference") {
  for (const int64_t k : {1, 2, 5})
    for (const int64_t hidden : {1, 16, 45, 128})
      for (const bool base : {false, true})
        agree(1e-5, [&](const auto& table, auto zero) {
          using T = decltype(zero);
          const int64_t tokens = 21, slots = 40;
          const Maps maps(tokens, k, slots);
          const auto x = random_values<T>(tokens * hidden, 1), dy = random_values<T>(x.size(), 2);
          const auto in = random_values<T>(slots * hidden, 3);
          const auto weight = random_values<T>(tokens * k, 4);
          auto y = random_values<T>(x.size(), 5), dx = random_values<T>(x.size(), 6);
          std::vector<T> out(in.size(), T(9)), din(in.size(), T(9)), dweight(tokens * k, T(9));
          const auto* choice = maps.choice_slot.data();
          const auto* slot = maps.slot_choice.data();
          table.dispatch(out.data(), x.data(), slot, slots, k, hidden, nullptr);
          table.dispatch_dx(dx.data(), in.data(), choice, base ? dx.data() : nullptr, tokens, k,
                            hidden, nullptr);
          table.combine(y.data(), in.data(), weight.data(), choice, base ? x.data() : nullptr,
                        tokens, k, hidden, nullptr);
          table.combine_dx(din.data(), dy.data(), weight.data(), slot, slots, k, hidden, nullptr);
          table.combine_dweight(dweight.data(), dy.data(), in.data(), choice, tokens, k, hidden,
                                nullptr);
          return joined(joined(joined(out, dx), joined(y, din)), dweight);
        });
}

TEST_CASE("combine undoes dispatch when every choice weighs 1 and one has a slot") {
  const int64_t tokens = 8, hidden = 20;
  for (const auto* table : kernels::runnable_tables()) {
    std::vector<int32_t> slot_choice(10, -1), choice_slot(tokens);
    for (int32_t t = 0; t < tokens; ++t) {
      choice_slot[t] = 9 - t;
      slot_choice[9 - t] = t;
    }
    const auto x = random_values<float>(tokens * hidden, 1);
    const std::vector<float> weight(tokens, 1.0f);
    std::vector<float> slots(10 * hidden, NAN), y(x.size(), NAN);
    table->dispatch(slots.data(), x.data(), slot_choice.data(), 10, 1, hidden, nullptr);
    table->combine(y.data(), slots.data(), weight.data(), choice_slot.data(), nullptr, tokens, 1,
                   hidden, nullptr);
    CHECK(y == x);
    CHECK(table->first_nonfinite(slots.data(), 10 * hidden) == -1);  // empty slots hold 0
  }
}

TEST_CASE("columns of heads that are cut and joined agree with the reference") {
  for (const kernels::HeadColumns columns :
       {kernels::HeadColumns{1, 16, 8}, {3, 5, 64}, {4, 128, 33}, {7, 1, 1}})
    for (const bool shared : {false, true})
      agree(1e-6, [&](const auto& k, auto zero) {
        using T = decltype(zero);
        kernels::HeadColumns c = columns;
        c.shared = shared;
        const int64_t rows = 3;
        const auto x = random_values<T>(rows * c.row(), 1);
        std::vector<T> first(rows * c.row_of_first()), second(rows * c.row_of_second());
        k.split_heads(first.data(), second.data(), x.data(), c, rows, nullptr);
        std::vector<T> back(x.size());
        k.join_heads(back.data(), first.data(), second.data(), c, rows, nullptr);
        if (!shared) CHECK(back == x);
        return joined(joined(first, second), back);
      });
}

TEST_CASE("an expert without slots is no work") {
  for (const auto* table : kernels::runnable_tables()) {
    const float x = 1;
    table->dispatch(nullptr, &x, nullptr, 0, 1, 1, nullptr);
    table->combine_dx(nullptr, &x, &x, nullptr, 0, 1, 1, nullptr);
    float db[3] = {1, 2, 3};
    table->bias_grad(db, nullptr, nullptr, 0, 3, nullptr);
    CHECK((db[0] == 0 && db[1] == 0 && db[2] == 0));
    table->gelu(nullptr, nullptr, nullptr, 0, 7, nullptr);
    table->silu_mul(nullptr, nullptr, {}, 0, 7, nullptr);
    table->mul(nullptr, nullptr, nullptr, nullptr, 0, 7, true, nullptr);
  }
}
