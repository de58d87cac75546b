// Every kernel of the tables that a program tests, at sizes with whole vectors, ragged ends, single
// rows and columns, none at all, and rows that are longer than what the threads of a GPU's block
// take at once. What check() tries of each is in conformance.h.
#include "tests/kernels/conformance.h"

using namespace moe;
using namespace moe::test;
using kernels::ScoreRule;
using kernels::WeightRule;
using Reference = kernels::KernelTable<double>;

namespace {

const std::vector<Matrix> kRows = joined(kMatrices, {{0, 7}, {2, 2056}, {9, 257}, {19, 64}});
/// With rows that are longer than what a GPU's block keeps of them, and sums in several pieces.
const std::vector<Matrix> kNormRows = joined(kRows, {{2, 8200}, {600, 24}});
const std::vector<int64_t> kLengths = {0, 1, 4, 15, 16, 255, 1032, 4099};

constexpr ScoreRule kScoreRules[] = {ScoreRule::kSoftmax, ScoreRule::kSigmoid};

/// In How: where a factor of 0 and an infinity meet, or two infinities, a form that is rounded
/// otherwise may have either.
constexpr bool kNoInfinity = false;

/// n of the numbers below `below`, of which a quarter are -1, or all if below is 0.
std::vector<int32_t> random_map(int64_t n, uint64_t stream, int64_t below) {
  std::vector<int32_t> map = random_ints(n, stream, std::max<int64_t>(below, 1));
  Rng rng(stream + 100);
  for (int32_t& v : map)
    if (below == 0 || rng.below(4) == 0) v = -1;
  return map;
}

}  // namespace

TEST_CASE("gemm conforms for every transposition, factor and gap", "[gemm]") {
  struct Size {
    int64_t m, n, k;
  };
  struct Factors {
    double alpha, beta;
  };
  for (const auto [m, n, k] :
       std::vector<Size>{{3, 5, 7}, {8, 1, 4}, {7, 19, 33}, {33, 40, 70}, {0, 4, 3}, {4, 3, 0}})
    for (const auto [alpha, beta] : {Factors{1, 0}, {0.5, 0.75}, {1.5, -0.5}})
      for (const int form : {0, 1, 2, 3, 4, 7}) {
        const bool ta = form & 1, tb = form & 2;
        const int64_t gap = form & 4 ? 3 : 0;
        check<&Reference::gemm>({.tolerance = 1e-5, .same_bits = false}, ta, tb, m, n, k, alpha,
                                std::max<int64_t>(1, (ta ? m : k) + gap),
                                std::max<int64_t>(1, (tb ? k : n) + gap), beta, n + gap);
      }
}

TEST_CASE("the gradient of a bias conforms") {
  for (const auto [rows, cols] : kNormRows) check<&Reference::bias_grad>({1e-5}, rows, cols);
}

TEST_CASE("LayerNorm and its gradients conform, also for rows far from zero") {
  for (const auto [rows, cols] : kNormRows) {
    check<&Reference::layernorm>({2e-5, {{3, {3}}}}, rows, cols);
    if (cols > 1) check<&Reference::layernorm>({2e-4, {{3, {1, 50}}}}, rows, cols);
    check<&Reference::layernorm_dx>({.tolerance = 2e-5, .infinity = kNoInfinity}, rows, cols);
    check<&Reference::layernorm_dw>({2e-5}, rows, cols);
  }
}

TEST_CASE("RMSNorm and its gradients conform") {
  for (const auto [rows, cols] : kNormRows) {
    check<&Reference::rmsnorm>({2e-5, {{2, {3}}}}, 0.01, rows, cols);
    check<&Reference::rmsnorm_dx>({.tolerance = 2e-5, .infinity = kNoInfinity}, rows, cols);
    check<&Reference::rmsnorm_dw>({2e-5}, rows, cols);
  }
}

TEST_CASE("sums of so many columns that one thread of a GPU adds several rows conform") {
  check<&Reference::bias_grad>({1e-5}, 40, 34104);
  check<&Reference::layernorm_dw>({2e-5}, 40, 34104);
}

TEST_CASE("GELU and its gradient conform over small, large and extreme inputs") {
  for (const auto [rows, cols] : kRows)
    for (const double range : {1.0, 12.0, 1e4}) {
      check<&Reference::gelu>({2e-6, {{1, {range}}}, true, kNoInfinity}, rows, cols);
      check<&Reference::gelu_dx>({2e-6, {{2, {range}}}, true, kNoInfinity}, rows, cols);
    }
}

TEST_CASE("gated activations and their gradients conform, with and without limits, far out too") {
  for (const auto [rows, cols] : kRows)
    for (const double range : {1.0, 12.0, 1e4})
      for (const kernels::GatedForm form : {kernels::GatedForm{}, {7, 1.702, 1}}) {
        // Without a limit, an operand of 1e4 multiplies the rounding error of a slope near 0.
        const double tolerance = range > 100 && form.offset == 0 ? 1e-3 : 2e-6;
        check<&Reference::silu_mul>({tolerance, {{1, {range}}}, true, kNoInfinity}, form, rows,
                                    cols);
        // The weights' gradients are sums of up to 2,056 products of up to `range` squared.
        check<&Reference::silu_mul_dx>(
            {tolerance, {{3, {range}}}, true, kNoInfinity, true, {{1, std::max(5e-5, tolerance)}}},
            form, rows, cols);
      }
}

TEST_CASE("maps, their gradients, products and sums of rows conform") {
  for (const int64_t n : kLengths)
    for (const kernels::Map map : kernels::kMaps)
      for (const double range : {1.0, 200.0}) {
        check<&Reference::map>({1e-6, {{1, {range}}}}, map, 1.5, n);
        if (kernels::has_slope(map)) check<&Reference::map_dx>({1e-5}, map, n);
      }
  for (const auto [rows, cols] : kRows) {
    check<&Reference::mul>({1e-6}, rows, cols, false);
    check<&Reference::mul>({1e-6}, rows, cols, true);
    check<&Reference::row_dot>({1e-5}, rows, cols);
  }
}

TEST_CASE("rotary embedding conforms in both forms and directions, of whole heads and parts") {
  using kernels::RopeShape;
  for (RopeShape s : std::vector<RopeShape>{{1, 1, 1, 2, 0, 1},
                                            {12, 6, 2, 8, 0, 4},
                                            {6, 3, 3, 12, 8, 2},
                                            {8, 4, 2, 128, 0, 64},
                                            {8, 8, 5, 192, 128, 32},
                                            {10, 5, 2, 70, 4, 17},
                                            {4, 2, 1, 64, 0, 16}})
    for (const int mode : {0, 1, 2, 3}) {
      s.interleaved = mode % 2 == 1;
      s.inverse = mode >= 2;
      check<&Reference::rope>({1e-6}, s);
    }
}

TEST_CASE("the angles of rotary embedding conform to a rounding, at far positions too") {
  check<&Reference::rope_angles>({2e-7}, kernels::RopeFrequencies{3, 1.25f, {1, 0.37f, 0}},
                                 int64_t{5000});
}

TEST_CASE("columns of heads that are cut and joined conform") {
  for (kernels::HeadColumns c :
       {kernels::HeadColumns{1, 16, 8}, {3, 5, 64}, {4, 128, 33}, {4, 128, 64}, {7, 1, 1}})
    for (const bool shared : {false, true})
      for (const int64_t rows : {0, 3, 11}) {
        c.shared = shared;
        check<&Reference::split_heads>({1e-6}, c, rows);
        check<&Reference::join_heads>({0}, c, rows);
      }
}

TEST_CASE("the embedding and its gradients conform") {
  for (const int64_t hidden : {1, 16, 45, 128})
    for (const int64_t tokens : {0, 3, 12, 13, 300}) {  // cut short; more than a block lists
      const int64_t seq = 6, vocab = 19;
      const auto ids = random_ints(tokens, -1, vocab - 2);  // some have no row, one row no token
      check<&Reference::embedding>({1e-6}, ids, tokens, seq, hidden);
      check<&Reference::embedding_dwte>({2e-5}, ids, tokens, vocab, hidden);
      check<&Reference::embedding_dwpe>({2e-5}, tokens, seq, hidden);
    }
}

TEST_CASE("gate logits, scores and their gradients conform for every rule") {
  for (const auto& [tokens, experts, hidden] : kGates) {
    for (const double range : {1.0, 30.0})
      check<&Reference::gate_logits>({1e-4, {{1, {range}}}}, tokens, experts, hidden);
    for (const ScoreRule score : kScoreRules) {
      for (const double range : {1.0, 300.0})
        check<&Reference::gate_scores>({5e-7, {{1, {range}}}}, score, tokens, experts);
      for (const WeightRule weight : {WeightRule::kProb, WeightRule::kRenorm, WeightRule::kOne})
        for (const int64_t k : {1, 2}) {
          // A weight that is divided by itself has gradient 0, of which long rows show rounding.
          if (weight == WeightRule::kRenorm && k == 1 && experts > 64) continue;
          // With weights of 1 the gradient is 0 whatever the scores.
          check<&Reference::gate_dlogits>(
              {1e-5, {{2, kPositive}}, weight != WeightRule::kOne, weight != WeightRule::kOne},
              random_map(tokens * k, 1, experts), weight, score, tokens, experts, k);
        }
    }
  }
}

TEST_CASE("dispatch, combine and their gradients conform") {
  for (const int64_t k : {1, 2, 5})
    for (const int64_t hidden : {1, 16, 45, 128})
      for (const int64_t slots : {0, 29, 40}) {
        const int64_t tokens = 21;
        const auto slot_choice = random_map(slots, 1, tokens * k);
        const auto choice_slot = random_map(tokens * k, 2, slots);
        check<&Reference::dispatch>({0}, slot_choice, slots, k, hidden);
        check<&Reference::dispatch_dx>({1e-5}, choice_slot, tokens, k, hidden);
        check<&Reference::combine>({1e-5}, choice_slot, tokens, k, hidden);
        check<&Reference::combine_dx>({1e-6}, slot_choice, slots, k, hidden);
        check<&Reference::combine_dweight>({1e-5}, choice_slot, tokens, k, hidden);
        check<&Reference::gather>({0}, choice_slot, tokens * k);
      }
}

TEST_CASE("cross entropy and its gradient conform, also for huge logits") {
  for (const auto [tokens, vocab] : joined(kMatrices, {{0, 4}, {270, 3}, {2, 4113}, {1, 116301}}))
    for (const double range : {1.0, 1000.0})
      for (const bool gradient : {false, true}) {
        // More rows than blocks, or a row too long for shared memory.
        if (tokens * vocab > 100000 || tokens > 100)
          if (!gradient || range > 1) continue;
        auto targets = random_ints(tokens, 2, vocab);
        for (size_t t = 2; t < targets.size(); t += 3) targets[t] = -1;  // no loss
        for (const int64_t beyond : {0, 7})
          check<&Reference::cross_entropy>({2e-6, {{1, {range}}}}, targets, 0.25, gradient, tokens,
                                           vocab, vocab + beyond);
      }
}

TEST_CASE("the losses of routers and their gradients conform") {
  for (const auto [tokens, experts] : joined(kMatrices, {{0, 4}})) {
    for (const ScoreRule rule : kScoreRules)
      check<&Reference::balance_loss>({5e-6, {{1, kPositive}, {2, {25, 25}}}}, rule, 0.01 / 8,
                                      tokens, experts);
    check<&Reference::z_loss>({5e-6, {{1, {4}}}}, 0.1 / 8, tokens, experts);
  }
}

TEST_CASE("SGD and AdamW conform in the first step and in later ones") {
  const kernels::AdamwRates rates = {
      .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .lr = 0.01, .weight_decay = 1};
  for (const int64_t n : kLengths) {
    check<&Reference::sgd>({1e-6}, 0.1, 0.9, n);
    check<&Reference::square_sums>({1e-5}, 0.25, n);
    check<&Reference::clip>({1e-5, {{2, kPositive}}}, 0.5, n);
    for (const int64_t step : {0, 1, 2, 1000})
      check<&Reference::adamw>({1e-5, {{2, kPositive}}}, rates, std::vector<int64_t>{step}, n);
  }
}

TEST_CASE("sums, rounding and copies conform") {
  for (const int64_t n : kLengths) {
    check<&Reference::add>({1e-7}, n);
    for (const int64_t count : {1, 2, 5}) check<&Reference::sum_n>({1e-6}, count, n);
    check<&Reference::round>({0}, n);
    check<&Reference::clear>({0}, n);
  }
  for (const auto [rows, cols] : kMatrices)
    for (const int64_t gap : {0, 1, 5})
      check<&Reference::copy_2d>({0}, cols + gap, cols + 2 * gap, cols, rows);
}
